"""Worked numbers for every loss: value and gradient, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from mint.engine.losses import LOSSES, get_loss
from mint.errors import InvalidRequest

# Three tokens. p - q = ln 2, 0, ln 0.5, so the ratios are 2, 1 and 0.5.
P = [-1.0, -2.0, -1.5]
Q = [-1.0 - math.log(2), -2.0, -1.5 + math.log(2)]
A = [1.0, -3.0, -2.0]
W = [1.0, 0.5, 2.0]


@pytest.mark.parametrize(
    ("name", "config", "value", "gradient"),
    [
        # -w p and -w
        ("cross_entropy", {}, [1.0, 1.0, 3.0], [-1.0, -0.5, -2.0]),
        # -w r A, and the same again: d exp(p - q)/dp is the ratio itself
        ("importance_sampling", {}, [-2.0, 1.5, 2.0], [-2.0, 1.5, 2.0]),
        # token 0: A > 0 and r = 2 above 1.2: clipped to 1.2, no gradient. token 1: r = 1.
        # token 2: A < 0: min(0.5 * -2, 0.8 * -2) = -1.6: clipped, no gradient.
        ("ppo", {}, [-1.2, 1.5, 3.2], [0.0, 1.5, 0.0]),
        # wide thresholds clip nothing
        ("ppo", {"clip_low_threshold": 0.1, "clip_high_threshold": 9.0}, [-2.0, 1.5, 2.0], [-2.0, 1.5, 2.0]),
        # -w r p A with the ratio held constant; one-sided by default: 0.5 is not raised, 2 is below 4
        ("cispo", {}, [2.0, -3.0, -3.0], [-2.0, 1.5, 2.0]),
        # ratio 2 is cut to 1.2, 0.5 raised to 0.8
        (
            "cispo",
            {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
            [1.2, -3.0, -4.8],
            [-1.2, 1.5, 3.2],
        ),
        # -w (p A - b/2 (p-q)^2), gradient -w (A - b (p-q)); with b = 2, (ln 2)^2 = 0.480453
        (
            "dro",
            {"beta": 2.0},
            [1.0 + 0.480453, -3.0, -6.0 + 2 * 0.480453],
            [-1.0 + 2 * math.log(2), 1.5, 4.0 - 4 * math.log(2)],
        ),
    ],
)
def test_value_and_gradient(name, config, value, gradient):
    loss = get_loss(name)
    resolved, _ = loss.resolve_config(name, config)
    p = torch.tensor(P, requires_grad=True)
    inputs = {"weights": torch.tensor(W), "logprobs": torch.tensor(Q), "advantages": torch.tensor(A)}
    per_token = loss.per_token(p, inputs, resolved)
    per_token.sum().backward()
    torch.testing.assert_close(per_token.detach(), torch.tensor(value), atol=1e-5, rtol=0)
    torch.testing.assert_close(p.grad, torch.tensor(gradient), atol=1e-5, rtol=0)


def test_tokens_that_can_contribute():
    weights, advantages = torch.tensor([0.0, 1.0, -1.0]), torch.tensor([2.0, 0.0, 0.0])
    for loss in LOSSES.values():
        assert loss.carrying({"weights": weights, "advantages": advantages}).tolist() == [False, True, True]
    assert LOSSES["ppo"].carrying({"advantages": advantages}).tolist() == [True, False, False]
    # dro's quadratic term acts on every token
    assert LOSSES["dro"].carrying({"advantages": advantages}).tolist() == [True, True, True]


def test_defaults_are_those_of_the_api():
    assert LOSSES["ppo"].defaults == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    assert LOSSES["cispo"].defaults == {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}
    assert LOSSES["dro"].defaults == {"beta": 0.05}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"clip_low": 0.8}, r"loss_fn_config has 'clip_low'.*Did you mean 'clip_low_threshold'"),
        ({"clip_low_threshold": 2.0}, "need 0 <= low <= high"),
        ({"clip_low_threshold": "x"}, "must be a number"),
    ],
)
def test_bad_config(config, message):
    with pytest.raises(InvalidRequest, match=message):
        LOSSES["ppo"].resolve_config("ppo", config)
