"""The keys and values of all rows being decoded: what prompts begin with, prompts, and each row's own tokens.

Axes: _U tiles, _S slots (see `prompt_tiles`), _B rows, _T positions, _N packed prompt tokens, _H hidden, _K key/value
heads, _D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from mint.engine.decode_attention import DecodeAttention, Place
from mint.engine.decoder_shape import DecoderShape
from mint.engine.kv_cache import KVCache
from mint.engine.prompt_tiles import plan_tiles

_MIN_COMMON = 16
"""Tokens; a shorter common beginning is not worth a product of its own."""


@dataclass(eq=False)
class Prompt:
    """A prompt that rows continue.

    num_common: how many of its tokens are in the run that all share, 0 or all of that run. hidden_H: the final hidden
    state of its last token, once it is computed. tiles: where the rest of its keys and values is, in equal copies.
    """

    tokens_T: np.ndarray
    num_common: int = 0
    hidden_H: Tensor = field(default_factory=lambda: torch.empty(0))
    tiles: list[int] = field(default_factory=list)

    @property
    def num_rest(self) -> int:
        """Tokens after the common ones; at least one."""
        return len(self.tokens_T) - self.num_common


class HasSlot(Protocol):
    """What is arranged: a row with a prompt; slot is -1 until it has one. num_own: positions it has cached itself."""

    prompt: Prompt
    slot: int

    @property
    def num_own(self) -> int: ...


R = TypeVar("R", bound=HasSlot)


class RowCache:
    """The caches of one batch, and which row has which slot in them.

    For new rows: add_prompts(), then arrange() with all rows, then a forward pass over the new prompts with
    prompt_writer(). For each decoded token: attention(). When rows have ended: arrange() with those that are left.
    """

    def __init__(self, shape: DecoderShape, device: torch.device, dtype: torch.dtype, share: bool) -> None:
        self._device, self._share = device, share
        self._common, self._prompts, self._own = (KVCache(shape, device, dtype) for _ in range(3))
        self._common_T = np.empty(0, dtype=np.int64)
        self._has_common = False
        self._prompt_of_U: list[Prompt] = []
        self._shared_places: list[Place] = []

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return sum(cache.num_bytes for cache in (self._common, self._prompts, self._own))

    def add_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Decide what they share with all others. The first prompts of a batch decide what the common beginning is."""
        if not self._prompt_of_U and self._share and len(prompts) > 1:
            common = _common_length([prompt.tokens_T for prompt in prompts])
            if common >= _MIN_COMMON:
                self._common_T = prompts[0].tokens_T[:common].copy()
                self._common.rearrange(np.array([-1]), common)
        for prompt in prompts:
            begins = len(prompt.tokens_T) > len(self._common_T) and np.array_equal(
                prompt.tokens_T[: len(self._common_T)], self._common_T
            )
            prompt.num_common = len(self._common_T) if begins else 0

    def arrange(self, rows: Sequence[R]) -> list[R]:
        """Give rows new slots, those with the same prompt beside each other. Returns them in the order of slots."""
        groups: dict[Prompt, list[R]] = {}
        for row in rows:
            groups.setdefault(row.prompt, []).append(row)
        plan = plan_tiles([len(group) for group in groups.values()], self._share)
        arranged, source_S = [], np.full(plan.num_slots, -1)
        for group, slots in zip(groups.values(), plan.slots_of_group, strict=True):
            for row, slot in zip(group, slots, strict=True):
                source_S[slot], row.slot = row.slot, slot
                arranged.append(row)
        prompts = list(groups)
        self._prompt_of_U = [prompts[i] for i in plan.group_of_U]
        source_U = np.asarray([prompt.tiles[0] if prompt.tiles else -1 for prompt in self._prompt_of_U])
        for prompt in prompts:
            prompt.tiles = []
        for tile, prompt in enumerate(self._prompt_of_U):
            prompt.tiles.append(tile)
        # What ended rows needed beyond the others goes.
        self._prompts.rearrange(source_U, max(prompt.num_rest for prompt in prompts))
        self._own.rearrange(source_S, min(self._own.num_positions, max(row.num_own for row in rows)))
        rest_U, common_U = np.asarray([(prompt.num_rest, prompt.num_common) for prompt in self._prompt_of_U]).T
        self._shared_places = [Place(self._prompts, rest_U.repeat(plan.slots_per_tile))]
        if len(self._common_T):
            self._shared_places.append(Place(self._common, common_U.repeat(plan.slots_per_tile)))
        return arranged

    def prompt_writer(
        self, prompts: Sequence[Prompt], token_index: Sequence[np.ndarray]
    ) -> Callable[[int, Tensor, Tensor], None]:
        """What stores the (layer, key_NKD, value_NKD) of a forward pass over `prompts`.

        token_index[i][t] is the packed index of token t of prompt i.
        """
        targets = [(tile, index[prompt.num_common :]) for prompt, index in zip(prompts, token_index, strict=True)
                   for tile in prompt.tiles]  # fmt: skip
        tiles = torch.tensor([tile for tile, _ in targets], device=self._device)
        source_UT = np.zeros((len(targets), max(len(index) for _, index in targets)), dtype=np.int64)
        for row_T, (_, index) in zip(source_UT, targets, strict=True):
            row_T[: len(index)] = index
        source = torch.from_numpy(source_UT).to(self._device)
        common: Tensor | None = None
        sharing = [index for prompt, index in zip(prompts, token_index, strict=True) if prompt.num_common]
        if sharing and not self._has_common:
            common = torch.from_numpy(sharing[0][None, : len(self._common_T)]).to(self._device)
            self._has_common = True
        first_run = torch.zeros(1, dtype=torch.int64, device=self._device)

        def write(i_layer: int, key_NKD: Tensor, value_NKD: Tensor) -> None:
            self._prompts.write_runs(i_layer, tiles, source, key_NKD, value_NKD)
            if common is not None:
                self._common.write_runs(i_layer, first_run, common, key_NKD, value_NKD)

        return write

    def attention(self, slots_B: np.ndarray, num_own_B: np.ndarray) -> DecodeAttention:
        """`attend` for one new token of each row; num_own_B counts what the row has of its own, the new one too."""
        self._own.reserve(int(num_own_B.max()))
        own_S = np.ones(self._own.num_runs, dtype=np.int64)  # An empty slot sees something: no scores are all -inf.
        own_S[slots_B] = num_own_B
        places = [*self._shared_places, Place(self._own, own_S)]
        return DecodeAttention(self._own, slots_B, num_own_B - 1, places)


def _common_length(sequences: Sequence[np.ndarray]) -> int:
    """How many tokens all begin with, at most one less than the shortest has."""
    length = min(len(tokens_T) for tokens_T in sequences) - 1
    for tokens_T in sequences[1:]:
        differs = np.flatnonzero(tokens_T[:length] != sequences[0][:length])
        length = int(differs[0]) if len(differs) else length
    return length
