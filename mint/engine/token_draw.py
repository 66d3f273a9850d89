"""Drawing one token per row from logits, reproducibly and with the logprob of the distribution it was drawn from.

Axes: _B rows (sequences being decoded), _V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_ARGMAX_BELOW = 1e-6
"""Logits divided by less may overflow float32, which would fail the whole batch; the likeliest token is certain."""


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
    # Greedy rows divide by 1 and are overwritten below.
    divisor_B = torch.from_numpy(np.where(is_greedy, 1.0, temperatures).astype(np.float32)).to(device)
    scaled_BV = logits_BV / divisor_B.unsqueeze(1)
    restricted = [i for i, o in enumerate(options) if o.temperature > 0 and (o.top_k != -1 or o.top_p < 1)]
    for i in restricted:
        scaled_BV[i] = _restrict(scaled_BV[i], options[i].top_k, options[i].top_p)
    # Not log_softmax: over 150,000 entries its float32 sum is off by 5e-6, always to one side, while logsumexp, which
    # the trainer takes too (see `projection`), is exact to rounding.
    logprobs_BV = scaled_BV - torch.logsumexp(scaled_BV, dim=-1, keepdim=True)
    # float64: a float32 running sum over 150,000 entries loses the tail.
    cumulative_BV = logprobs_BV.double().exp_().cumsum_(dim=-1)
    threshold_B = torch.tensor(uniforms, dtype=torch.float64, device=device) * cumulative_BV[:, -1]
    tokens_B = torch.searchsorted(cumulative_BV, threshold_B.unsqueeze(1), right=True).squeeze(1)
    # A threshold that rounds up to the total would fall behind the last token, or on one of probability zero.
    last_possible_B = (cumulative_BV < cumulative_BV[:, -1:]).sum(dim=-1)
    tokens_B = torch.minimum(tokens_B, last_possible_B)
    logprobs_B = logprobs_BV.gather(1, tokens_B.unsqueeze(1)).squeeze(1)
    if is_greedy.any():
        is_greedy_B = torch.from_numpy(is_greedy).to(device)
        tokens_B = torch.where(is_greedy_B, logits_BV.argmax(dim=-1), tokens_B)
        logprobs_B = torch.where(is_greedy_B, torch.zeros_like(logprobs_B), logprobs_B)
    return tokens_B, logprobs_B


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
