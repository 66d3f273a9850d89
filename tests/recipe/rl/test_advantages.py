"""Advantages with numbers worked by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.errors import InvalidRequest
from recipe.rl.advantages import centred, get_advantage_fn, is_constant


def test_centred_subtracts_the_group_mean_and_does_not_rescale() -> None:
    # mean of 1, 0, 0, 1 is 1/2; mean of 3, -1, 4 is 2.
    assert centred([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert centred([3.0, -1.0, 4.0]) == [1.0, -3.0, 2.0]


def test_a_constant_group_has_exactly_zero_advantages_despite_rounding() -> None:
    # 0.1 + 0.1 + 0.1 is 0.30000000000000004, so the mean computed in floating point is not 0.1.
    assert sum([0.1] * 3) / 3 != 0.1
    assert centred([0.1] * 3) == [0.0, 0.0, 0.0]


def test_constant_groups_are_detected_by_exact_equality() -> None:
    assert is_constant([2.0, 2.0, 2.0])
    assert not is_constant([2.0, 2.0, 2.0 + 1e-12])


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"group_size=1: advantages need at least 2"):
        centred([1.0])


def test_an_unknown_advantage_names_the_nearest_one() -> None:
    assert get_advantage_fn("centred") is centred
    with pytest.raises(InvalidRequest, match=r"'centered' is unknown.*Did you mean 'centred'\?"):
        get_advantage_fn("centered")


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16))
def test_centred_advantages_sum_to_zero_and_keep_the_order_of_rewards(rewards: list[float]) -> None:
    advantages = centred(rewards)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-9)
    by_reward = sorted(range(len(rewards)), key=lambda i: rewards[i])
    assert all(advantages[a] <= advantages[b] for a, b in itertools.pairwise(by_reward))
