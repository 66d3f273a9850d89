"""Worked numbers for the learning-rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.errors import InvalidRequest
from recipe.optimizer_config import AdamConfig
from recipe.schedules import LRSchedule, check_learning_rate, learning_rate_at, scheduled_learning_rate


def rates(schedule: LRSchedule, num_steps: int, warmup_steps: int = 0) -> list[float]:
    return [learning_rate_at(step, num_steps, 1.0, schedule, warmup_steps) for step in range(num_steps)]


def test_constant_stays_at_the_peak() -> None:
    assert rates("constant", 3) == [1.0, 1.0, 1.0]


def test_linear_falls_by_equal_parts_and_not_to_zero() -> None:
    assert rates("linear", 4) == [1.0, 0.75, 0.5, 0.25]


def test_cosine_is_half_way_in_the_middle() -> None:
    # 1/2 (1 + cos(pi k / 4)): cos is 1, 0.7071, 0, -0.7071.
    assert rates("cosine", 4) == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_warm_up_reaches_the_peak_at_its_last_step_and_decay_starts_from_there() -> None:
    assert rates("linear", 6, warmup_steps=2) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert rates("constant", 4, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0]


def test_warm_up_longer_than_the_run_is_cut_off() -> None:
    assert rates("cosine", 2, warmup_steps=10) == [0.1, 0.2]


def test_a_run_of_one_step_learns_at_the_peak() -> None:
    assert [rates("constant", 1), rates("linear", 1), rates("cosine", 1)] == [[1.0], [1.0], [1.0]]


@given(
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
    num_steps=st.integers(1, 200),
    warmup_steps=st.integers(0, 250),
    peak=st.floats(1e-8, 1.0),
)
def test_rate_is_positive_at_most_the_peak_and_never_rises_after_warm_up(
    schedule: Any, num_steps: int, warmup_steps: int, peak: float
) -> None:
    values = [learning_rate_at(step, num_steps, peak, schedule, warmup_steps) for step in range(num_steps)]
    assert all(0 < value <= peak * (1 + 1e-12) for value in values)
    decay = values[warmup_steps:]
    assert decay == sorted(decay, reverse=True)


@pytest.mark.parametrize(
    ("step", "num_steps", "schedule", "warmup_steps", "message"),
    [
        (0, 5, "cosin", 0, r"lr_schedule='cosin': must be one of constant, linear, cosine\. Did you mean 'cosine'\?"),
        (5, 5, "linear", 0, r"step=5: must be in \[0, num_steps=5\)"),
        (0, 5, "linear", -1, "warmup_steps=-1: must not be negative"),
    ],
)
def test_impossible_arguments_are_refused(
    step: int, num_steps: int, schedule: Any, warmup_steps: int, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        learning_rate_at(step, num_steps, 1.0, schedule, warmup_steps)


@dataclass(frozen=True)
class Settings:
    learning_rate: float = 2.0
    lr_schedule: LRSchedule = "linear"
    warmup_steps: int = 0


def test_a_stages_settings_give_the_scheduled_rate() -> None:
    assert [scheduled_learning_rate(Settings(), step, 4) for step in range(4)] == [2.0, 1.5, 1.0, 0.5]


def test_adam_params_carry_every_setting() -> None:
    params = AdamConfig(weight_decay=0.1, grad_clip_norm=3.0).adam_params(1.5)
    assert params.learning_rate == 1.5
    assert (params.beta1, params.beta2, params.eps) == (0.9, 0.95, 1e-8)
    assert (params.weight_decay, params.grad_clip_norm) == (0.1, 3.0)


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", -1.0), ("learning_rate", math.nan), ("warmup_steps", -1)]
)
def test_impossible_rates_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}={value}: must not be negative"):
        check_learning_rate(Settings(**{name: value}))


@pytest.mark.parametrize(("name", "value"), [("eps", -1.0), ("weight_decay", math.nan), ("beta1", 1.0)])
def test_impossible_optimizer_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"optimizer.{name}="):
        AdamConfig(**{name: value})
