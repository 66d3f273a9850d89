"""Readouts: the numbers they read and the tokens they show."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mint.errors import InvalidRequest
from recipe.preference.readouts import (
    HIGHEST_RESOLVED_LOGPROB,
    READOUTS,
    SequenceLogprob,
    Verdict,
    VerdictAndLikelihood,
    get_readout,
    log_odds,
    readout_from_json,
)


def _slope(logprob: float) -> float:
    value = torch.tensor(logprob, dtype=torch.float64, requires_grad=True)
    log_odds(value).backward()
    assert value.grad is not None
    return value.grad.item()


@pytest.mark.parametrize("p", [1e-12, 0.1, 0.25, 0.5, 0.75, 0.999])
def test_log_odds_by_hand(p: float) -> None:
    found = log_odds(torch.tensor(math.log(p), dtype=torch.float64)).item()
    assert found == pytest.approx(math.log(p) - math.log(1 - p), rel=1e-9, abs=1e-12)
    # d log(p/(1−p)) / d log p = 1/(1−p)
    assert _slope(math.log(p)) == pytest.approx(1 / (1 - p), rel=1e-9)


@given(st.floats(min_value=-1e30, max_value=0.0), st.floats(min_value=-1e30, max_value=0.0))
def test_log_odds_rise_with_the_logprob_and_stay_finite(first: float, second: float) -> None:
    low, high = sorted((first, second))
    at_low, at_high = log_odds(torch.tensor([low, high])).tolist()
    assert math.isfinite(at_low) and math.isfinite(at_high)
    assert at_low <= at_high


def test_log_odds_of_certainty_are_finite_and_still_pull() -> None:
    highest = log_odds(torch.tensor(HIGHEST_RESOLVED_LOGPROB, dtype=torch.float64)).item()
    assert log_odds(torch.tensor(0.0, dtype=torch.float64)).item() == pytest.approx(highest + 1.0, abs=1e-5)
    assert _slope(0.0) == pytest.approx(1e6, rel=1e-3)


def test_log_odds_in_float32_have_no_nan_gradient_anywhere() -> None:
    logprobs = torch.tensor([0.0, -1e-9, -1e-6, -0.5, -math.log(2), -1.0, -100.0, -1e30], requires_grad=True)
    log_odds(logprobs).sum().backward()
    assert logprobs.grad is not None and torch.isfinite(logprobs.grad).all()
    assert (logprobs.grad > 0).all()


def test_verdict_reads_the_last_position_only() -> None:
    logprobs_T = torch.tensor([-5.0, -9.0, math.log(0.75)], requires_grad=True)
    reward = Verdict().reward(logprobs_T, torch.tensor([0.0, 0.0, 1.0]))
    assert reward.item() == pytest.approx(math.log(3), rel=1e-6)
    reward.backward()
    assert logprobs_T.grad is not None
    assert logprobs_T.grad.tolist() == pytest.approx([0.0, 0.0, 4.0], rel=1e-5)


def test_verdict_and_likelihood_by_hand() -> None:
    # A reply of two tokens with logprobs −1 and −3, a verdict of 3 to 1, a coefficient of 0.5: log 3 − 0.5 · 2.
    logprobs_T, weights_T = torch.tensor([-8.0, -1.0, -3.0, -8.0, math.log(0.75)]), torch.tensor([0.0, 1, 1, 0, 1])
    reward = VerdictAndLikelihood(likelihood_coef=0.5).reward(logprobs_T, weights_T)
    assert reward.item() == pytest.approx(math.log(3) - 1.0, rel=1e-6)
    without = VerdictAndLikelihood(likelihood_coef=0.0).reward(logprobs_T, weights_T)
    assert without.item() == Verdict().reward(logprobs_T, weights_T).item()


@pytest.mark.parametrize(
    ("readout", "base", "expected"),
    [
        (SequenceLogprob(), None, -1.0 - 0.5 * 4.0),
        (SequenceLogprob(is_per_token=True), None, -3.0 / 1.5),
        (SequenceLogprob(is_relative_to_base=True), [-9.0, -2.0, -1.0], 1.0 - 0.5 * 3.0),
    ],
)
def test_sequence_logprob_by_hand(readout: SequenceLogprob, base: list[float] | None, expected: float) -> None:
    logprobs_T, weights_T = torch.tensor([-7.0, -1.0, -4.0]), torch.tensor([0.0, 1.0, 0.5])
    base_T = None if base is None else torch.tensor(base)
    assert readout.reward(logprobs_T, weights_T, base_T).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    "readout",
    [
        Verdict(judge_question="Good?", affirmative="Yes"),
        VerdictAndLikelihood(likelihood_coef=2.0),
        SequenceLogprob(is_per_token=True),
    ],
)
def test_a_readout_survives_json_and_pickle(readout: Verdict | SequenceLogprob) -> None:
    assert readout_from_json(readout.to_json()) == readout
    assert pickle.loads(pickle.dumps(readout)) == readout


def test_unknown_readout_names_the_nearest() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown readout 'verdikt': known are .* Did you mean 'verdict'"):
        get_readout("verdikt")
    assert sorted(READOUTS) == ["sequence_logprob", "verdict", "verdict_and_likelihood"]
