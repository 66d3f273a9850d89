"""Attention of one new token per row to what is cached, where rows share the beginning of their prompts.

Axes: _B rows (sequences being decoded), _S slots, _K key/value heads, _Q query heads, _g query heads per key/value
head, _D head dimension, _T positions of a run, _X runs or slots; m slots of a tile.

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

    visible_X: real positions of each run, or of what each slot sees of the only run.
    """

    def __init__(self, cache: KVCache, visible_X: np.ndarray) -> None:
        self.cache = cache
        self._bias_XT: Tensor | None = None
        if (visible_X < cache.num_positions).any():
            is_visible_XT = np.arange(cache.num_positions)[None, :] < visible_X[:, None]
            bias_XT = torch.from_numpy(np.where(is_visible_XT, np.float32(0), np.float32(-np.inf)))
            self._bias_XT = bias_XT.to(cache.keys[0].device)

    def scores(self, i_layer: int, query_KSgD: Tensor) -> Tensor:
        """Shape (K, S * g, T); -inf where there is nothing to see."""
        key = self.cache.keys[i_layer].flatten(0, 1).transpose(1, 2)
        num_heads, head_dim = len(query_KSgD), query_KSgD.shape[-1]
        scores = _product(query_KSgD.view(key.shape[0], -1, head_dim), key)
        if self._bias_XT is not None:
            num_parts, width = self._bias_XT.shape
            scores.view(num_heads, num_parts, -1, width).add_(self._bias_XT[None, :, None, :])
        return scores.view(num_heads, -1, scores.shape[-1])

    def attended(self, i_layer: int, weights: Tensor) -> Tensor:
        """Values weighed by (K, S * g, T), shape (K, S * g, D)."""
        value = self.cache.values[i_layer].flatten(0, 1)
        # Views: the slots of a tile, and the query heads of a slot, lie one after another.
        batched = weights.unflatten(1, (self.cache.num_runs, -1)).flatten(0, 1)
        return _product(batched, value).view(*weights.shape[:2], -1)


class DecodeAttention:
    """`attend` of one decode step: stores each row's new key and value, then looks at everything the row has.

    own: where new keys and values go, to positions_B of slots_B, which are ascending; slots without a row are computed
    and ignored. places: everything rows see, `own` included.
    """

    def __init__(self, own: KVCache, slots_B: np.ndarray, positions_B: np.ndarray, places: Sequence[Place]) -> None:
        device = own.keys[0].device
        self._own, self._places = own, places
        self._slots_B = torch.from_numpy(slots_B).to(device)
        self._is_full = len(slots_B) == own.num_runs
        self._new_positions = own.flat_positions(self._slots_B, torch.from_numpy(positions_B).to(device))

    def __call__(self, i_layer: int, query_BQD: Tensor, key_BKD: Tensor, value_BKD: Tensor) -> Tensor:
        self._own.write_rows(i_layer, self._new_positions, key_BKD, value_BKD)
        query = self._query_of_slots(query_BQD, key_BKD.shape[1])
        scores = [place.scores(i_layer, query) for place in self._places]
        weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1).to(query.dtype)
        parts = zip(self._places, weights.split([score.shape[-1] for score in scores], dim=-1), strict=True)
        first, *others = (place.attended(i_layer, weight) for place, weight in parts)
        for other in others:
            first += other
        attended = first.view(query.shape)
        if not self._is_full:
            attended = attended.index_select(1, self._slots_B)
        return attended.transpose(0, 1).to(query_BQD.dtype).reshape(query_BQD.shape)

    def _query_of_slots(self, query_BQD: Tensor, num_heads: int) -> Tensor:
        """Scaled queries, (K, S, g, D): the query heads that share a key/value head become its query positions."""
        head_dim = query_BQD.shape[-1]
        rows = query_BQD.view(len(query_BQD), num_heads, -1, head_dim).transpose(0, 1)
        rows = rows.to(_product_dtype(self._own.keys[0])) * head_dim**-0.5
        if self._is_full:
            return rows.contiguous()
        slots = rows.new_zeros(num_heads, self._own.num_runs, *rows.shape[2:])
        return slots.index_copy_(1, self._slots_B, rows)


def _product_dtype(cached: Tensor) -> torch.dtype:
    """What to multiply in. Scores need float32, and only CUDA gives the product of two bfloat16 matrices in it."""
    return cached.dtype if cached.is_cuda else torch.float32


def _product(a: Tensor, cached: Tensor) -> Tensor:
    """Batched matrix product with a float32 result. Elsewhere than on CUDA, `cached` is widened layer by layer."""
    if a.dtype == torch.float32:
        return torch.bmm(a, cached.float())
    return torch.bmm(a, cached, out_dtype=torch.float32)
