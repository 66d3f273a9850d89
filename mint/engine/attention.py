"""Attention over packed tokens: pad rows of similar length together, attend, unpad.

Axes: _N packed tokens, _B rows, _T padded positions, _P padded prefix positions, _Q query heads, _K key/value heads,
_D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mint.engine.batching import AttentionBlock, MicroBatch, Rows


class _Reindex(torch.autograd.Function):
    """Rows of x by index, where `inverse` undoes `index` on every row that matters.

    The gradient is a gather too. The general gradient of indexing is a scatter-add, which costs more than the attention
    itself here and is not deterministic on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grads[0].index_select(0, inverse), None, None


class _Unpad(torch.autograd.Function):
    """Real tokens of a padded tensor; the gradient of padding is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, unpad: Tensor) -> Tensor:
        ctx.save_for_backward(unpad)
        ctx.num_rows = x.shape[0]
        return x.index_select(0, unpad)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (unpad,) = ctx.saved_tensors
        padded = grads[0].new_zeros(ctx.num_rows, *grads[0].shape[1:])
        return padded.index_copy_(0, unpad, grads[0]), None


class _DeviceRows:
    """A `Rows` with its indices on the device."""

    def __init__(self, rows: Rows, device: torch.device) -> None:
        self.slice = slice(rows.start, rows.stop)
        self.num_rows, self.width = rows.pad_BT.shape
        self.is_rectangular = bool((rows.lengths_B == self.width).all())
        self.lengths_B = torch.from_numpy(rows.lengths_B).to(device)
        self._pad = torch.from_numpy(rows.pad_BT.reshape(-1)).to(device)
        self._unpad = torch.from_numpy(rows.unpad_N).to(device)

    def pad(self, x: Tensor) -> Tensor:
        """(N, heads, D) -> (B, T, heads, D)."""
        own = x[self.slice]
        padded = own if self.is_rectangular else _Reindex.apply(own, self._pad, self._unpad)
        return padded.view(self.num_rows, self.width, *x.shape[1:])  # type: ignore[union-attr]

    def unpad(self, x: Tensor) -> Tensor:
        """(B, T, heads, D) -> (n, heads, D)."""
        flat = x.reshape(self.num_rows * self.width, *x.shape[2:])
        return flat if self.is_rectangular else _Unpad.apply(flat, self._unpad)  # type: ignore[return-value]


class PackedAttention:
    """`attend` for a whole micro-batch: causal within each sequence, shared prefixes included.

    on_key_value(layer, key_NKD, value_NKD), if given, sees the keys and values of each layer (prefill keeps them).
    """

    def __init__(
        self, batch: MicroBatch, device: torch.device, on_key_value: Callable[[int, Tensor, Tensor], None] | None = None
    ) -> None:
        self._blocks = [_DeviceBlock(block, device) for block in batch.blocks]
        self._on_key_value = on_key_value

    def __call__(self, i_layer: int, query_NQD: Tensor, key_NKD: Tensor, value_NKD: Tensor) -> Tensor:
        if self._on_key_value is not None:
            self._on_key_value(i_layer, key_NKD, value_NKD)
        outputs = [block(query_NQD, key_NKD, value_NKD) for block in self._blocks]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class _DeviceBlock:
    def __init__(self, block: AttentionBlock, device: torch.device) -> None:
        self._rows = _DeviceRows(block.rows, device)
        self._prefix = _DeviceRows(block.prefix, device) if block.prefix is not None else None
        self._prefix_of_B = self._is_visible_BTS = None
        if block.prefix is not None and block.prefix_of_B is not None:
            self._prefix_of_B = torch.from_numpy(block.prefix_of_B).to(device)
            self._is_visible_BTS = torch.from_numpy(_visible_with_prefix(block.rows, block.prefix, block.prefix_of_B))
            self._is_visible_BTS = self._is_visible_BTS.to(device)

    def __call__(self, query_NQD: Tensor, key_NKD: Tensor, value_NKD: Tensor) -> Tensor:
        query, key, value = (self._rows.pad(x) for x in (query_NQD, key_NKD, value_NKD))
        if self._prefix is None or self._prefix_of_B is None or self._is_visible_BTS is None:
            attended = attention(query, key, value, is_visible=None)
        else:
            key = torch.cat([self._prefix.pad(key_NKD).index_select(0, self._prefix_of_B), key], dim=1)
            value = torch.cat([self._prefix.pad(value_NKD).index_select(0, self._prefix_of_B), value], dim=1)
            attended = attention(query, key, value, self._is_visible_BTS.unsqueeze(1))
        return self._rows.unpad(attended)


def attention(query: Tensor, key: Tensor, value: Tensor, is_visible: Tensor | None) -> Tensor:
    """Scaled dot-product attention with grouped heads.

    query (B, T, Q, D), key and value (B, S, K, D) -> (B, T, Q, D). is_visible (B, 1, T, S) is True where a query may
    look; None means causal, for S == T (padding sits at the end of a row, where no real query looks).
    """
    group = query.shape[2] // key.shape[2]
    if group > 1:
        key, value = key.repeat_interleave(group, dim=2), value.repeat_interleave(group, dim=2)
    attended = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
        attn_mask=is_visible, is_causal=is_visible is None,
    )  # fmt: skip
    return attended.transpose(1, 2)


def _visible_with_prefix(rows: Rows, prefix: Rows, prefix_of_B: np.ndarray) -> np.ndarray:
    """(B, T, P + T): each row sees the real tokens of its prefix and itself causally."""
    width, prefix_width = rows.pad_BT.shape[1], prefix.pad_BT.shape[1]
    prefix_lengths_B = prefix.lengths_B[prefix_of_B]
    sees_prefix_BP = np.arange(prefix_width)[None, :] < prefix_lengths_B[:, None]
    sees_prefix = np.broadcast_to(sees_prefix_BP[:, None, :], (len(prefix_of_B), width, prefix_width))
    causal = np.broadcast_to(np.tri(width, dtype=bool)[None], (len(prefix_of_B), width, width))
    return np.concatenate([sees_prefix, causal], axis=2)
