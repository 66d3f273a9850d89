"""The temperature of a preference model against a slow search, and by whom it is fitted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipe.preference.calibration import (
    HIGHEST_TEMPERATURE,
    LOWEST_TEMPERATURE,
    calibrate,
    calibration_metrics,
    fit_temperature,
    prompt_halves,
)


def temperature_on_a_grid(margins: list[float]) -> float:
    """The best of many temperatures, each with its loss written out."""
    doubt = 1 / (len(margins) + 2)
    grid = np.exp(np.linspace(math.log(LOWEST_TEMPERATURE), math.log(HIGHEST_TEMPERATURE), 20_001))
    x = np.asarray(margins)[None, :] / grid[:, None]
    losses = (1 - doubt) * np.logaddexp(0, -x) + doubt * np.logaddexp(0, x)
    return float(grid[losses.mean(axis=1).argmin()])


@given(margins=st.lists(st.floats(-20, 20).filter(lambda m: abs(m) > 1e-2), min_size=1, max_size=12))
def test_the_fit_is_the_best_point_of_a_grid(margins: list[float]) -> None:
    step = math.log(HIGHEST_TEMPERATURE / LOWEST_TEMPERATURE) / 20_000
    fitted = fit_temperature(torch.tensor(margins, dtype=torch.float64))
    wanted = temperature_on_a_grid(margins)
    # Where the model is no better than chance the loss is flat to rounding for all large temperatures.
    assert math.log(fitted) == pytest.approx(math.log(wanted), abs=2 * step) or min(fitted, wanted) > 100


def test_the_temperature_by_hand() -> None:
    # Six of eight right, all at margin ±2, so σ(2/T) is the mean target: 1 − e = 0.9 for the right ones and e = 0.1 for
    # the wrong ones make 0.75·0.9 + 0.25·0.1 = 0.7.
    margins = torch.tensor([2.0] * 6 + [-2.0] * 2)
    assert fit_temperature(margins) == pytest.approx(2 / math.log(7 / 3))


@given(scale=st.floats(0.1, 10))
def test_margins_twice_as_large_have_twice_the_temperature(scale: float) -> None:
    margins = torch.tensor([1.0, 2.0, -0.5, 3.0, 0.4], dtype=torch.float64)
    assert fit_temperature(scale * margins) == pytest.approx(scale * fit_temperature(margins))


def test_a_calibrated_model_keeps_its_margins_and_an_overconfident_one_does_not() -> None:
    generator = torch.Generator().manual_seed(0)
    margins = 2 * torch.randn(4000, generator=generator, dtype=torch.float64)
    is_right = torch.rand(4000, generator=generator, dtype=torch.float64) < torch.sigmoid(margins.abs())
    observed = torch.where(is_right, margins.abs(), -margins.abs())
    assert fit_temperature(observed) == pytest.approx(1.0, abs=0.07)
    assert fit_temperature(3 * observed) == pytest.approx(3.0, abs=0.2)


def test_extremes_stay_finite() -> None:
    assert fit_temperature(torch.zeros(5)) == 1.0
    assert fit_temperature(torch.tensor([])) == 1.0
    assert fit_temperature(torch.tensor([-3.0, -1.0])) == pytest.approx(HIGHEST_TEMPERATURE)
    # Two pairs in good order: 5·σ(5/T) + 9·σ(9/T) = (5 + 9)·3/4 at the optimum.
    assert fit_temperature(torch.tensor([5.0, 9.0])) == pytest.approx(6.77015, abs=1e-4)


def test_no_prompt_has_a_part_in_its_own_temperature() -> None:
    prompts = [f"prompt {i // 2}" for i in range(20)]
    margins = torch.linspace(-1.0, 3.0, 20, dtype=torch.float64)
    calibration = calibrate(margins, prompts)
    assert calibration is not None
    halves = prompt_halves(prompts)
    assert all(halves[i] == halves[i + 1] for i in range(0, 20, 2)) and sum(halves) == 10
    for i in range(20):
        others = [j for j in range(20) if halves[j] != halves[i]]
        assert calibration.cross_fitted_N[i].item() == fit_temperature(margins[others])
    changed = margins.clone()
    changed[0] = 50.0
    after = calibrate(changed, prompts)
    assert after is not None
    same_half = [i for i in range(20) if halves[i] == halves[0]]
    assert torch.equal(after.cross_fitted_N[same_half], calibration.cross_fitted_N[same_half])
    assert after.temperature != calibration.temperature


def test_halves_do_not_depend_on_the_order_of_the_pairs() -> None:
    prompts = [f"prompt {i}" for i in range(9)]
    halves = dict(zip(prompts, prompt_halves(prompts), strict=True))
    assert dict(zip(prompts[::-1], prompt_halves(prompts[::-1]), strict=True)) == halves


def test_one_prompt_cannot_be_halved() -> None:
    assert calibrate(torch.tensor([1.0, 2.0]), ["same", "same"]) is None


def test_calibrated_loss_is_measured_with_the_other_halfs_temperature() -> None:
    prompts = ["a", "b", "c", "d"]
    margins = torch.tensor([4.0, -1.0, 3.0, 2.0], dtype=torch.float64)
    calibration = calibrate(margins, prompts)
    assert calibration is not None
    metrics = calibration_metrics(margins, calibration)
    by_hand = sum(
        math.log1p(math.exp(-m / t)) for m, t in zip(margins.tolist(), calibration.cross_fitted_N.tolist(), strict=True)
    )
    assert metrics == {"test/temperature": calibration.temperature, "test/calibrated_loss": pytest.approx(by_hand / 4)}
