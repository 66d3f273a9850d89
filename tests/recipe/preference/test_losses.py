"""Bradley-Terry by worked numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipe.preference.losses import bradley_terry, pair_statistics, wilson_interval

margins = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


def _loss_and_gradients(chosen: list[float], rejected: list[float]) -> tuple[list[float], list[float], list[float]]:
    chosen_N = torch.tensor(chosen, dtype=torch.float64, requires_grad=True)
    rejected_N = torch.tensor(rejected, dtype=torch.float64, requires_grad=True)
    losses_N = bradley_terry(chosen_N, rejected_N)
    losses_N.sum().backward()
    assert chosen_N.grad is not None and rejected_N.grad is not None
    return losses_N.tolist(), chosen_N.grad.tolist(), rejected_N.grad.tolist()


def test_value_and_gradient_by_hand() -> None:
    # Margins 0, log 3 and −log 3: σ is 1/2, 3/4 and 1/4; the loss is −log of it and its slope −(1 − σ).
    losses, chosen_slopes, rejected_slopes = _loss_and_gradients([1.0, math.log(3), 0.0], [1.0, 0.0, math.log(3)])
    assert losses == pytest.approx([math.log(2), math.log(4 / 3), math.log(4)])
    assert chosen_slopes == pytest.approx([-0.5, -0.25, -0.75])
    assert rejected_slopes == pytest.approx([0.5, 0.25, 0.75])


@given(margin=margins)
def test_large_margins_stay_finite(margin: float) -> None:
    losses, chosen_slopes, _ = _loss_and_gradients([margin], [0.0])
    assert math.isfinite(losses[0]) and losses[0] >= 0
    assert -1.0 <= chosen_slopes[0] <= 0.0


def test_a_hopeless_pair_costs_its_margin_and_pulls_with_full_force() -> None:
    losses, chosen_slopes, _ = _loss_and_gradients([-1000.0], [0.0])
    assert (losses[0], chosen_slopes[0]) == (1000.0, -1.0)


@given(margin=margins)
def test_swapping_the_replies_negates_the_margin_and_mirrors_the_accuracy(margin: float) -> None:
    higher, lower = torch.tensor([margin]), torch.tensor([0.0])
    straight, swapped = pair_statistics(higher, lower), pair_statistics(lower, higher)
    assert straight.mean_margin == -swapped.mean_margin
    assert straight.accuracy == 1 - swapped.accuracy


def test_statistics_by_hand() -> None:
    statistics = pair_statistics(torch.tensor([2.0, 1.0, 0.0, 5.0]), torch.tensor([1.0, 1.0, 3.0, 5.0]))
    assert statistics.accuracy == pytest.approx(0.5)  # one right, one wrong, two ties that count half
    assert statistics.mean_margin == pytest.approx(-0.5)
    assert statistics.num_pairs == 4


def test_statistics_carry_no_gradient_into_the_loss() -> None:
    chosen = torch.tensor([1.0], requires_grad=True)
    pair_statistics(chosen, torch.tensor([0.0]))
    assert chosen.grad is None


def test_wilson_interval_by_hand() -> None:
    # 9 of 10 with z = 2: centre (0.9 + 0.2)/1.4, half-width 2·sqrt(0.009 + 0.01)/1.4.
    low, high = wilson_interval(0.9, 10, z=2.0)
    half_width = 2 * math.sqrt(0.019) / 1.4
    assert (low, high) == pytest.approx((1.1 / 1.4 - half_width, 1.1 / 1.4 + half_width))


@given(share=st.floats(min_value=0, max_value=1), num_trials=st.integers(1, 10_000))
def test_wilson_interval_holds_the_share_and_stays_in_range(share: float, num_trials: int) -> None:
    low, high = wilson_interval(share, num_trials)
    assert 0 <= low <= share + 1e-9 and share - 1e-9 <= high <= 1
    assert low < high
