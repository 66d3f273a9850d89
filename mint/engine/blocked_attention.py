"""Attention on a CPU: small blocks of scores, recomputed in a backward pass of its own.

Axes: _N packed tokens (_n: some of them), _B rows, _T padded positions, _Q query heads, _K key/value heads, _D head
dimension. Inside a block: _X rows times _K, _M query positions times the query heads of one key/value head, _S keys.

The query heads that share a key/value head become query positions of it, so nothing is repeated. A block of scores
fits the processor's cache, and most of the causal half that nobody sees is skipped. A token attends to its own row
and to each shared prefix in separate parts, which are merged by their log-sum-exp as in FlashAttention (Dao et al.,
2022).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mint.engine.batching import MicroBatch, Rows

# Scores of one block, all heads together, in the model's dtype. More leaves the processor's cache; with less, what each
# call costs weighs more.
_BLOCK_BYTES = 1 << 20
# Most query positions of one block of a causal row: fewer skip more of the unseen half, more make fewer, larger calls.
_CAUSAL_POSITIONS = 192


class _Tile:
    """Some rows of packed tokens: how to bring them into (rows * K, positions * heads / K, D) and back."""

    def __init__(self, index_BT: np.ndarray, lengths_B: np.ndarray) -> None:
        self.num_rows, self.width = index_BT.shape
        start, size = int(index_BT[0, 0]), index_BT.size
        is_real_BT = np.arange(self.width)[None, :] < lengths_B[:, None]
        is_run = bool(is_real_BT.all()) and np.array_equal(index_BT.reshape(-1), np.arange(start, start + size))
        self._slice = slice(start, start + size) if is_run else None
        self._index = torch.from_numpy(index_BT.reshape(-1))
        self._own = torch.from_numpy(index_BT[is_real_BT])
        self._is_padded = not is_real_BT.all()
        self._real = torch.from_numpy(np.flatnonzero(is_real_BT))
        self._padding = torch.from_numpy(np.flatnonzero(~is_real_BT))

    def take(self, x: Tensor, num_kv_heads: int, zero_padding: bool = False) -> Tensor:
        """x (N, heads, ...) -> (X, M, ...). Padding repeats some token unless it is to be zero."""
        if self._slice is not None:
            return _heads_first(x[self._slice], self.num_rows, num_kv_heads)
        taken = x.index_select(0, self._index)
        if zero_padding and self._is_padded:
            taken.index_fill_(0, self._padding, 0.0)
        return _heads_first(taken, self.num_rows, num_kv_heads)

    def put(self, x: Tensor, into: Tensor) -> None:
        """Write x (X, M, ...) to the rows' tokens of `into` (N, heads, ...)."""
        tokens = _tokens_first(x, self.num_rows, into.shape[1])
        if self._slice is not None:
            into[self._slice] = tokens
        else:
            real = tokens.index_select(0, self._real) if self._is_padded else tokens
            into.index_copy_(0, self._own, real.to(into.dtype))


