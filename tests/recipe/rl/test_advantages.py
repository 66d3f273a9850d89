"""Advantages with numbers worked by hand."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.errors import InvalidRequest
from recipe.rl.advantages import ADVANTAGES, AdvantageFn, centred, get_advantage_fn, is_constant

groups = st.lists(st.floats(-100, 100), min_size=2, max_size=16)


def advantages(name: str, rewards: list[float]) -> list[float]:
    return get_advantage_fn(name)(rewards).advantages(rewards)


def test_centred_subtracts_the_group_mean_and_does_not_rescale() -> None:
    # mean of 1, 0, 0, 1 is 1/2; mean of 3, -1, 4 is 2.
    assert advantages("centred", [1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert advantages("centred", [3.0, -1.0, 4.0]) == [1.0, -3.0, 2.0]


def test_standardised_divides_by_the_standard_deviation_of_the_group() -> None:
    # mean 1/2 and standard deviation 1/2; mean 5, squares 9 + 1 + 1 + 9 = 20, a quarter of it 5.
    assert advantages("standardised", [1.0, 0.0, 0.0, 1.0]) == pytest.approx([1.0, -1.0, -1.0, 1.0], rel=1e-5)
    fifth = 5**0.5
    expected = [-3 / fifth, -1 / fifth, 1 / fifth, 3 / fifth]
    assert advantages("standardised", [2.0, 4.0, 6.0, 8.0]) == pytest.approx(expected, rel=1e-5)


def test_leave_one_out_subtracts_the_mean_of_the_others() -> None:
    # 1 - (0 + 0 + 1) / 3 = 2/3 and 0 - (1 + 0 + 1) / 3 = -2/3; 3 - 3/2, -1 - 7/2, 4 - 1.
    assert advantages("leave_one_out", [1.0, 0.0, 0.0, 1.0]) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert advantages("leave_one_out", [3.0, -1.0, 4.0]) == pytest.approx([1.5, -4.5, 3.0])


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_a_constant_group_has_exactly_zero_advantages_despite_rounding(name: str) -> None:
    # 0.1 + 0.1 + 0.1 is 0.30000000000000004, so the mean computed in floating point is not 0.1.
    assert sum([0.1] * 3) / 3 != 0.1
    assert advantages(name, [0.1] * 3) == [0.0, 0.0, 0.0]
    assert advantages(name, [0.1] * 4) == [0.0] * 4


def test_rewards_that_differ_by_rounding_are_not_blown_up() -> None:
    assert max(advantages("standardised", [0.1 + 0.2, 0.3])) < 1e-9


@pytest.mark.parametrize("unit", [1e-150, 1e150])
def test_standardised_takes_rewards_of_any_size(unit: float) -> None:
    low, high = advantages("standardised", [0.0, unit])
    assert low == -high
    assert high == pytest.approx(0.0, abs=1e-9) if unit < 1 else high == pytest.approx(1.0)


def test_constant_groups_are_detected_by_exact_equality() -> None:
    assert is_constant([2.0, 2.0, 2.0])
    assert not is_constant([2.0, 2.0, 2.0 + 1e-12])


@pytest.mark.parametrize("advantage_fn", ADVANTAGES.values())
def test_a_group_of_one_is_refused(advantage_fn: AdvantageFn) -> None:
    with pytest.raises(InvalidRequest, match=r"group_size=1: advantages need at least 2"):
        advantage_fn([1.0])


def test_an_unknown_advantage_names_the_nearest_one() -> None:
    assert get_advantage_fn("centred") is centred
    with pytest.raises(InvalidRequest, match=r"'centered' is unknown.*Did you mean 'centred'\?"):
        get_advantage_fn("centered")


@given(groups)
@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(name: str, rewards: list[float]) -> None:
    values = advantages(name, rewards)
    assert sum(values) == pytest.approx(0.0, abs=1e-7)
    by_reward = sorted(range(len(rewards)), key=lambda i: rewards[i])
    assert all(values[a] <= values[b] + 1e-12 for a, b in itertools.pairwise(by_reward))


@given(groups)
def test_leave_one_out_is_centred_on_another_scale(rewards: list[float]) -> None:
    factor = len(rewards) / (len(rewards) - 1)
    expected = [factor * value for value in advantages("centred", rewards)]
    assert advantages("leave_one_out", rewards) == pytest.approx(expected, abs=1e-9)


@given(groups.filter(lambda rewards: statistics.pstdev(rewards) > 0.1), st.floats(0.5, 100), st.floats(-10, 10))
def test_standardised_does_not_see_scale_and_offset_of_the_reward(
    rewards: list[float], scale: float, offset: float
) -> None:
    changed = [scale * reward + offset for reward in rewards]
    assert advantages("standardised", changed) == pytest.approx(advantages("standardised", rewards), rel=1e-3, abs=1e-6)
