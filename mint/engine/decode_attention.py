"""Attention of one new token per row to what is cached, where rows share the beginning of their prompts.

Axes: _B rows (sequences being decoded), _S slots, _K key/value heads, _Q query heads, _g query heads per key/value
head, _D head dimension, _T positions of a run, or of all that a slot sees; m slots of a tile.

What a row sees lies in three places: the beginning that all prompts share (one run), the rest of its prompt (one run
per tile of m slots), and its own tokens (one run per slot). Each place is one batched matrix product in which the rows
that share a run are its query positions: a run is read once, however many rows share it. One softmax over the scores of
all three makes it exact. (Shared beginnings: Juravsky et al., 2024, "Hydragen".)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mint.engine.kv_cache import KVCache


class Place:
    """Runs that some or all rows see, and how many positions of each are real.

    visible_S: real positions of what each slot sees. bias_ST adds -inf to the scores of the others; None where all are
    real.
    """

    def __init__(self, cache: KVCache, visible_S: np.ndarray) -> None:
        self.cache = cache
        self.bias_ST: Tensor | None = None
        if (visible_S < cache.num_positions).any():
            is_visible_ST = np.arange(cache.num_positions)[None, :] < visible_S[:, None]
            bias_ST = torch.from_numpy(np.where(is_visible_ST, np.float32(0), np.float32(-np.inf)))
            self.bias_ST = bias_ST.to(cache.keys[0])

    def scores(self, i_layer: int, query_KSgD: Tensor) -> Tensor:
        """Shape (K, S * g, T)."""
        key = self.cache.batched_keys[i_layer]
        # Views: the slots of a tile, and the query heads of a slot, lie one after another.
        batched = query_KSgD.view(key.shape[0], -1, key.shape[1])
        return _product(batched, key).view(len(query_KSgD), -1, key.shape[2])

    def attended(self, i_layer: int, weights: Tensor, others: Tensor | None) -> Tensor:
        """Values weighed by (K, S * g, T), added to `others` in place if there are any; shape (K, S * g, D)."""
        value = self.cache.batched_values[i_layer]
        batched = weights.unflatten(1, (self.cache.num_runs, -1)).flatten(0, 1)
        if others is None:
            return _product(batched, value).view(*weights.shape[:2], -1)
        if batched.dtype == others.dtype:
            others.view(*batched.shape[:2], -1).baddbmm_(batched, value)
            return others
        return others.add_(_product(batched, value).view_as(others))


class DecodeAttention:
    """`attend` of one decode step: stores each row's new key and value, then looks at everything the row has.

    own: where new keys and values go, to positions_B of slots_B, which are ascending; slots without a row are computed
    and ignored. places: everything rows see, `own` included.
    """

    def __init__(self, own: KVCache, slots_B: np.ndarray, positions_B: np.ndarray, places: Sequence[Place]) -> None:
        cached = own.keys[0]
        self._own, self._places = own, places
        self._slots_B = torch.from_numpy(slots_B).to(cached.device)
        self._is_full = len(slots_B) == own.num_runs
        self._target = own.target(slots_B, positions_B)
        self._widths = [place.cache.num_positions for place in places]
        self._bias_ST: Tensor | None = None
        if any(place.bias_ST is not None for place in places):
            biases = [
                cached.new_zeros(own.num_runs, width) if place.bias_ST is None else place.bias_ST
                for place, width in zip(places, self._widths, strict=True)
            ]
            self._bias_ST = torch.cat(biases, dim=1)

    def __call__(self, i_layer: int, query_BQD: Tensor, key_BKD: Tensor, value_BKD: Tensor) -> Tensor:
        self._own.write_rows(i_layer, self._target, key_BKD, value_BKD)
        query = self._query_of_slots(query_BQD, key_BKD.shape[1])
        weights = self._weights(i_layer, query)
        attended: Tensor | None = None
        for place, weight in zip(self._places, weights.split(self._widths, dim=-1), strict=True):
            attended = place.attended(i_layer, weight, attended)
        assert attended is not None, "there is always a prompt"
        attended = attended.view(query.shape)
        if not self._is_full:
            attended = attended.index_select(1, self._slots_B)
        return attended.transpose(0, 1).to(query_BQD.dtype).reshape(query_BQD.shape)

    def _weights(self, i_layer: int, query_KSgD: Tensor) -> Tensor:
        """How much each query takes of all positions of all places, shape (K, S * g, T)."""
        scores = torch.cat([place.scores(i_layer, query_KSgD) for place in self._places], dim=-1)
        if self._bias_ST is not None:
            scores.view(*query_KSgD.shape[:3], -1).add_(self._bias_ST.unsqueeze(1))
        return torch.softmax(scores, dim=-1).to(query_KSgD.dtype)

    def _query_of_slots(self, query_BQD: Tensor, num_heads: int) -> Tensor:
        """Scaled queries, (K, S, g, D): the query heads that share a key/value head become its query positions."""
        head_dim = query_BQD.shape[-1]
        rows = query_BQD.unflatten(1, (num_heads, -1)).transpose(0, 1)
        if self._is_full:
            return torch.mul(rows, head_dim**-0.5, out=torch.empty(rows.shape, dtype=rows.dtype, device=rows.device))
        slots = rows.new_zeros(num_heads, self._own.num_runs, *rows.shape[2:])
        return slots.index_copy_(1, self._slots_B, rows * head_dim**-0.5)


def _product(a: Tensor, cached: Tensor) -> Tensor:
    """Batched matrix product, on CUDA with a float32 result, as training's attention has it there.

    On a CPU the scores of bfloat16 are rounded, in training (`blocked_attention`) and so here: widening what is cached
    would take several times as long as the product.
    """
    if a.is_cuda and a.dtype != torch.float32:
        return torch.bmm(a, cached, out_dtype=torch.float32)
    return torch.bmm(a, cached)
