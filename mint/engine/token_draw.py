"""Drawing one token per row from logits, reproducibly and with the logprob of the distribution it was drawn from.

Axes: _B rows (sequences being decoded), _V vocabulary, _M blocks of the vocabulary, _k tokens of a block, _X blocks or
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_ARGMAX_BELOW = 1e-6
"""Logits divided by less may overflow float32, which would fail the whole batch; the likeliest token is certain."""
_BLOCK = 128
"""Tokens that are summed in float32, which is exact enough for so few."""


@dataclass(frozen=True)
class DrawOptions:
    """temperature 0 is argmax; top_k -1 and top_p 1 keep everything."""

    temperature: float
    top_k: int
    top_p: float


class UniformStream:
    """The random numbers of one sequence: a counter-based stream, so nothing else that is sampled can shift it.

    `sequence` numbers the samples of one request.
    """

    def __init__(self, seed: int, sequence: int) -> None:
        key = np.array([seed & (2**64 - 1), sequence], dtype=np.uint64)
        self._generator = np.random.Generator(np.random.Philox(key=key))

    def next(self) -> float:
        """Uniform in [0, 1)."""
        return self._generator.random()


def draw_tokens(logits_BV: Tensor, options: list[DrawOptions], uniforms: list[float]) -> tuple[Tensor, Tensor]:
    """One token per row by inverting the cumulative distribution at the row's uniform number.

    Returns (tokens_B, logprobs_B): the logprob is under the distribution after temperature, top-k and top-p, so at
    temperature 0 (and below 1e-6) it is 0. Rows that draw plainly (no top-k, no top-p) never sort the vocabulary.
    """
    device = logits_BV.device
    temperatures = np.asarray([o.temperature for o in options])
    is_greedy = temperatures < _ARGMAX_BELOW
    if is_greedy.all():
        return logits_BV.argmax(dim=-1), logits_BV.new_zeros(len(options))
    restricted = [i for i, o in enumerate(options) if o.temperature > 0 and (o.top_k != -1 or o.top_p < 1)]
    scaled_BV = logits_BV
    if restricted or (temperatures != 1).any():
        # Greedy rows divide by 1 and are overwritten below.
        divisor_B = torch.from_numpy(np.where(is_greedy, 1.0, temperatures).astype(np.float32)).to(device)
        scaled_BV = logits_BV / divisor_B.unsqueeze(1)
    for i in restricted:
        scaled_BV[i] = _restrict(scaled_BV[i], options[i].top_k, options[i].top_p)
    tokens_B, logprobs_B = _invert(scaled_BV, torch.tensor(uniforms, dtype=torch.float64, device=device))
    if is_greedy.any():
        is_greedy_B = torch.from_numpy(is_greedy).to(device)
        tokens_B = torch.where(is_greedy_B, logits_BV.argmax(dim=-1), tokens_B)
        logprobs_B = torch.where(is_greedy_B, torch.zeros_like(logprobs_B), logprobs_B)
    return tokens_B, logprobs_B


def _invert(scaled_BV: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """The token at which each row's cumulative probability passes its uniform number, and the token's logprob.

    The block of the vocabulary is found first, then the token within that block alone, so that softmax and the sums of
    the blocks are the only passes over the vocabulary.
    """
    vocab_size = scaled_BV.shape[1]
    share_BV = torch.softmax(scaled_BV, dim=-1)
    # Across blocks in float64: a float32 running sum over 150,000 entries loses the tail, and is off to one side.
    before_BM = _block_sums(share_BV).double().cumsum(dim=-1)
    total_B = before_BM[:, -1:]
    threshold_B = uniforms_B.unsqueeze(1) * total_B
    block_B = _first_beyond(before_BM, threshold_B)
    before_B = torch.where(block_B > 0, before_BM.gather(1, (block_B - 1).clamp_min(0)), 0.0)
    index_Bk = block_B * _BLOCK + torch.arange(_BLOCK, device=scaled_BV.device)
    share_Bk = share_BV.gather(1, index_Bk.clamp_max(vocab_size - 1)).masked_fill(index_Bk >= vocab_size, 0.0)
    tokens_B = block_B * _BLOCK + _first_beyond(share_Bk.double().cumsum(dim=-1), threshold_B - before_B)
    # softmax divides by a float32 sum, which over 150,000 entries is off by 5e-6, always to one side. The total of the
    # shares is off by the same factor, so a share over it is as exact as the trainer's logprob (see `projection`).
    logprobs_B = (share_BV.gather(1, tokens_B) / total_B).log()
    return tokens_B.squeeze(1), logprobs_B.squeeze(1).float()


def _block_sums(share_BV: Tensor) -> Tensor:
    """Sums over consecutive blocks of the vocabulary, the last of which may be shorter; shape (B, M)."""
    num_rows, vocab_size = share_BV.shape
    whole = vocab_size - vocab_size % _BLOCK
    sums = [share_BV[:, :whole].view(num_rows, -1, _BLOCK).sum(dim=-1), share_BV[:, whole:].sum(dim=-1, keepdim=True)]
    return torch.cat(sums, dim=1) if whole < vocab_size else sums[0]


def _first_beyond(cumulative_BX: Tensor, threshold_B: Tensor) -> Tensor:
    """Index of the first entry above the threshold, shape (B, 1): one that adds to the sum, whatever was rounded."""
    index_B = torch.searchsorted(cumulative_BX, threshold_B, right=True)
    # A threshold that rounds up to the total would fall behind the last entry, or on one of probability zero.
    last_possible_B = (cumulative_BX < cumulative_BX[:, -1:]).sum(dim=-1, keepdim=True)
    return torch.minimum(index_B, last_possible_B)


def _restrict(logits_V: Tensor, top_k: int, top_p: float) -> Tensor:
    """-inf outside the top k tokens, then outside the smallest set of the rest that holds top_p of the mass."""
    sorted_V, order_V = logits_V.sort(descending=True, stable=True)
    keep_V = torch.ones_like(sorted_V, dtype=torch.bool)
    if top_k != -1:
        keep_V[top_k:] = False
    if top_p < 1:
        probabilities_V = torch.softmax(sorted_V.masked_fill(~keep_V, -torch.inf), dim=-1)
        mass_before_V = probabilities_V.cumsum(dim=-1) - probabilities_V
        keep_V &= mass_before_V < top_p
    kept_V = torch.zeros_like(keep_V).scatter_(0, order_V, keep_V)
    return logits_V.masked_fill(~kept_V, -torch.inf)
