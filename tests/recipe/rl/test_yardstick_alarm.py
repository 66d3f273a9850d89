"""The alarm: its tests against enumeration and tables, when it is raised, and how often by mistake."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mint.errors import InvalidRequest
from recipe.rl.yardstick_alarm import compare_with_best, lower_correlation_p, signed_rank_p


def enumerated_p(differences: list[float]) -> float:
    """The same by its definition: all signs, each as likely as the others."""
    kept = [d for d in differences if d != 0]
    sizes = [abs(d) for d in kept]
    rank = [sum(s < size for s in sizes) + (sum(s == size for s in sizes) + 1) / 2 for size in sizes]
    found = sum(r for r, d in zip(rank, kept, strict=True) if d > 0)
    sums = [sum(r for r, up in zip(rank, ups, strict=True) if up) for ups in product((False, True), repeat=len(kept))]
    return sum(total >= found for total in sums) / len(sums)


def test_signed_ranks_by_hand() -> None:
    assert signed_rank_p(np.array([0.1, 0.2, 0.3])) == pytest.approx(1 / 8)
    # Rank sum 3 with the largest difference down: {1, 2}, {3}, {1, 3}, {2, 3} and {1, 2, 3} of 8 reach it.
    assert signed_rank_p(np.array([0.1, 0.2, -0.3])) == pytest.approx(5 / 8)
    assert signed_rank_p(np.zeros(4)) == 1.0
    # Ten pairs with 4 and 6 down, rank sum 45 of 55: 43 of the 1024 signs reach it.
    assert signed_rank_p(np.array([-4.0, -6.0, 1, 2, 3, 5, 7, 8, 9, 10])) == pytest.approx(43 / 1024)


@settings(max_examples=60)
@given(st.lists(st.integers(-3, 3), max_size=8))
def test_signed_ranks_are_those_of_all_signs(differences: list[int]) -> None:
    assert signed_rank_p(np.array(differences, dtype=float)) == pytest.approx(enumerated_p(differences))


def test_an_outlier_does_not_make_a_difference() -> None:
    steady, spoilt = np.full(12, 0.1), np.append(np.full(11, 0.1), -1000.0)
    assert signed_rank_p(steady) < 0.001 and signed_rank_p(spoilt) < 0.02


def test_correlations_by_hand() -> None:
    # z = atanh(-0.5) / sqrt(1.06 / 29) = -0.5493 / 0.1912 = -2.873.
    assert lower_correlation_p(-0.5, 32) == pytest.approx(0.00203, abs=2e-5)
    # Against 0.5: -1.0986 / sqrt(2 * 1.06 / 29) = -4.063.
    assert lower_correlation_p(-0.5, 32, before=0.5) == pytest.approx(2.42e-5, rel=0.01)
    assert lower_correlation_p(0.0, 32) == pytest.approx(0.5)
    assert lower_correlation_p(-1.0, 3) == 1.0
    assert 0 < lower_correlation_p(-1.0, 32) < 1e-6


def scores(num_prompts: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_prompts, 2))


def test_parted_needs_the_reward_up_and_the_independent_score_down() -> None:
    before = scores(32, 0)
    for reward_change, independent_change, is_parted in ((1, -1, True), (1, 1, False), (-1, -1, False), (0, -1, False)):
        alarm = compare_with_best(
            before + reward_change, before + independent_change, before, before, num_earlier=1, alpha=0.01
        )
        assert alarm.is_parted == is_parted == alarm.is_raised


def test_reversed_needs_a_negative_correlation_that_was_not_there_before() -> None:
    reward, noise = scores(32, 0), scores(32, 1)
    agreeing, opposed = reward + 0.3 * noise, -reward + 0.3 * noise
    options = {"num_earlier": 1, "alpha": 0.01}
    assert compare_with_best(reward, opposed, reward, agreeing, **options).is_reversed
    # Falling towards zero is what replies do that are all alike.
    assert not compare_with_best(reward, noise, reward, agreeing, **options).is_reversed
    assert not compare_with_best(reward, opposed, reward, opposed, **options).is_reversed


def test_more_earlier_checkpoints_ask_for_more() -> None:
    before = scores(7, 0)
    raised = [
        compare_with_best(before + 1, before - 1, before, before, num_earlier=n, alpha=0.05).is_raised
        for n in (1, 6, 7)
    ]
    assert raised == [True, True, False]  # seven prompts, all one way: p = 1/128, between 0.05/6 and 0.05/7


def test_a_policy_that_stands_still_is_seldom_accused() -> None:
    """Noise around one and the same policy, the best of all earlier measurements as the opponent each time."""
    rng = np.random.default_rng(0)
    num_alarms = num_measurements = 0
    for _ in range(60):
        runs = rng.normal(size=(10, 2, 24, 2))  # measurement, score, prompt, reply
        for i in range(1, 10):
            best = max(range(i), key=lambda j, runs=runs: runs[j, 1].mean())
            alarm = compare_with_best(*runs[i], *runs[best], num_earlier=i, alpha=0.05)
            num_alarms, num_measurements = num_alarms + alarm.is_raised, num_measurements + 1
    assert num_alarms / num_measurements < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward_PR": np.zeros((3, 2))}, "compared on the same prompts"),
        ({"num_earlier": 0}, "num_earlier=0, alpha=0.01"),
        ({"alpha": 1.0}, "num_earlier=1, alpha=1.0"),
    ],
)
def test_what_cannot_be_compared_is_refused(change: dict, message: str) -> None:
    values = {f"{name}_PR": np.zeros((4, 2)) for name in ("reward", "independent", "best_reward", "best_independent")}
    with pytest.raises(InvalidRequest, match=message):
        compare_with_best(**{**values, "num_earlier": 1, "alpha": 0.01, **change})
