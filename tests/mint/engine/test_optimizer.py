"""AdamW: worked numbers, and the blocks it goes through. Five steps beside torch.optim are in test_reference."""

from __future__ import annotations

import pytest
import torch

from mint.engine import cache_blocks
from mint.engine.optimizer import AdamState, adam_step
from mint.errors import NonFiniteError
from mint.types import AdamParams


def test_the_first_step_of_worked_numbers() -> None:
    """Corrected moments are g and g squared, so each weight decays by 0.1 * 0.01 and moves by 0.1 against its sign.

    The gradient (3, -4) has norm 5 and is clipped to 1: that changes the moments, (0.06, -0.08) and (0.018, 0.032).
    """
    params_F, grads_F = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0])
    options = AdamParams(learning_rate=0.1, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.01, grad_clip_norm=1.0)
    new_params_F, state, metrics = adam_step(params_F, grads_F, AdamState.fresh(params_F), options)
    torch.testing.assert_close(new_params_F, torch.tensor([0.999 - 0.1, 1.998 + 0.1]))
    torch.testing.assert_close(state.first_F, torch.tensor([0.06, -0.08]))
    torch.testing.assert_close(state.second_F, torch.tensor([0.018, 0.032]))
    assert state.num_steps == 1 and metrics["grad_norm:mean"] == 5.0
    assert metrics["update_norm:mean"] == pytest.approx((0.101**2 + 0.098**2) ** 0.5)
    assert params_F.tolist() == [1.0, 2.0] and grads_F.tolist() == [3.0, -4.0]


def test_blocks_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    params_F, options = torch.randn(1000), AdamParams(learning_rate=0.1, weight_decay=0.01, grad_clip_norm=1.0)
    found = []
    for size in (7, 1000, 5000):
        monkeypatch.setattr(cache_blocks, "BLOCK_NUMBERS", size)
        torch.manual_seed(1)
        own_F, state, metrics = params_F, AdamState.fresh(params_F), {}
        for _ in range(3):
            own_F, state, metrics = adam_step(own_F, torch.randn(1000), state, options)
        found.append((own_F, state.first_F, state.second_F))
        assert metrics["update_norm:mean"] > 0
    assert all(torch.equal(ours, first) for many in found[1:] for ours, first in zip(many, found[0], strict=True))


def test_a_block_that_is_not_finite_refuses_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_blocks, "BLOCK_NUMBERS", 2)
    params_F, grads_F = torch.zeros(5), torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])
    state = AdamState.fresh(params_F)
    with pytest.raises(NonFiniteError, match="no step was taken"):
        adam_step(params_F, grads_F, state, AdamParams(learning_rate=0.1, eps=0.0))
    assert not params_F.any() and not state.first_F.any() and state.num_steps == 0
