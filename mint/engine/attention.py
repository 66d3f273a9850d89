"""Attention over packed tokens, by the means that suit the device.

Axes: _N packed tokens, _B rows, _T padded positions, _S keys a row sees, _Q query heads, _K key/value heads, _D head
dimension.

On a CPU all of it is `blocked_attention`. Elsewhere rows of similar length are padded together and PyTorch's scaled
dot-product attention chooses its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mint.engine.batching import MicroBatch, Prefix, Rows
from mint.engine.blocked_attention import BlockedPlan, blocked_attention


class PackedAttention:
    """`attend` for a whole micro-batch: causal within each sequence, shared prefixes included.

    on_key_value(layer, key_NKD, value_NKD), if given, sees the keys and values of each layer (prefill keeps them).
    use_blocks: whether `blocked_attention` is used; by default where it is faster, on a CPU.
    """

    def __init__(
        self, batch: MicroBatch, device: torch.device,
        on_key_value: Callable[[int, Tensor, Tensor], None] | None = None, use_blocks: bool | None = None,
    ) -> None:  # fmt: skip
        self._batch = batch
        self._on_key_value = on_key_value
        self._use_blocks = device.type == "cpu" if use_blocks is None else use_blocks
        self._blocked_plan: BlockedPlan | None = None
        self._padded = None if self._use_blocks else _PaddedAttention(batch, device)

    def __call__(self, i_layer: int, query_NQD: Tensor, key_NKD: Tensor, value_NKD: Tensor) -> Tensor:
        if self._on_key_value is not None:
            self._on_key_value(i_layer, key_NKD, value_NKD)
        if self._padded is not None:
            return self._padded(query_NQD, key_NKD, value_NKD)
        if self._blocked_plan is None:
            self._blocked_plan = BlockedPlan(self._batch, query_NQD.shape[1], query_NQD.dtype)
        return blocked_attention(query_NQD, key_NKD, value_NKD, self._blocked_plan)


class _PaddedAttention:
    """Pad each block of rows, attend, and bring the results back into packed order."""

    def __init__(self, batch: MicroBatch, device: torch.device) -> None:
        self._blocks = [_PaddedBlock(rows, batch.prefixes, device) for rows in batch.blocks]
        index = np.concatenate([rows.index_BT.reshape(-1) for rows in batch.blocks])
        is_real = np.concatenate([_is_real(rows).reshape(-1) for rows in batch.blocks])
        place_N = np.empty(len(batch.tokens_N), dtype=np.int64)
        place_N[index[is_real]] = np.flatnonzero(is_real)
        self._index, self._place_N = (torch.from_numpy(x).to(device) for x in (index, place_N))

    def __call__(self, query_NQD: Tensor, key_NKD: Tensor, value_NKD: Tensor) -> Tensor:
        query, key, value = (_Pad.apply(x, self._index, self._place_N) for x in (query_NQD, key_NKD, value_NKD))
        outputs, start = [], 0
        for block in self._blocks:
            own = slice(start, start + block.size)
            outputs.append(block(query[own], key[own], value[own], key_NKD, value_NKD))
            start += block.size
        return _Unpad.apply(torch.cat(outputs), self._place_N)  # type: ignore[return-value]


class _Pad(torch.autograd.Function):
    """Rows of x by index; `place` says where each row's one true copy is.

    The gradient is a gather too: padding gets none. The general gradient of indexing is a scatter-add.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return grads[0].index_select(0, place), None, None


class _Unpad(torch.autograd.Function):
    """The rows of x at `place`; the gradient of the others, padding, is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.num_rows = x.shape[0]
        return x.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (place,) = ctx.saved_tensors
        padded = grads[0].new_zeros(ctx.num_rows, *grads[0].shape[1:])
        return padded.index_copy_(0, place, grads[0]), None


class _PaddedBlock:
    """Rows that attend to themselves and, where they continue prefixes, to a copy of those each."""

    def __init__(self, rows: Rows, prefixes: Sequence[Prefix], device: torch.device) -> None:
        num_rows, num_positions = rows.index_BT.shape
        self.size, self._num_rows = rows.index_BT.size, num_rows
        self._context_BS = self._is_visible = None
        contexts = [_context(int(start), prefixes) for start in rows.index_BT[:, 0]]
        width = max(len(context) for context in contexts)
        if width == 0:
            return
        lengths_B = np.asarray([len(context) for context in contexts])
        is_context_BS = np.arange(width)[None, :] < lengths_B[:, None]
        context_BS = np.zeros(is_context_BS.shape, dtype=np.int64)
        context_BS[is_context_BS] = np.concatenate(contexts)
        sees_context = np.broadcast_to(is_context_BS[:, None, :], (num_rows, num_positions, width))
        sees_own = np.broadcast_to(np.tri(num_positions, dtype=bool), (num_rows, num_positions, num_positions))
        self._context_BS = torch.from_numpy(context_BS).to(device)
        self._is_visible = torch.from_numpy(np.concatenate([sees_context, sees_own], axis=2)).to(device).unsqueeze(1)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, key_NKD: Tensor, value_NKD: Tensor) -> Tensor:
        query, key, value = (x.unflatten(0, (self._num_rows, -1)) for x in (query, key, value))
        if self._context_BS is not None:
            # Indexing, not index_select: its gradient adds up in a fixed order on a GPU.
            key = torch.cat([key_NKD[self._context_BS], key], dim=1)
            value = torch.cat([value_NKD[self._context_BS], value], dim=1)
        return attention(query, key, value, self._is_visible).flatten(0, 1)


def attention(query: Tensor, key: Tensor, value: Tensor, is_visible: Tensor | None) -> Tensor:
    """Scaled dot-product attention with grouped heads.

    query (B, T, Q, D), key and value (B, S, K, D) -> (B, T, Q, D). is_visible (B, 1, T, S) is True where a query may
    look; None means causal, for S == T (padding sits at the end of a row, where no real query looks).
    """
    group = query.shape[2] // key.shape[2]
    # Of the fused kernels only the one for half precision without a mask takes grouped heads as they are.
    takes_groups = is_visible is None and query.dtype in (torch.bfloat16, torch.float16)
    if group > 1 and not takes_groups:
        key, value = key.repeat_interleave(group, dim=2), value.repeat_interleave(group, dim=2)
    attended = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
        attn_mask=is_visible, is_causal=is_visible is None, enable_gqa=group > 1 and takes_groups,
    )  # fmt: skip
    return attended.transpose(1, 2)


def _is_real(rows: Rows) -> np.ndarray:
    return np.arange(rows.index_BT.shape[1])[None, :] < rows.lengths_B[:, None]


def _context(start: int, prefixes: Sequence[Prefix]) -> np.ndarray:
    """Packed indices of all prefixes that the run at `start` continues, the outermost first."""
    own = sorted((prefix.start, prefix.stop) for prefix in prefixes if prefix.stop <= start < prefix.end)
    return np.concatenate([np.arange(0), *(np.arange(first, stop) for first, stop in own)])
