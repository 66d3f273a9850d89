"""The penalty's settings, and the controller with numbers worked by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mint.errors import InvalidRequest
from recipe.rl.kl import KLReferenceConfig
from recipe.rl.kl_coefficient import AdaptiveKLConfig, KLCoefficient, KLPenaltyConfig, check_kl_penalty, steered

REFERENCE = KLReferenceConfig(base_model="m")


@pytest.mark.parametrize(
    ("kl_per_episode", "expected"),
    [
        # Twice the target: the error of 1 counts as 0.2, so 0.1 * (1 + 0.1 * 0.2).
        (12.0, 0.102),
        # Nothing at all: -0.2 the other way.
        (0.0, 0.098),
        # 10 % below: 0.1 * (1 - 0.1 * 0.1).
        (5.4, 0.099),
        (6.0, 0.1),
        # An estimate of KL may come out negative.
        (-1.0, 0.098),
    ],
)
def test_the_coefficient_moves_by_the_clipped_error(kl_per_episode: float, expected: float) -> None:
    assert steered(0.1, kl_per_episode, AdaptiveKLConfig(target=6.0)) == pytest.approx(expected)


def test_the_coefficient_finds_the_kl_that_is_asked_for() -> None:
    coefficient = KLCoefficient(1e-3, AdaptiveKLConfig(target=2.0), {})
    # A policy whose KL falls as the penalty grows; at coefficient 0.05 it is 2.
    for _ in range(400):
        coefficient.observe(0.1 / coefficient.value)
    assert coefficient.value == pytest.approx(0.05, rel=1e-3)


def test_a_fixed_coefficient_stays_and_has_no_state() -> None:
    coefficient = KLCoefficient(0.1, None, {"kl_penalty_coef": 7.0})
    coefficient.observe(100.0)
    assert (coefficient.value, coefficient.loop_state()) == (0.1, {})


def test_an_adapted_coefficient_goes_on_from_its_checkpoint_exactly() -> None:
    whole = KLCoefficient(0.1, AdaptiveKLConfig(target=6.0), {})
    whole.observe(6.7)
    recorded = json.loads(json.dumps(whole.loop_state()))
    resumed = KLCoefficient(0.1, AdaptiveKLConfig(target=6.0), recorded)
    for coefficient in (whole, resumed):
        coefficient.observe(5.9)
    assert resumed.value == whole.value != 0.1


@pytest.mark.parametrize(
    ("form", "estimator"), [("advantages", None), ("loss_k1", "k1"), ("loss_k2", "k2"), ("loss_k3", "k3")]
)
def test_the_form_names_the_estimator(form: Any, estimator: str | None) -> None:
    assert KLPenaltyConfig(form=form).loss_estimator == estimator


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"discount": -0.1}, "kl_penalty_config.discount=-0.1: must be from 0 to 1"),
        ({"discount": 0.9, "form": "loss_k3"}, "discount=0.9 with form='loss_k3'.*set form=advantages"),
    ],
)
def test_a_bad_penalty_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        KLPenaltyConfig(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target": 0.0}, "adaptive.target=0.0: must be positive"),
        ({"target": float("inf")}, "adaptive.target=inf: must be positive and finite"),
        ({"target": 1.0, "rate": 0.0}, "adaptive.rate=0.0: must be above 0"),
        ({"target": 1.0, "rate": 5.0}, "adaptive.rate=5.0: must be above 0 and below 5"),
    ],
)
def test_a_controller_that_cannot_work_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        AdaptiveKLConfig(**values)


@pytest.mark.parametrize(
    ("coef", "reference", "penalty", "temperature", "message"),
    [
        (-0.1, REFERENCE, {}, 1.0, "kl_penalty_coef=-0.1: must not be negative"),
        (float("nan"), REFERENCE, {}, 1.0, "kl_penalty_coef=nan"),
        (0.1, None, {}, 1.0, "needs a reference; set kl_reference_config.base_model"),
        (0.0, REFERENCE, {"form": "loss_k3"}, 1.0, "kl_penalty_config is set with kl_penalty_coef=0"),
        (0.1, REFERENCE, {"form": "loss_k3"}, 0.8, "form='loss_k3' with temperature=0.8.*set temperature=1"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    coef: float, reference: Any, penalty: dict[str, Any], temperature: float, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_kl_penalty(coef, reference, KLPenaltyConfig(**penalty), temperature)


def test_settings_that_fit_together_are_taken() -> None:
    check_kl_penalty(0.0, None, KLPenaltyConfig(), 0.8)
    check_kl_penalty(0.1, REFERENCE, KLPenaltyConfig(discount=1.0), 0.8)
    check_kl_penalty(0.1, REFERENCE, KLPenaltyConfig(form="loss_k2", adaptive=AdaptiveKLConfig(target=1.0)), 1.0)
