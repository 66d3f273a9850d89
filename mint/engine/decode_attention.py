"""Attention of one new token per row to what is cached, where rows share the beginning of their prompts.

Axes: _B rows (sequences being decoded), _S slots, _U tiles, _K key/value heads, _Q query heads, _D head dimension,
_T positions of a run; g query heads per key/value head, m slots of a tile.

What a row sees lies in three places: the beginning that all prompts share (one run), the rest of its prompt (one run
per tile of m slots), and its own tokens (one run per slot). Each place is one batched matrix product in which the rows
that share a run are its query positions: a run is read once, however many rows share it. One softmax over the scores of
all three makes it exact. (Shared beginnings: Juravsky et al., 2024, "Hydragen".)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mint.engine.kv_cache import KVCache


@dataclass(frozen=True)
class Visible:
    """How much each row sees, as numbers of positions.

    common: of the run that all share. sees_common_S: False for the slots that do not share it.
    """

    common: int
    sees_common_S: np.ndarray
    prompt_U: np.ndarray
    own_S: np.ndarray


class DecodeAttention:
    """`attend` of one decode step: stores each row's new key and value, then looks at everything the row has.

    slots_B: the slot of each row, ascending; slots without a row are computed and ignored. `visible.own_S` counts the
    new token.
    """

    def __init__(self, common: KVCache, prompts: KVCache, own: KVCache, slots_B: np.ndarray, visible: Visible) -> None:
        device = own.keys[0].device
        self._own, self._num_slots = own, own.num_runs
        self._slots_B = torch.from_numpy(slots_B).to(device)
        self._is_full = len(slots_B) == self._num_slots
        self._new_positions = own.flat_positions(self._slots_B, torch.from_numpy(visible.own_S[slots_B] - 1).to(device))
        common_S = np.where(visible.sees_common_S, visible.common, 0)
        self._places = [(prompts, _bias(visible.prompt_U, prompts, device)), (own, _bias(visible.own_S, own, device))]
        if visible.common:
            self._places.insert(0, (common, _bias(common_S, common, device)))

    def __call__(self, i_layer: int, query_BQD: Tensor, key_BKD: Tensor, value_BKD: Tensor) -> Tensor:
        self._own.write_rows(i_layer, self._new_positions, key_BKD, value_BKD)
        num_heads, head_dim = key_BKD.shape[1:]
        query = self._query_of_slots(query_BQD, num_heads)
        scores = []
        for cache, bias in self._places:
            key = cache.keys[i_layer].flatten(0, 1).transpose(1, 2)
            score = _product(query.view(key.shape[0], -1, head_dim), key)
            if bias is not None:
                score.view(num_heads, len(bias), -1, bias.shape[1]).add_(bias[None, :, None, :])
            scores.append(score.view(num_heads, -1, score.shape[-1]))
        weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1).to(query.dtype)
        attended = torch.zeros((), device=query.device)
        for (cache, _), weight in zip(self._places, weights.split([s.shape[-1] for s in scores], dim=-1), strict=True):
            value = cache.values[i_layer].flatten(0, 1)
            # Views: the slots of a tile, and the query heads of a slot, lie one after another.
            batched = weight.unflatten(1, (cache.num_runs, -1)).flatten(0, 1)
            attended = attended + _product(batched, value).view(query.shape)
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
        slots = rows.new_zeros(num_heads, self._num_slots, *rows.shape[2:])
        return slots.index_copy_(1, self._slots_B, rows)


def _product_dtype(cached: Tensor) -> torch.dtype:
    """What to multiply in. Scores need float32, and only CUDA gives the product of two bfloat16 matrices in it."""
    return cached.dtype if cached.is_cuda else torch.float32


def _product(a: Tensor, cached: Tensor) -> Tensor:
    """Batched matrix product with a float32 result. Elsewhere than on CUDA, `cached` is widened layer by layer."""
    if a.dtype == torch.float32:
        return torch.bmm(a, cached.float())
    return torch.bmm(a, cached, out_dtype=torch.float32)


def _bias(visible_R: np.ndarray, cache: KVCache, device: torch.device) -> Tensor | None:
    """(R, T): 0 where run r has a position, -inf where not; None where every run is full."""
    if (visible_R == cache.num_positions).all():
        return None
    is_visible_RT = np.arange(cache.num_positions)[None, :] < visible_R[:, None]
    return torch.from_numpy(np.where(is_visible_RT, np.float32(0), np.float32(-np.inf))).to(device)