def _heads_first(x: Tensor, num_rows: int, num_kv_heads: int) -> Tensor:
    """(rows * T, heads, ...) -> (X, M, ...)."""
    x = x.reshape(num_rows, -1, num_kv_heads, x.shape[1] // num_kv_heads, *x.shape[2:])
    return x.transpose(1, 2).reshape(num_rows * num_kv_heads, -1, *x.shape[4:])


def _tokens_first(x: Tensor, num_rows: int, num_heads: int) -> Tensor:
    """(X, M, ...) -> (rows * T, heads, ...)."""
    num_kv_heads = x.shape[0] // num_rows
    x = x.reshape(num_rows, num_kv_heads, -1, num_heads // num_kv_heads, *x.shape[2:])
    return x.transpose(1, 2).reshape(-1, num_heads, *x.shape[4:])


@dataclass(frozen=True)
class _Prefix:
    """Tokens of a shared prefix, and those that look at it: all of them, and in runs of a block each."""

    keys: slice
    queries: slice
    runs: list[slice]


class BlockedPlan:
    """The tiles of a micro-batch, for queries of some number of heads and dtype; made once, used by every layer."""

    def __init__(self, batch: MicroBatch, num_query_heads: int, dtype: torch.dtype) -> None:
        block_scores = _BLOCK_BYTES // (dtype.itemsize * num_query_heads)  # of each head
        self.tiles = [tile for rows in batch.blocks for tile in _tiles(rows, block_scores)]
        self.prefixes = []
        for prefix in batch.prefixes:
            step = max(1, block_scores // (prefix.stop - prefix.start))
            runs = [slice(i, min(i + step, prefix.end)) for i in range(prefix.stop, prefix.end, step)]
            self.prefixes.append(_Prefix(slice(prefix.start, prefix.stop), slice(prefix.stop, prefix.end), runs))


def _tiles(rows: Rows, block_scores: int) -> Iterator[_Tile]:
    """Rows of a block in tiles of at most so many scores a head; rows come longest first, so tiles are less padded."""
    first = 0
    while first < len(rows.lengths_B):
        width = int(rows.lengths_B[first])
        count = max(1, block_scores // (min(width, _CAUSAL_POSITIONS) * width))
        part = slice(first, first + count)
        yield _Tile(rows.index_BT[part, :width], rows.lengths_B[part])
        first += count


def blocked_attention(query_NQD: Tensor, key_NKD: Tensor, value_NKD: Tensor, plan: BlockedPlan) -> Tensor:
    """Causal attention within each row of the plan, and to the shared prefixes before it; (N, Q, D)."""
    return _BlockedAttention.apply(query_NQD, key_NKD, value_NKD, plan)  # type: ignore[return-value]


class _BlockedAttention(torch.autograd.Function):
    """Keeps queries, keys and values for the backward pass; with prefixes, also the result and each part's weight."""

    @staticmethod
    def forward(ctx: Any, query_NQD: Tensor, key_NKD: Tensor, value_NKD: Tensor, plan: BlockedPlan) -> Tensor:
        num_kv_heads = key_NKD.shape[1]
        # Parts are merged in float32.
        dtype = _exact(query_NQD.dtype) if plan.prefixes else query_NQD.dtype
        out_NQD = torch.empty(query_NQD.shape, dtype=dtype)
        lse_NQ = torch.empty(query_NQD.shape[:2], dtype=_exact(dtype)) if plan.prefixes else None
        for tile in plan.tiles:
            query, key, value = (tile.take(x, num_kv_heads) for x in (query_NQD, key_NKD, value_NKD))
            out_XMD, lse_XM = _causal(query, key, value, lse_NQ is not None)
            tile.put(out_XMD, out_NQD)
            if lse_NQ is not None and lse_XM is not None:
                tile.put(lse_XM, lse_NQ)
        weights = []
        if lse_NQ is not None:
            parts = [(slice(None), lse_NQ.clone())]
            for prefix in plan.prefixes:
                key, value = (_heads_first(x[prefix.keys], 1, num_kv_heads) for x in (key_NKD, value_NKD))
                parts.append((prefix.queries, _merge_prefix(query_NQD, key, value, prefix, out_NQD, lse_NQ)))
            weights = [part_lse.sub_(lse_NQ[tokens]).exp_() for tokens, part_lse in parts]
        out_NQD = out_NQD.to(query_NQD.dtype)
        ctx.save_for_backward(query_NQD, key_NKD, value_NKD, *((out_NQD, *weights) if weights else ()))
        ctx.plan = plan
        return out_NQD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query_NQD, key_NKD, value_NKD, *merged = ctx.saved_tensors
        plan: BlockedPlan = ctx.plan
        inputs, num_kv_heads = (query_NQD, key_NKD, value_NKD), key_NKD.shape[1]
        # Gradients of parts are added in float32.
        dtype = _exact(query_NQD.dtype) if plan.prefixes else query_NQD.dtype
        totals = (
            torch.empty(query_NQD.shape, dtype=dtype),
            torch.empty(key_NKD.shape, dtype=dtype),
            torch.empty(value_NKD.shape, dtype=dtype),
        )
        grad_NQD, delta_NQ, own_delta_NQ = grads[0], None, None
        if merged:
            delta_NQ = (grads[0] * merged[0]).sum(-1, dtype=dtype)
            grad_NQD, own_delta_NQ = _weighted(grads[0], delta_NQ, merged[1])
        for tile in plan.tiles:
            query, key, value = (tile.take(x, num_kv_heads) for x in inputs)
            # What a padded position says must not reach the keys.
            grad = tile.take(grad_NQD, num_kv_heads, zero_padding=True)
            delta = tile.take(own_delta_NQ, num_kv_heads, zero_padding=True) if own_delta_NQ is not None else None
            for part, total in zip(_causal_gradient(query, key, value, grad, delta), totals, strict=True):
                tile.put(part, total)
        for prefix, weight_nQ in zip(plan.prefixes, merged[2:], strict=True):
            assert delta_NQ is not None
            _add_prefix_gradient(inputs, grads[0], delta_NQ, weight_nQ, prefix, totals)
        query_grad, key_grad, value_grad = (total.to(query_NQD.dtype) for total in totals)
        return query_grad, key_grad, value_grad, None


def _exact(dtype: torch.dtype) -> torch.dtype:
    """What softmax and sums are computed in."""
    return torch.promote_types(dtype, torch.float32)


@lru_cache(maxsize=8)
def _unseen(num_positions: int, group: int, dtype: torch.dtype) -> Tensor:
    """Added to the scores of `num_positions` positions among themselves, (M, positions): -inf on what is later.

    Its upper left corner serves fewer positions.
    """
    unseen = torch.full((num_positions, num_positions), -torch.inf, dtype=dtype).triu_(1)
    return unseen.repeat_interleave(group, dim=0)


def _scaled(query_XMD: Tensor) -> Tensor:
    """Queries whose products with keys are scores. It also scales their gradient."""
    return query_XMD * query_XMD.shape[2] ** -0.5


def _softmax(query_XMD: Tensor, key_XSD: Tensor, unseen: Tensor | None, with_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Probabilities (X, M, S) of scaled queries, and their scores' log-sum-exp, (X, M). `unseen` masks the last keys.

    With log-sum-exp they are float32. Without, they are rounded to the dtype of the queries, in the one pass that
    makes them.
    """
    scores = torch.bmm(query_XMD, key_XSD.transpose(1, 2))
    if unseen is not None:
        scores[:, :, -unseen.shape[1] :] += unseen
    if not with_lse:
        return torch.softmax(scores, -1), None
    probabilities = torch.softmax(scores, -1, dtype=_exact(scores.dtype))
    # The largest probability belongs to the largest score: log p = score - lse.
    return probabilities, scores.amax(-1).to(probabilities.dtype).sub_(probabilities.amax(-1).log_())


def _softmax_gradient(
    query_XMD: Tensor, key_XSD: Tensor, value_XSD: Tensor, grad_XMD: Tensor, delta_XM: Tensor | None,
    unseen: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the scaled query, key and value of one block.

    Where a block is one part of what its queries see, grad and delta carry the part's weight; delta is the sum of
    gradient times result, all parts included. Without delta the block is all they see.
    """
    probabilities, _ = _softmax(query_XMD, key_XSD, unseen, with_lse=False)
    value_grad = torch.bmm(probabilities.transpose(1, 2), grad_XMD)
    score_grad = torch.bmm(grad_XMD, value_XSD.transpose(1, 2))
    if delta_XM is None:
        score_grad = torch.ops.aten._softmax_backward_data(score_grad, probabilities, -1, score_grad.dtype)
    else:
        exact = _exact(score_grad.dtype)
        score_grad = score_grad.to(exact).sub_(delta_XM.unsqueeze(-1)).mul_(probabilities).to(query_XMD.dtype)
    return torch.bmm(score_grad, key_XSD), torch.bmm(score_grad.transpose(1, 2), query_XMD), value_grad


def _causal_blocks(num_queries: int, num_positions: int, dtype: torch.dtype) -> Iterator[tuple[slice, slice, Tensor]]:
    """(query positions, key positions, mask) of each block of a causal row, the last one first."""
    group, stop = num_queries // num_positions, num_positions
    unseen = _unseen(_CAUSAL_POSITIONS, group, dtype)
    for num_left in range(-(-num_positions // _CAUSAL_POSITIONS), 0, -1):
        size = -(-stop // num_left)  # all nearly alike
        start = stop - size
        yield slice(start * group, stop * group), slice(stop), unseen[: size * group, :size]
        stop = start


def _causal(query_XMD: Tensor, key_XTD: Tensor, value_XTD: Tensor, with_lse: bool) -> tuple[Tensor, Tensor | None]:
    """The result (X, M, D) of rows that attend causally to themselves, and the log-sum-exp of their scores."""
    query_XMD, outs, lses = _scaled(query_XMD), [], []
    for queries, keys, unseen in _causal_blocks(query_XMD.shape[1], key_XTD.shape[1], query_XMD.dtype):
        probabilities, lse = _softmax(query_XMD[:, queries], key_XTD[:, keys], unseen, with_lse)
        outs.append(torch.bmm(probabilities.to(query_XMD.dtype), value_XTD[:, keys]))
        if lse is not None:
            lses.append(lse)
    return _joined(outs), _joined(lses) if with_lse else None


def _joined(parts: list[Tensor]) -> Tensor:
    """The results of the blocks, which come last first, along axis 1."""
    return parts[0] if len(parts) == 1 else torch.cat(parts[::-1], dim=1)


def _causal_gradient(
    query_XMD: Tensor, key_XTD: Tensor, value_XTD: Tensor, grad_XMD: Tensor, delta_XM: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value of `_causal`."""
    query_XMD = _scaled(query_XMD)
    query_grads, key_grad, value_grad = [], None, None
    for queries, keys, unseen in _causal_blocks(query_XMD.shape[1], key_XTD.shape[1], query_XMD.dtype):
        # Each is an operand of several products, and a product copies what is not contiguous.
        query, key, value, grad = (
            x.contiguous() for x in (query_XMD[:, queries], key_XTD[:, keys], value_XTD[:, keys], grad_XMD[:, queries])
        )
        delta = delta_XM[:, queries] if delta_XM is not None else None
        query_part, key_part, value_part = _softmax_gradient(query, key, value, grad, delta, unseen)
        query_grads.append(query_part)
        if key_grad is None or value_grad is None:  # the last block sees every key
            key_grad, value_grad = key_part, value_part
            if queries.start > 0:  # more blocks to add
                key_grad, value_grad = key_part.to(_exact(key_part.dtype)), value_part.to(_exact(value_part.dtype))
        else:
            key_grad[:, keys] += key_part
            value_grad[:, keys] += value_part
    assert key_grad is not None and value_grad is not None
    return _scaled(_joined(query_grads)), key_grad, value_grad


def _merge_prefix(
    query_NQD: Tensor, key_KSD: Tensor, value_KSD: Tensor, prefix: _Prefix, out_NQD: Tensor, lse_NQ: Tensor
) -> Tensor:
    """Merge attention to a prefix into the result and its log-sum-exp, in place; the part's own log-sum-exp (n, Q)."""
    num_kv_heads, num_query_heads = key_KSD.shape[0], query_NQD.shape[1]
    part_lses = []
    for run in prefix.runs:
        query_KMD = _scaled(_heads_first(query_NQD[run], 1, num_kv_heads))
        probabilities, lse_KM = _softmax(query_KMD, key_KSD, None, with_lse=True)
        assert lse_KM is not None
        part_nQD = _tokens_first(torch.bmm(probabilities.to(query_KMD.dtype), value_KSD), 1, num_query_heads)
        part_lse_nQ = _tokens_first(lse_KM, 1, num_query_heads)
        merged_nQ = torch.logaddexp(lse_NQ[run], part_lse_nQ)
        out_NQD[run] *= (lse_NQ[run] - merged_nQ).exp_().unsqueeze(-1)
        out_NQD[run] += part_nQD * (part_lse_nQ - merged_nQ).exp_().unsqueeze(-1)
        lse_NQ[run] = merged_nQ
        part_lses.append(part_lse_nQ)
    return torch.cat(part_lses)


def _add_prefix_gradient(
    inputs: tuple[Tensor, Tensor, Tensor], grad_NQD: Tensor, delta_NQ: Tensor, weight_nQ: Tensor, prefix: _Prefix,
    totals: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Add what attention to a prefix gives to the gradients of queries, and of the prefix's keys and values."""
    query_NQD, num_kv_heads = inputs[0], inputs[1].shape[1]
    key_KSD, value_KSD = (_heads_first(x[prefix.keys], 1, num_kv_heads) for x in inputs[1:])
    key_grad, value_grad = (torch.zeros(key_KSD.shape, dtype=totals[1].dtype) for _ in range(2))
    for run in prefix.runs:
        weight = weight_nQ[run.start - prefix.queries.start : run.stop - prefix.queries.start]
        grad, delta = (_heads_first(x, 1, num_kv_heads) for x in _weighted(grad_NQD[run], delta_NQ[run], weight))
        query_KMD = _scaled(_heads_first(query_NQD[run], 1, num_kv_heads))
        query_part, key_part, value_part = _softmax_gradient(query_KMD, key_KSD, value_KSD, grad, delta, None)
        totals[0][run] += _tokens_first(_scaled(query_part), 1, query_NQD.shape[1])
        key_grad += key_part
        value_grad += value_part
    totals[1][prefix.keys] += _tokens_first(key_grad, 1, num_kv_heads)
    totals[2][prefix.keys] += _tokens_first(value_grad, 1, num_kv_heads)


def _weighted(grad_nQD: Tensor, delta_nQ: Tensor, weight_nQ: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient and delta of a part that counts with this weight."""
    return grad_nQD * weight_nQ.unsqueeze(-1).to(grad_nQD.dtype), delta_nQ * weight_nQ
