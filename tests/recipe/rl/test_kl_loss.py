"""KL as a term of the loss: numbers worked by hand, exact expectations, and extreme logprobs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipe.rl.kl_loss import ESTIMATORS, MAX_LOG_RATIO, kl_loss


def value_and_slope(estimator: str, log_ratio: float, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    """The estimator of one token whose policy logprob is log_ratio above the reference's, and its slope in it."""
    trainer_logprobs_T = torch.tensor([log_ratio], dtype=dtype, requires_grad=True)
    loss = kl_loss(estimator, trainer_logprobs_T, torch.zeros(1, dtype=dtype))
    (slope,) = torch.autograd.grad(loss, trainer_logprobs_T)
    return loss.item(), slope.item()


@pytest.mark.parametrize(
    ("estimator", "log_ratio", "value", "slope"),
    [
        ("k1", math.log(2), math.log(2), 1.0),
        ("k2", 2.0, 2.0, 2.0),
        ("k2", -3.0, 4.5, -3.0),
        # exp(-log 2) - 1 + log 2 = log 2 - 1/2 with slope 1 - 1/2; exp(log 3) - 1 - log 3 with slope 1 - 3.
        ("k3", math.log(2), math.log(2) - 0.5, 0.5),
        ("k3", -math.log(3), 2 - math.log(3), -2.0),
        ("k3", 0.0, 0.0, 0.0),
    ],
)
def test_value_and_slope_of_one_token(estimator: str, log_ratio: float, value: float, slope: float) -> None:
    assert value_and_slope(estimator, log_ratio) == pytest.approx((value, slope))


def test_it_is_the_sum_over_tokens() -> None:
    # 1 + 0 + 4, all halved.
    assert kl_loss("k2", torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-2.0, -2.0, -1.0])).item() == 2.5


@given(st.floats(-19, 50))
def test_k3_is_the_plain_formula_wherever_that_is_safe(log_ratio: float) -> None:
    value, slope = value_and_slope("k3", log_ratio)
    assert value == pytest.approx(math.exp(-log_ratio) - 1 + log_ratio, rel=1e-9, abs=1e-12)
    assert slope == pytest.approx(1 - math.exp(-log_ratio), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("log_ratio", [-1e18, -1e4, -100.0, -89.0, -20.0, 100.0, 1e4, 1e18])
def test_k3_is_finite_whatever_the_logprobs(log_ratio: float) -> None:
    value, slope = value_and_slope("k3", log_ratio, torch.float32)
    assert math.isfinite(value) and math.isfinite(slope)
    assert value >= 0
    assert abs(slope) <= math.exp(MAX_LOG_RATIO)


@pytest.mark.parametrize("estimator", ["k1", "k2"])
@pytest.mark.parametrize("log_ratio", [-1e18, -1e4, 1e4, 1e18])
def test_k1_and_k2_are_finite_far_beyond_any_logprob(estimator: str, log_ratio: float) -> None:
    assert all(math.isfinite(number) for number in value_and_slope(estimator, log_ratio, torch.float32))


def test_k3_goes_on_without_a_jump_or_a_bend() -> None:
    above, below = value_and_slope("k3", -MAX_LOG_RATIO + 1e-9), value_and_slope("k3", -MAX_LOG_RATIO - 1e-9)
    assert above == pytest.approx(below, rel=1e-6)
    far, farther = value_and_slope("k3", -30.0), value_and_slope("k3", -40.0)
    assert farther[0] > far[0] and farther[1] == far[1]


LOGITS = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([1.0, 0.0, 0.5, -0.7], dtype=torch.float64), dim=0)


def expectation(estimator: str) -> tuple[float, torch.Tensor]:
    """Mean and mean gradient (in the logits) of the estimator over tokens drawn from the policy, summed exactly."""
    logits = LOGITS.clone().requires_grad_()
    policy = torch.log_softmax(logits, dim=0)
    weights = policy.exp().detach()
    loss = (weights * ESTIMATORS[estimator](policy - REFERENCE)).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.item(), gradient


def divergence(*, is_forward: bool) -> tuple[float, torch.Tensor]:
    """KL(policy, reference), or KL(reference, policy), with its gradient in the policy's logits."""
    logits = LOGITS.clone().requires_grad_()
    policy = torch.log_softmax(logits, dim=0)
    value = (REFERENCE.exp() * (REFERENCE - policy) if is_forward else policy.exp() * (policy - REFERENCE)).sum()
    (gradient,) = torch.autograd.grad(value, logits)
    return value.item(), gradient


def test_k1_and_k3_average_to_the_divergence() -> None:
    value, _ = divergence(is_forward=False)
    assert expectation("k1")[0] == pytest.approx(value)
    assert expectation("k3")[0] == pytest.approx(value)


def test_the_gradients_are_those_that_the_documents_say() -> None:
    torch.testing.assert_close(expectation("k1")[1], torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(expectation("k2")[1], divergence(is_forward=False)[1])
    torch.testing.assert_close(expectation("k3")[1], divergence(is_forward=True)[1])
