"""Which rows share a stored prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.engine.prompt_tiles import plan_tiles


@given(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=40), share=st.booleans())
def test_every_member_has_a_slot_of_its_own_in_a_tile_of_its_group(sizes: list[int], share: bool) -> None:
    plan = plan_tiles(sizes, share)
    slots = [slot for slots in plan.slots_of_group for slot in slots]
    assert slots == sorted(set(slots))
    assert [len(slots) for slots in plan.slots_of_group] == sizes
    for i_group, own in enumerate(plan.slots_of_group):
        assert all(plan.group_of_U[slot // plan.slots_per_tile] == i_group for slot in own)
    assert all(plan.slots_of_group[i] for i in plan.group_of_U)
    assert plan.num_slots <= 4 * sum(sizes)
    assert share or plan.slots_per_tile == 1


@pytest.mark.parametrize(
    ("sizes", "slots_per_tile"),
    [
        ([8] * 8, 8),  # GRPO groups: one tile each
        ([64], 64),
        ([6] * 3, 6),  # no slot is empty
        ([1] * 30, 1),
        ([64] + [1] * 63, 2),  # a compromise: 32 copies of one prompt, 63 empty slots
        ([8, 8, 8, 7], 8),
    ],
)
def test_the_size_of_tiles(sizes: list[int], slots_per_tile: int) -> None:
    assert plan_tiles(sizes).slots_per_tile == slots_per_tile
