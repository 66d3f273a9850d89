"""Keys and values of the sequences being decoded, in place for their whole life.

Axes: _B rows, _K key/value heads, _T cached positions, _D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mint.engine.decoder_shape import DecoderShape

_MIN_ROWS = 8
_MIN_POSITIONS = 64


class KVCache:
    """Rows 0 .. num_rows-1 are in use and contiguous; capacity doubles when rows or positions run out."""

    def __init__(self, shape: DecoderShape, device: torch.device, dtype: torch.dtype) -> None:
        self._shape = shape
        self._device, self._dtype = device, dtype
        self._num_slots, self._num_positions = 0, 0
        self.num_rows = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def reserve(self, num_rows: int, num_positions: int) -> None:
        """Make room for `num_rows` rows of `num_positions` positions; what is cached stays."""
        if num_rows <= self._num_slots and num_positions <= self._num_positions:
            return
        slots = max(self._num_slots, _MIN_ROWS)
        while slots < num_rows:
            slots *= 2
        positions = max(self._num_positions, _MIN_POSITIONS)
        while positions < num_positions:
            positions *= 2
        self.keys = [self._grown(i, self.keys, slots, positions) for i in range(self._shape.num_layers)]
        self.values = [self._grown(i, self.values, slots, positions) for i in range(self._shape.num_layers)]
        self._num_slots, self._num_positions = slots, positions

    def _grown(self, i_layer: int, old: list[Tensor], slots: int, positions: int) -> Tensor:
        # Zeros, not empty memory: masked positions must not hold NaN, which would survive a weight of zero.
        new = torch.zeros(
            slots, self._shape.num_kv_heads, positions, self._shape.head_dim, device=self._device, dtype=self._dtype
        )
        if old:
            new[: self.num_rows, :, : self._num_positions] = old[i_layer][: self.num_rows]
        return new

    def append_rows(self, keys: list[Tensor], values: list[Tensor], num_copies: int) -> None:
        """Add `num_copies` rows that start with the same prompt; keys and values are (T, K, D) per layer."""
        length = keys[0].shape[0]
        rows = slice(self.num_rows, self.num_rows + num_copies)
        for i_layer, (key_TKD, value_TKD) in enumerate(zip(keys, values, strict=True)):
            self.keys[i_layer][rows, :, :length] = key_TKD.transpose(0, 1)
            self.values[i_layer][rows, :, :length] = value_TKD.transpose(0, 1)
        self.num_rows += num_copies

    def drop_row(self, row: int, last_row_length: int) -> None:
        """Free `row`: the last row takes its place."""
        last = self.num_rows - 1
        if row != last:
            for cache in (*self.keys, *self.values):
                cache[row, :, :last_row_length] = cache[last, :, :last_row_length]
        self.num_rows = last

    def clear(self) -> None:
        """Forget all rows and give the memory back."""
        self.keys, self.values = [], []
        self.num_rows = self._num_slots = self._num_positions = 0
