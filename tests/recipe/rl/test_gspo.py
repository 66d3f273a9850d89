"""GSPO: numbers worked by hand, and autograd on the formula of the paper as the oracle."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mint.errors import InvalidRequest
from recipe.rl.gspo import GSPO_DEFAULTS, gspo, gspo_config

WIDE = {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}


def value_and_gradient(
    p: list[float], q: list[float], advantages: list[float], config: dict[str, float]
) -> tuple[float, list[float]]:
    trainer_logprobs_T = torch.tensor(p, dtype=torch.float64, requires_grad=True)
    loss = gspo(
        trainer_logprobs_T,
        torch.tensor(q, dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64),
        config,
    )
    (gradient,) = torch.autograd.grad(loss, trainer_logprobs_T)
    return loss.item(), gradient.tolist()


def test_the_ratio_is_the_geometric_mean_over_the_reply() -> None:
    # p - q is log 2 and -log 0.5 + ... : (log 2 + log 0.5 + log 1.5) / 3 = log(1.5) / 3.
    q = [-1.0, -2.0, -3.0]
    p = [q[0] + math.log(2), q[1] + math.log(0.5), q[2] + math.log(1.5)]
    ratio = 1.5 ** (1 / 3)
    loss, gradient = value_and_gradient(p, q, [2.0] * 3, WIDE)
    assert loss == pytest.approx(-ratio * 2)
    # The derivative of -s A with respect to each p_t is -s A / 3.
    assert gradient == pytest.approx([-ratio * 2 / 3] * 3)


def test_on_policy_it_is_the_policy_gradient_over_the_number_of_tokens() -> None:
    loss, gradient = value_and_gradient([-1.0, -0.5], [-1.0, -0.5], [3.0, 3.0], dict(GSPO_DEFAULTS))
    assert (loss, gradient) == (-3.0, [-1.5, -1.5])


@pytest.mark.parametrize(
    ("shift", "advantage", "expected_loss", "is_clipped"),
    [
        # s = 4 is above 2: a good reply gains no more, a bad one is still pushed down.
        (math.log(4), 1.0, -2.0, True),
        (math.log(4), -1.0, 4.0, False),
        # s = 0.25 is below 0.5: the other way round.
        (math.log(0.25), 1.0, -0.25, False),
        (math.log(0.25), -1.0, 0.5, True),
    ],
)
def test_the_whole_reply_is_clipped(shift: float, advantage: float, expected_loss: float, is_clipped: bool) -> None:
    q = [-1.0, -2.0]
    loss, gradient = value_and_gradient([value + shift for value in q], q, [advantage] * 2, WIDE)
    assert loss == pytest.approx(expected_loss)
    slope = 0.0 if is_clipped else -math.exp(shift) * advantage / 2
    assert gradient == pytest.approx([slope, slope])


def sequence_loss(p: Tensor, q: Tensor, advantage: float, config: dict[str, float]) -> Tensor:
    """The paper's sequence form, equations 5 and 7, written down as it stands."""
    ratio = torch.exp((p - q).mean())
    clipped = torch.clamp(ratio, config["clip_low_threshold"], config["clip_high_threshold"])
    return -torch.min(ratio * advantage, clipped * advantage)


logprobs = st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0)), min_size=1, max_size=8)


@given(logprobs, st.floats(-3, 3))
def test_value_and_gradient_are_those_of_the_sequence_form(pairs: list[tuple[float, float]], advantage: float) -> None:
    p, q = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    leaf = torch.tensor(p, dtype=torch.float64, requires_grad=True)
    expected = sequence_loss(leaf, torch.tensor(q, dtype=torch.float64), advantage, WIDE)
    (expected_gradient,) = torch.autograd.grad(expected, leaf)
    loss, gradient = value_and_gradient(p, q, [advantage] * len(p), WIDE)
    assert loss == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    assert gradient == pytest.approx(expected_gradient.tolist(), rel=1e-9, abs=1e-12)


def test_tokens_with_advantages_of_their_own_keep_them() -> None:
    # s = 1: each token's slope is its own advantage over the two tokens.
    _, gradient = value_and_gradient([-1.0, -1.0], [-1.0, -1.0], [4.0, -2.0], WIDE)
    assert gradient == [-2.0, 1.0]


@pytest.mark.parametrize("shift", [-1e4, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_extreme_logprobs_give_finite_numbers(shift: float, advantage: float) -> None:
    trainer_logprobs_T = torch.tensor([min(shift, 0.0), -1.0], requires_grad=True)
    sampler_logprobs_T = torch.tensor([min(-shift, 0.0), -1.0])
    loss = gspo(trainer_logprobs_T, sampler_logprobs_T, torch.full((2,), advantage), gspo_config(None))
    (gradient,) = torch.autograd.grad(loss, trainer_logprobs_T)
    assert torch.isfinite(loss) and torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"clip_high": 1.1}, r"'clip_high', which loss_fn='gspo' does not know.*'clip_high_threshold'\?"),
        ({"clip_low_threshold": 1.2, "clip_high_threshold": 1.1}, "need 0 <= low <= high"),
    ],
)
def test_settings_that_do_not_exist_or_fit_are_refused(config: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        gspo_config(config)


def test_settings_take_the_place_of_the_defaults() -> None:
    assert gspo_config(None) == {"clip_low_threshold": 0.9997, "clip_high_threshold": 1.0004}
    assert gspo_config({"clip_high_threshold": 1.01})["clip_high_threshold"] == 1.01
