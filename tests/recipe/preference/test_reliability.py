"""Brier score, calibration error and reliability bins."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.preference.reliability import (
    MAX_BINS,
    MIN_PAIRS_PER_BIN,
    ReliabilityBin,
    brier_score,
    expected_calibration_error,
    hit,
    reliability_bins,
    sigmoid,
)

MARGINS = st.lists(st.floats(-800, 800), min_size=1, max_size=120)
LOG_3 = math.log(3.0)  # σ(log 3) = 3/4


def test_worked_brier_score() -> None:
    # Said 3/4 and right, said 3/4 and wrong, said 1/2.
    assert brier_score([LOG_3, -LOG_3, 0.0]) == pytest.approx((1 / 16 + 9 / 16 + 1 / 4) / 3)
    assert brier_score([0.0, 0.0]) == 0.25
    assert brier_score([1000.0]) == 0.0 and brier_score([-1000.0]) == 1.0


def test_worked_bins_and_calibration_error() -> None:
    # Eight pairs said with 3/4, six of them right: calibrated. Eight said with 9/10, four right: off by 0.4.
    margins = [LOG_3] * 6 + [-LOG_3] * 2 + [math.log(9.0)] * 4 + [-math.log(9.0)] * 4
    bins = reliability_bins(margins)
    assert [(one.num_pairs, one.share_right) for one in bins] == [(8, 0.75), (8, 0.5)]
    assert [one.mean_predicted for one in bins] == pytest.approx([0.75, 0.9])
    assert expected_calibration_error(bins) == pytest.approx(0.5 * 0.0 + 0.5 * 0.4)


def test_bins_have_equal_mass() -> None:
    rng = random.Random(0)
    bins = reliability_bins([rng.gauss(1.0, 2.0) for _ in range(1003)])
    assert len(bins) == MAX_BINS
    assert {one.num_pairs for one in bins} <= {100, 101}


def test_equally_sure_pairs_share_a_bin() -> None:
    bins = reliability_bins([1.0] * 50 + [-1.0] * 30 + [2.0] * 8)
    assert [one.num_pairs for one in bins] == [80, 8]
    assert bins[0].share_right == 50 / 80


@pytest.mark.parametrize(("num_pairs", "num_bins"), [(1, 1), (2 * MIN_PAIRS_PER_BIN, 2), (10_000, MAX_BINS)])
def test_few_pairs_have_few_bins(num_pairs: int, num_bins: int) -> None:
    assert len(reliability_bins([0.1 + i / num_pairs for i in range(num_pairs)])) == num_bins
    assert reliability_bins([]) == []


def test_a_calibrated_model_has_a_small_error_and_an_overconfident_one_a_large_one() -> None:
    rng = random.Random(3)
    margins = []
    for _ in range(20_000):
        confidence = abs(rng.gauss(0.0, 1.5))
        margins.append(confidence if rng.random() < sigmoid(confidence) else -confidence)
    assert expected_calibration_error(reliability_bins(margins)) < 0.02
    assert expected_calibration_error(reliability_bins([4 * margin for margin in margins])) > 0.1


def slow_calibration_error(bins: list[ReliabilityBin], margins: list[float]) -> float:
    """Pair by pair: find the pair's bin by its bounds, and average the bin's fault."""
    total = 0.0
    for margin in margins:
        (one,) = [one for one in bins if one.low <= sigmoid(abs(margin)) <= one.high]
        members = [other for other in margins if one.low <= sigmoid(abs(other)) <= one.high]
        said = sum(sigmoid(abs(other)) for other in members) / len(members)
        total += abs(said - sum(map(hit, members)) / len(members))
    return total / len(margins)


@given(margins=MARGINS)
def test_bins_partition_the_pairs(margins: list[float]) -> None:
    bins = reliability_bins(margins)
    assert sum(one.num_pairs for one in bins) == len(margins)
    for one in bins:
        assert 0.5 <= one.low <= one.mean_predicted + 1e-12 and one.mean_predicted <= one.high + 1e-12 <= 1.0 + 2e-12
        assert 0.0 <= one.share_right <= 1.0
    assert all(before.high < after.low for before, after in pairwise(bins))
    assert expected_calibration_error(bins) == pytest.approx(slow_calibration_error(bins, margins), abs=1e-9)


@given(margins=MARGINS, seed=st.integers(0, 9))
def test_bounds_order_and_swapping(margins: list[float], seed: int) -> None:
    brier, error = brier_score(margins), expected_calibration_error(reliability_bins(margins))
    assert 0.0 <= brier <= 1.0 and 0.0 <= error <= 1.0
    shuffled = margins.copy()
    random.Random(seed).shuffle(shuffled)
    assert brier_score(shuffled) == brier and reliability_bins(shuffled) == reliability_bins(margins)
    swapped = [-margin for margin in margins]
    # (1 − p)² + p² is what a pair and its mirror image cost together.
    both = [sigmoid(margin) ** 2 + sigmoid(-margin) ** 2 for margin in margins]
    assert brier_score(swapped) + brier == pytest.approx(sum(both) / len(both))
    for one, mirrored in zip(reliability_bins(margins), reliability_bins(swapped), strict=True):
        assert mirrored.share_right == pytest.approx(1 - one.share_right)
        assert mirrored.num_pairs == one.num_pairs
