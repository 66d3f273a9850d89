"""The losses of the DPO family: by hand, against autograd on full distributions, and what must not change them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mint.errors import InvalidRequest
from recipe.preference.dpo.config import LossConfig
from recipe.preference.dpo.losses import (
    HIGHEST_MEAN_LOGPROB,
    PREFERENCE_LOSSES,
    ReplyLogprobs,
    kl_estimate,
    kto_losses,
    pair_losses,
)

PAIR_LOSSES = [name for name, row in PREFERENCE_LOSSES.items() if row.is_of_pairs]
sums = st.floats(min_value=-400, max_value=-0.5)


def replies(policy: list[float], num_tokens: list[int], reference: list[float] | None = None) -> ReplyLogprobs:
    return ReplyLogprobs(
        torch.tensor(policy, dtype=torch.float64, requires_grad=True),
        torch.tensor(num_tokens, dtype=torch.float64),
        None if reference is None else torch.tensor(reference, dtype=torch.float64),
    )


def value_and_slopes(config: LossConfig, chosen: ReplyLogprobs, rejected: ReplyLogprobs) -> tuple[float, float, float]:
    """Summed loss, and its slope in the first chosen and the first rejected logprob."""
    losses_N, _, _ = pair_losses(config.row, config.settings(), chosen, rejected)
    losses_N.sum().backward()
    assert chosen.policy_R.grad is not None and rejected.policy_R.grad is not None
    return losses_N.sum().item(), chosen.policy_R.grad[0].item(), rejected.policy_R.grad[0].item()


# One pair for all: the policy gives its replies of 4 and 2 tokens −6 and −5 nats, the reference −8 and −4. The
# log-ratios are 2 and −1, so h = 3; per token −1.5 and −2.5.
CHOSEN, REJECTED = ([-6.0], [4], [-8.0]), ([-5.0], [2], [-4.0])
LOG_3 = math.log(3)


@pytest.mark.parametrize(
    ("settings", "loss", "chosen_slope", "rejected_slope"),
    [
        # β = log 3 / 3: m = log 3, σ(m) = 3/4; −log ¾ and −β·(1 − ¾).
        ({"name": "dpo", "beta": LOG_3 / 3}, math.log(4 / 3), -LOG_3 / 12, LOG_3 / 12),
        # ε = 0.2: −0.8·log ¾ − 0.2·log ¼; slope β·(−0.8·¼ + 0.2·¾) = −0.05·β.
        (
            {"name": "dpo", "beta": LOG_3 / 3, "label_smoothing": 0.2},
            0.8 * math.log(4 / 3) + 0.2 * math.log(4),
            -0.05 * LOG_3 / 3,
            0.05 * LOG_3 / 3,
        ),
        # The likelihood of the chosen reply per token, added: 2·1.5, with slope −2/4.
        (
            {"name": "dpo", "beta": LOG_3 / 3, "nll_coef": 2.0},
            math.log(4 / 3) + 3.0,
            -LOG_3 / 12 - 0.5,
            LOG_3 / 12,
        ),
        # β = ¼: (3 − 2)² with slope 2·(3 − 2).
        ({"name": "ipo", "beta": 0.25}, 1.0, 2.0, -2.0),
        # β = ⅙: the target 1/(2β) is reached.
        ({"name": "ipo", "beta": 1 / 6}, 0.0, 0.0, 0.0),
        # 2 − ½·3 is still to be gained; slope −β.
        ({"name": "hinge", "beta": 0.5, "target_margin": 2.0}, 0.5, -0.5, 0.5),
        ({"name": "hinge", "beta": 0.5, "target_margin": 1.0}, 0.0, 0.0, 0.0),
        # Without a reference the margin is −6 + 5 = −1; δ = 2: 2 + 1, and ½·1.5 of likelihood with slope −½/4.
        ({"name": "slic", "target_margin": 2.0, "nll_coef": 0.5}, 3.75, -1.125, 1.0),
        # Per token −1.5 and −2.5: m = β − γ = log 3 at β = 2·log 3, γ = log 3. Slope −¼·β/4 and ¼·β/2.
        (
            {"name": "simpo", "beta": 2 * LOG_3, "target_margin": LOG_3},
            math.log(4 / 3),
            -2 * LOG_3 / 16,
            2 * LOG_3 / 8,
        ),
    ],
)
def test_value_and_gradient_by_hand(
    settings: dict[str, Any], loss: float, chosen_slope: float, rejected_slope: float
) -> None:
    config = LossConfig(**settings)
    found = value_and_slopes(config, replies(*CHOSEN), replies(*REJECTED))
    assert found == pytest.approx((loss, chosen_slope, rejected_slope), abs=1e-12)


def test_odds_ratio_by_hand() -> None:
    # Mean probabilities ¾ and ½, so odds 3 and 1 and a log odds ratio of log 3: σ is ¾. d log odds / d log p is
    # 1/(1 − p), that is 4 and 2, over 2 tokens each 2 and 1; the slope of −¼·log σ is −¼·¼.
    chosen, rejected = replies([2 * math.log(0.75)], [2]), replies([2 * math.log(0.5)], [2])
    found = value_and_slopes(LossConfig(name="orpo", beta=0.25), chosen, rejected)
    nll = -math.log(0.75)
    assert found == pytest.approx((nll + 0.25 * math.log(4 / 3), -0.5 - 2 / 16, 1 / 16))


def test_odds_of_a_certain_reply_stay_finite() -> None:
    chosen, rejected = replies([0.0], [3]), replies([HIGHEST_MEAN_LOGPROB / 100], [3])
    assert all(math.isfinite(x) for x in value_and_slopes(LossConfig(name="orpo"), chosen, rejected))


def test_kto_by_hand() -> None:
    # Log-ratios log 3 + 1 and 1 − log 3 against a KL of 1 at β = 1: σ is ¾ and ¼.
    settings = LossConfig(name="kto", beta=1.0, desirable_weight=2.0, undesirable_weight=4.0).settings()
    both = replies([-5.0, -5.0], [1, 1], [-6.0 - LOG_3, -6.0 + LOG_3])
    kl = torch.tensor(1.0, dtype=torch.float64)
    for is_desirable, losses, slopes in (
        ([True, True], [0.5, 1.5], [-2 * 3 / 16, -2 * 3 / 16]),
        ([False, False], [3.0, 1.0], [4 * 3 / 16, 4 * 3 / 16]),
        ([True, False], [0.5, 1.0], [-2 * 3 / 16, 4 * 3 / 16]),
    ):
        both.policy_R.grad = None
        losses_R = kto_losses(settings, both, torch.tensor(is_desirable), kl)
        losses_R.sum().backward()
        assert losses_R.tolist() == pytest.approx(losses)
        assert both.policy_R.grad is not None and both.policy_R.grad.tolist() == pytest.approx(slopes)


def test_the_kl_of_kto_is_a_mean_held_at_zero_and_carries_no_gradient() -> None:
    kl = kl_estimate(replies([-2.0, -3.0], [1, 1], [-4.0, -4.0]))
    assert kl.item() == 1.5 and not kl.requires_grad
    assert kl_estimate(replies([-4.0], [1], [-2.0])).item() == 0.0
    assert kl_estimate(replies([], [], [])).item() == 0.0


def paper_loss(
    name: str, beta: float, logits_c: torch.Tensor, logits_r: torch.Tensor, ref: list[float]
) -> torch.Tensor:
    """Each paper's formula, written out on whole distributions. The replies are token 0 at every position."""
    p_c = torch.softmax(logits_c, -1)[:, 0]
    p_r = torch.softmax(logits_r, -1)[:, 0]
    if name == "dpo":
        ratio_c, ratio_r = p_c.prod() / math.exp(ref[0]), p_r.prod() / math.exp(ref[1])
        return -torch.log(1 / (1 + torch.exp(-(beta * torch.log(ratio_c) - beta * torch.log(ratio_r)))))
    if name == "ipo":
        h = torch.log(p_c.prod() * math.exp(ref[1]) / (p_r.prod() * math.exp(ref[0])))
        return (h - 1 / (2 * beta)) ** 2
    if name == "hinge":
        h = torch.log(p_c.prod() / p_r.prod()) - (ref[0] - ref[1])
        return torch.clamp(1 - beta * h, min=0)
    if name == "slic":
        return torch.clamp(1 - torch.log(p_c.prod()) + torch.log(p_r.prod()), min=0) - 0.5 * torch.log(p_c).mean()
    if name == "simpo":
        return -torch.log(torch.sigmoid(beta * torch.log(p_c).mean() - beta * torch.log(p_r).mean() - 1.0))
    assert name == "orpo"
    mean_c, mean_r = p_c.prod() ** (1 / len(p_c)), p_r.prod() ** (1 / len(p_r))
    odds_ratio = (mean_c / (1 - mean_c)) / (mean_r / (1 - mean_r))
    return -torch.log(p_c).mean() - beta * torch.log(torch.sigmoid(torch.log(odds_ratio)))


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_value_and_gradient_agree_with_the_papers_formula_on_whole_distributions(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        logits = [torch.randn(n, 7, generator=generator, dtype=torch.float64).requires_grad_() for n in (5, 3)]
        ref = [float(x) for x in -4 - 4 * torch.rand(2, generator=generator, dtype=torch.float64)]
        config = LossConfig(name=name)
        logprobs = [torch.log_softmax(side, -1)[:, 0].sum()[None] for side in logits]
        references = (
            [torch.tensor([x], dtype=torch.float64) for x in ref] if config.row.uses_reference else [None, None]
        )
        sides = [
            ReplyLogprobs(logprob, torch.tensor([n], dtype=torch.float64), reference)
            for logprob, n, reference in zip(logprobs, (5, 3), references, strict=True)
        ]
        losses_N, _, _ = pair_losses(config.row, config.settings(), sides[0], sides[1])
        wanted = paper_loss(name, config.settings().beta, logits[0], logits[1], ref)
        assert losses_N.item() == pytest.approx(wanted.item(), abs=1e-9)
        found = torch.autograd.grad(losses_N.sum(), logits)
        for mine, theirs in zip(found, torch.autograd.grad(wanted, logits), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-9)


@pytest.mark.parametrize("name", PAIR_LOSSES)
@given(chosen=sums, rejected=sums, reference=sums)
def test_swapping_the_replies_swaps_the_rewards(name: str, chosen: float, rejected: float, reference: float) -> None:
    config = LossConfig(name=name)
    sides = replies([chosen], [3], [reference]), replies([rejected], [3], [reference])
    _, chosen_N, rejected_N = pair_losses(config.row, config.settings(), *sides)
    _, swapped_chosen_N, swapped_rejected_N = pair_losses(config.row, config.settings(), *reversed(sides))
    assert (chosen_N - rejected_N).item() == -(swapped_chosen_N - swapped_rejected_N).item()


@pytest.mark.parametrize("name", PAIR_LOSSES)
@given(chosen=sums, rejected=sums)
def test_extreme_logprobs_keep_loss_and_gradient_finite(name: str, chosen: float, rejected: float) -> None:
    sides = replies([1e4 * chosen], [3], [-1.0]), replies([1e4 * rejected], [3], [-1.0])
    assert all(math.isfinite(x) for x in value_and_slopes(LossConfig(name=name), *sides))


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_the_loss_of_a_pair_does_not_depend_on_the_others(name: str) -> None:
    config = LossConfig(name=name)
    policy, reference = [[-6.0, -9.0, -2.0], [-5.0, -4.0, -8.0]], [[-8.0, -8.0, -3.0], [-4.0, -6.0, -7.0]]

    def losses(order: list[int]) -> list[float]:
        sides = [
            replies([p[i] for i in order], [i + 1 for i in order], [r[i] for i in order])
            for p, r in zip(policy, reference, strict=True)
        ]
        return pair_losses(config.row, config.settings(), sides[0], sides[1])[0].tolist()

    together = losses([0, 1, 2])
    assert losses([2, 0, 1]) == [together[2], together[0], together[1]]
    assert [losses([i])[0] for i in range(3)] == together


@given(beta=st.floats(0.01, 5.0), scale=st.floats(0.1, 10.0))
def test_only_beta_times_the_log_ratio_counts(beta: float, scale: float) -> None:
    chosen, rejected = replies([-2.0 * scale], [1], [0.0]), replies([-3.0 * scale], [1], [0.0])
    plain = replies([-2.0], [1], [0.0]), replies([-3.0], [1], [0.0])
    small, large = LossConfig(beta=beta), LossConfig(beta=beta * scale)
    scaled, _, _ = pair_losses(small.row, small.settings(), chosen, rejected)
    wanted, _, _ = pair_losses(large.row, large.settings(), *plain)
    assert scaled.item() == pytest.approx(wanted.item())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "dpoo"}, "unknown preference loss 'dpoo': known are dpo, ipo, hinge, slic, simpo, orpo, kto"),
        ({"beta": 0.0}, "loss.beta=0.0: must be above 0"),
        ({"beta": math.nan}, "loss.beta=nan: must be a finite number"),
        ({"label_smoothing": 0.5}, "loss.label_smoothing=0.5: must be at least 0 and below 0.5"),
        (
            {"name": "simpo", "label_smoothing": 0.1},
            "loss.label_smoothing=0.1 with loss.name='simpo': it is a setting of dpo; leave it out",
        ),
        ({"target_margin": 1.0}, "loss.target_margin=1.0 with loss.name='dpo': it is a setting of hinge, slic, simpo"),
        ({"name": "simpo", "target_margin": -1.0}, "loss.target_margin=-1.0: must not be negative"),
        ({"name": "kto", "nll_coef": 0.1}, "loss.nll_coef=0.1 with loss.name='kto'"),
        ({"name": "kto", "desirable_weight": 0.0}, "loss.desirable_weight=0.0: must be above 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LossConfig(**settings)
    assert words in str(caught.value)
