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
        self._common, self._prompts, self._own = common, prompts, own
        self._num_slots, self._num_tiles = own.num_runs, prompts.num_runs
        self._slots_B = torch.from_numpy(slots_B).to(device)
        self._is_full = len(slots_B) == self._num_slots
        self._new_positions = own.flat_positions(self._slots_B, torch.from_numpy(visible.own_S[slots_B] - 1).to(device))
        self._num_common = visible.common
        self._num_prompt, self._num_own = int(visible.prompt_U.max()), int(visible.own_S.max())
        self._common_bias = _bias(np.where(visible.sees_common_S, visible.common, 0), visible.common, device)
        self._prompt_bias = _bias(visible.prompt_U, self._num_prompt, device)
        self._own_bias = _bias(visible.own_S, self._num_own, device)

    def __call__(self, i_layer: int, query_BQD: Tensor, key_BKD: Tensor, value_BKD: Tensor) -> Tensor:
        self._own.write_rows(i_layer, self._new_positions, key_BKD, value_BKD)
        num_heads, head_dim = key_BKD.shape[1:]
        query = self._query_of_slots(query_BQD, num_heads)
        keys = [key.transpose(1, 2) for key in self._runs([cache.keys[i_layer] for cache in self._caches])]
        values = self._runs([cache.values[i_layer] for cache in self._caches])

        scores = [_product(query.view(key.shape[0], -1, head_dim), key) for key in keys]
        if self._num_common:
            _add_bias(scores[0], self._common_bias, num_heads)
        _add_bias(scores[-2], self._prompt_bias, num_heads)
        _add_bias(scores[-1], self._own_bias, num_heads)
        widths = [score.shape[-1] for score in scores]
        weights = torch.softmax(torch.cat([score.view(num_heads, -1, score.shape[-1]) for score in scores], -1), -1)
        attended = torch.zeros((), device=query.device)
        for weight, value in zip(weights.to(query.dtype).split(widths, -1), values, strict=True):
            # Views: the slots of a tile, and the heads of a slot, lie one after another.
            batched = weight.unflatten(1, (value.shape[0] // num_heads, -1)).flatten(0, 1)
            attended = attended + _product(batched, value).view(query.shape)
        if not self._is_full:
            attended = attended.index_select(1, self._slots_B)
        return attended.transpose(0, 1).to(query_BQD.dtype).reshape(query_BQD.shape)

    @property
    def _caches(self) -> list[KVCache]:
        return [self._common, self._prompts, self._own] if self._num_common else [self._prompts, self._own]

    def _runs(self, caches: list[Tensor]) -> list[Tensor]:
        """The positions in use of one layer's (K, R, T, D) tensors, as (K * R, T, D) each."""
        widths = [self._num_common, self._num_prompt, self._num_own][-len(caches) :]
        return [cache.flatten(0, 1)[:, :width] for cache, width in zip(caches, widths, strict=True)]

    def _query_of_slots(self, query_BQD: Tensor, num_heads: int) -> Tensor:
        """Scaled queries, (K, S, g, D): the query heads that share a key/value head become its query positions."""
        head_dim = query_BQD.shape[-1]
        rows = query_BQD.view(len(query_BQD), num_heads, -1, head_dim).transpose(0, 1)
        rows = rows.to(self._own.keys[0].dtype) * head_dim**-0.5
        if self._is_full:
            return rows.contiguous()
        slots = rows.new_zeros(num_heads, self._num_slots, *rows.shape[2:])
        return slots.index_copy_(1, self._slots_B, rows)


def decode_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """What keys and values are cached in for decoding.

    A processor multiplies these small matrices no faster in bfloat16, and only CUDA gives the product of two bfloat16
    matrices in float32, which scores need.
    """
    return dtype if device.type == "cuda" else torch.float32


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Batched matrix product with a float32 result."""
    return torch.bmm(a, b) if a.dtype == torch.float32 else torch.bmm(a, b, out_dtype=torch.float32)


def _bias(visible_R: np.ndarray, width: int, device: torch.device) -> Tensor | None:
    """(R, T): 0 where run r has a position, -inf where not; None where every run has all."""
    if (visible_R == width).all():
        return None
    is_visible_RT = np.arange(width)[None, :] < visible_R[:, None]
    return torch.from_numpy(np.where(is_visible_RT, np.float32(0), np.float32(-np.inf))).to(device)


def _add_bias(scores: Tensor, bias_RT: Tensor | None, num_heads: int) -> None:
    """Add (R, T) to every head and query position of the scores, in place."""
    if bias_RT is not None:
        scores.view(num_heads, len(bias_RT), -1, scores.shape[-1]).add_(bias_RT[None, :, None, :])
