"""Which rows share a stored prompt: tiles of equally many slots, each tile with one prompt.

Axes: _U tiles, _S slots (tile u has slots u * m to u * m + m - 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_PROMPT_COST = 8
"""Reading a prompt from memory, in what one more slot costs."""
_SLOT_COST = 2


@dataclass(frozen=True)
class TilePlan:
    """slots_per_tile, the group of each tile, and the slot of each member of each group."""

    slots_per_tile: int
    group_of_U: list[int]
    slots_of_group: list[list[int]]

    @property
    def num_slots(self) -> int:
        """Slots of all tiles, those that stay empty included."""
        return self.slots_per_tile * len(self.group_of_U)


def plan_tiles(group_sizes: Sequence[int], share: bool = True) -> TilePlan:
    """Cut groups of rows with the same prompt into tiles of one size, the size that is the cheapest overall.

    A large tile reads its prompt for many rows at once, but stays partly empty where a group is small. Without `share`
    every row has a tile of its own.
    """
    candidates = sorted({1, *group_sizes, *(1 << i for i in range(max(group_sizes).bit_length()))}) if share else [1]

    def cost(size: int) -> int:
        return sum(-(-group // size) for group in group_sizes) * (_PROMPT_COST + _SLOT_COST * size)

    slots_per_tile = min(candidates, key=cost)
    group_of_U: list[int] = []
    slots_of_group: list[list[int]] = []
    for i_group, size in enumerate(group_sizes):
        first = len(group_of_U) * slots_per_tile
        slots_of_group.append(list(range(first, first + size)))
        group_of_U += [i_group] * -(-size // slots_per_tile)
    return TilePlan(slots_per_tile, group_of_U, slots_of_group)
