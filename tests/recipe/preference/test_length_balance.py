"""Pairs matched on the difference of their lengths."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.preference.length_balance import length_balanced

DIFFERENCES = st.lists(st.integers(-40, 40), max_size=30)


def keys_of(differences: list[int]) -> list[str]:
    return [f"{i:03d}" for i in range(len(differences))]


def balanced(differences: list[int], max_ratio: float = 1.25) -> list[int]:
    return [differences[i] for i in length_balanced(differences, keys_of(differences), max_ratio)]


@pytest.mark.parametrize(
    ("differences", "kept"),
    [
        ([], []),
        ([0, 0], [0, 0]),  # equal lengths say nothing
        ([10, -10], [10, -10]),
        ([10, 12, 14], []),  # nothing to match with
        ([10, -8], [10, -8]),  # within 1.25
        ([10, -7], []),
        ([4, 100, -5, 0], [4, -5, 0]),
        ([-10, 10, 10], [-10, 10]),
        ([8, 10, -10, -12], [8, 10, -10, -12]),  # 8 with 10 and 10 with 12: matching 10 with 10 first would lose two
    ],
)
def test_worked_examples(differences: list[int], kept: list[int]) -> None:
    assert balanced(differences) == kept


def most_matches(longer: list[int], shorter: list[int], max_ratio: float) -> int:
    """Every way of pairing the two sides up, tried one by one."""
    few, many = sorted((longer, shorter), key=len)
    return max(
        (
            sum(max(a, b) <= max_ratio * min(a, b) for a, b in zip(few, order, strict=True))
            for order in permutations(many, len(few))
        ),
        default=0,
    )


@settings(max_examples=60)
@given(
    longer=st.lists(st.integers(1, 12), max_size=5),
    shorter=st.lists(st.integers(1, 12), max_size=5),
    max_ratio=st.sampled_from([1.0, 1.25, 2.0]),
)
def test_as_many_as_can_be_are_matched(longer: list[int], shorter: list[int], max_ratio: float) -> None:
    kept = balanced([*longer, *(-length for length in shorter)], max_ratio)
    assert len(kept) == 2 * most_matches(longer, shorter, max_ratio)


@given(differences=DIFFERENCES, seed=st.integers(0, 9))
def test_length_is_right_half_the_time_and_order_does_not_matter(differences: list[int], seed: int) -> None:
    positions = length_balanced(differences, keys_of(differences))
    assert positions == sorted(set(positions))
    kept = [differences[i] for i in positions]
    assert sum(difference > 0 for difference in kept) == sum(difference < 0 for difference in kept)
    assert kept.count(0) == differences.count(0)
    order = list(range(len(differences)))
    random.Random(seed).shuffle(order)
    again = length_balanced([differences[i] for i in order], [keys_of(differences)[i] for i in order])
    assert sorted(order[i] for i in again) == positions
