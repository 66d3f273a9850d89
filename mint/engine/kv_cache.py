"""Keys and values that decoding reads: runs of positions, in place for as long as rows neither join nor leave.

Axes: _K key/value heads, _R runs, _T cached positions, _N packed prompt tokens, _D head dimension, _B rows written.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mint.engine.decoder_shape import DecoderShape

_STEP = 16
"""Positions that are added at once, until an eighth of those there are is more. All of a cache is read whether used or
not: a part of each run would be read at half the speed, and more room would be read in vain."""


class KVCache:
    """Per layer a (K, R, T, D) tensor of keys and one of values.

    `batched_keys` and `batched_values` are the same as factors of a batched product: (K * R, D, T) and (K * R, T, D).
    A run is one sequence of positions: a prompt that several rows share, or what one row has sampled itself. How many
    positions of a run are real is the caller's to know; the others hold finite numbers.
    """

    def __init__(self, shape: DecoderShape, device: torch.device, dtype: torch.dtype) -> None:
        self._shape = shape
        self._device, self._dtype = device, dtype
        self.num_runs = self.num_positions = 0
        self.keys = [self._empty(0, 0) for _ in range(shape.num_layers)]
        self.values = [self._empty(0, 0) for _ in range(shape.num_layers)]
        self.batched_keys: list[Tensor] = []
        self.batched_values: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return sum(cache.numel() * cache.element_size() for cache in (*self.keys, *self.values))

    def _empty(self, num_runs: int, num_positions: int) -> Tensor:
        # Zeros, not empty memory: masked positions must not hold NaN, which would survive a weight of zero.
        size = (self._shape.num_kv_heads, num_runs, num_positions, self._shape.head_dim)
        return torch.zeros(size, device=self._device, dtype=self._dtype)

    def reserve(self, num_positions: int) -> None:
        """Make room for `num_positions` in every run; what is cached stays."""
        if num_positions > self.num_positions:
            step = max(_STEP, self.num_positions // 8)
            self.rearrange(np.arange(self.num_runs), -(-num_positions // step) * step)

    def rearrange(self, source_R: np.ndarray, num_positions: int) -> None:
        """Run i becomes what the first `num_positions` of run source_R[i] were.

        Where that is -1, it is a run whose content does not matter; positions that were not there are zero.
        """
        is_same = len(source_R) == self.num_runs and (source_R == np.arange(self.num_runs)).all()
        if is_same and num_positions == self.num_positions:
            return
        index = torch.from_numpy(np.maximum(source_R, 0)).to(self._device)
        kept = min(num_positions, self.num_positions) if self.num_runs else 0
        self.batched_keys, self.batched_values = [], []  # They would keep the old tensors.
        for cache in (self.keys, self.values):
            for i_layer, old in enumerate(cache):
                # One layer after the other: old and new exist together for one layer only.
                cache[i_layer] = self._empty(len(index), num_positions)
                if kept:
                    cache[i_layer][:, :, :kept] = (
                        old[:, :, :kept] if is_same else old[:, :, :kept].index_select(1, index)
                    )
        self.num_runs, self.num_positions = len(index), num_positions
        # Made here once, since each step of decoding reads them for each layer.
        self.batched_keys = [keys.flatten(0, 1).transpose(1, 2) for keys in self.keys]
        self.batched_values = [values.flatten(0, 1) for values in self.values]

    def write_runs(self, i_layer: int, runs: Tensor, source_RT: Tensor, key_NKD: Tensor, value_NKD: Tensor) -> None:
        """Set the first positions of `runs` to packed tokens: position t of the i-th to token source_RT[i, t]."""
        for cache, new_NKD in ((self.keys, key_NKD), (self.values, value_NKD)):
            new = new_NKD.index_select(0, source_RT.flatten()).unflatten(0, source_RT.shape)
            cache[i_layer][:, runs, : source_RT.shape[1]] = new.permute(2, 0, 1, 3).to(self._dtype)

    def target(self, runs_B: np.ndarray, positions_B: np.ndarray) -> int | Tensor:
        """What tells `write_rows` to write position positions_B[b] of run runs_B[b], which are ascending.

        The position itself where it is the same in every run: a plain copy is twice as fast as an index.
        """
        if len(runs_B) == self.num_runs and (positions_B == positions_B[0]).all():
            return int(positions_B[0])
        heads_K = np.arange(self._shape.num_kv_heads) * (self.num_runs * self.num_positions)
        index_KB = heads_K[:, None] + (runs_B * self.num_positions + positions_B)[None, :]
        return torch.from_numpy(index_KB.ravel()).to(self._device)

    def write_rows(self, i_layer: int, target: int | Tensor, key_BKD: Tensor, value_BKD: Tensor) -> None:
        """Set one position of each of B runs."""
        for cache, new_BKD in ((self.keys, key_BKD), (self.values, value_BKD)):
            new_KBD = new_BKD.transpose(0, 1)
            if isinstance(target, int):
                cache[i_layer][:, :, target] = new_KBD
            else:
                new = new_KBD.to(self._dtype).reshape(-1, self._shape.head_dim)
                cache[i_layer].view(-1, self._shape.head_dim).index_copy_(0, target, new)
