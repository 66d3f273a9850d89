"""The policy losses as functions: worked numbers, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch

from mint.errors import InvalidRequest
from mint.token_losses import token_losses

INPUTS = {
    "weights": torch.tensor([1.0, 1.0, 0.0]),
    "logprobs": torch.tensor([-1.0, -1.0, -1.0]),
    "advantages": torch.tensor([2.0, -1.0, 5.0]),
}


def test_ppo_with_a_higher_upper_bound() -> None:
    # Ratios 1.5 and 0.5: 1.5 is clipped to 1.28 for a good token, 0.5 to 0.8 for a bad one; the third has no weight.
    trainer_logprobs = (INPUTS["logprobs"] + torch.tensor([math.log(1.5), math.log(0.5), 0.0])).requires_grad_()
    losses = token_losses("ppo", trainer_logprobs, INPUTS, {"clip_high_threshold": 1.28})
    assert losses.tolist() == pytest.approx([-2.56, 0.8, 0.0])
    (gradient,) = torch.autograd.grad(losses.sum(), trainer_logprobs)
    assert gradient.tolist() == [0.0, 0.0, 0.0]


def test_importance_sampling_carries_the_gradient() -> None:
    trainer_logprobs = (INPUTS["logprobs"] + math.log(2)).requires_grad_()
    losses = token_losses("importance_sampling", trainer_logprobs, INPUTS, None)
    (gradient,) = torch.autograd.grad(losses.sum(), trainer_logprobs)
    assert losses.tolist() == pytest.approx([-4.0, 2.0, 0.0])
    assert gradient.tolist() == pytest.approx([-4.0, 2.0, 0.0])


@pytest.mark.parametrize(
    ("loss_fn", "config", "message"),
    [
        ("ppoo", None, "loss_fn='ppoo'"),
        ("ppo", {"clip_high": 1.1}, "clip_high"),
        ("ppo", {"temperature": 0.7}, r"loss_fn_config\['temperature'\]=0.7"),
    ],
)
def test_an_unknown_loss_or_setting_is_refused(loss_fn: str, config: dict[str, float] | None, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        token_losses(loss_fn, INPUTS["logprobs"], INPUTS, config)
