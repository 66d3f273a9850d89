"""The losses of the DPO family, as functions of what policy and reference say of whole replies.

Each loss but KTO's has one form: a reward r of a reply, read from its logprobs, and a loss of the margin
r_chosen − r_rejected of a pair, to which the negative log-likelihood of the chosen reply may be added. docs/losses.md
has the formulas and papers. Pure functions of tensors.

Axes: _R reply, _N preference pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mint.errors import InvalidRequest, nearest_name

# Above this mean logprob the odds of a reply are held: they would grow beyond all bounds as it becomes certain.
HIGHEST_MEAN_LOGPROB = -1e-6


@dataclass(frozen=True)
class ReplyLogprobs:
    """What a loss sees of R replies.

    policy_R, reference_R: Σ w·logprob of the reply's tokens, under the policy with gradient and under the reference
    (None for a loss that uses none). num_tokens_R: Σ w, the tokens of each reply, its end of turn included.
    """

    policy_R: torch.Tensor
    num_tokens_R: torch.Tensor
    reference_R: torch.Tensor | None = None

    @property
    def log_ratios_R(self) -> torch.Tensor:
        """log π(reply) − log π_ref(reply)."""
        assert self.reference_R is not None, "a loss that uses a reference gets its logprobs"
        return self.policy_R - self.reference_R

    @property
    def means_R(self) -> torch.Tensor:
        """Logprob per token under the policy."""
        return self.policy_R / self.num_tokens_R


@dataclass(frozen=True)
class LossSettings:
    """The numbers of a loss; those that it does not take are 0 or 1 and without effect."""

    beta: float = 1.0
    label_smoothing: float = 0.0
    target_margin: float = 0.0
    nll_coef: float = 0.0
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0


@dataclass(frozen=True)
class PreferenceLoss:
    """One loss of the family.

    reward: rewards_R of replies. of_margin: losses_N from margins_N; None for KTO, which looks at single replies.
    defaults: the settings it takes, with their usual values.
    """

    reward: Callable[[ReplyLogprobs, LossSettings], torch.Tensor]
    of_margin: Callable[[torch.Tensor, LossSettings], torch.Tensor] | None
    uses_reference: bool
    defaults: Mapping[str, float]

    @property
    def is_of_pairs(self) -> bool:
        """False for a loss of single replies with a thumb up or down."""
        return self.of_margin is not None


def log_ratio_reward(replies: ReplyLogprobs, settings: LossSettings) -> torch.Tensor:
    """r = β·(log π − log π_ref): the implicit reward of DPO."""
    return settings.beta * replies.log_ratios_R


def logprob_reward(replies: ReplyLogprobs, settings: LossSettings) -> torch.Tensor:
    """r = β·log π, of the whole reply and without a reference."""
    return settings.beta * replies.policy_R


def mean_logprob_reward(replies: ReplyLogprobs, settings: LossSettings) -> torch.Tensor:
    """r = β·(log π) / |y|."""
    return settings.beta * replies.means_R


def log_odds_reward(replies: ReplyLogprobs, settings: LossSettings) -> torch.Tensor:
    """r = log P − log(1 − P) with log P = (log π) / |y|. β weighs the loss, not the reward."""
    means_R = replies.means_R.clamp(max=HIGHEST_MEAN_LOGPROB)
    return means_R - torch.log(-torch.expm1(means_R))


def logistic_loss(margins_N: torch.Tensor, settings: LossSettings) -> torch.Tensor:
    """−(1 − ε)·log σ(m) − ε·log σ(−m), with ε the chance that a preference is the wrong way round."""
    smoothing = settings.label_smoothing
    return -(1 - smoothing) * F.logsigmoid(margins_N) - smoothing * F.logsigmoid(-margins_N)


def squared_loss(margins_N: torch.Tensor, settings: LossSettings) -> torch.Tensor:
    """(m/β − 1/(2β))²: the log-ratios are to differ by 1/(2β), and no more."""
    return ((margins_N - 0.5) / settings.beta) ** 2


def hinge_loss(margins_N: torch.Tensor, settings: LossSettings) -> torch.Tensor:
    """max(0, δ − m): nothing to gain once the margin is δ."""
    return torch.relu(settings.target_margin - margins_N)


def logistic_loss_beyond_target(margins_N: torch.Tensor, settings: LossSettings) -> torch.Tensor:
    """−log σ(m − γ)."""
    return -F.logsigmoid(margins_N - settings.target_margin)


def weighted_logistic_loss(margins_N: torch.Tensor, settings: LossSettings) -> torch.Tensor:
    """−β·log σ(m)."""
    return -settings.beta * F.logsigmoid(margins_N)


PREFERENCE_LOSSES: dict[str, PreferenceLoss] = {
    "dpo": PreferenceLoss(
        log_ratio_reward, logistic_loss, True, {"beta": 0.1, "label_smoothing": 0.0, "nll_coef": 0.0}
    ),
    "ipo": PreferenceLoss(log_ratio_reward, squared_loss, True, {"beta": 0.1, "nll_coef": 0.0}),
    "hinge": PreferenceLoss(log_ratio_reward, hinge_loss, True, {"beta": 0.1, "target_margin": 1.0, "nll_coef": 0.0}),
    "slic": PreferenceLoss(logprob_reward, hinge_loss, False, {"beta": 1.0, "target_margin": 1.0, "nll_coef": 0.5}),
    "simpo": PreferenceLoss(
        mean_logprob_reward,
        logistic_loss_beyond_target,
        False,
        {"beta": 2.0, "target_margin": 1.0, "nll_coef": 0.0},
    ),
    "orpo": PreferenceLoss(log_odds_reward, weighted_logistic_loss, False, {"beta": 0.1, "nll_coef": 1.0}),
    "kto": PreferenceLoss(
        log_ratio_reward, None, True, {"beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0}
    ),
}


def get_preference_loss(name: str) -> PreferenceLoss:
    """The loss called `name`; InvalidRequest names those there are."""
    if name not in PREFERENCE_LOSSES:
        raise InvalidRequest(
            f"unknown preference loss {name!r}: known are {', '.join(PREFERENCE_LOSSES)}."
            f"{nearest_name(name, PREFERENCE_LOSSES)}"
        )
    return PREFERENCE_LOSSES[name]


def pair_losses(
    loss: PreferenceLoss, settings: LossSettings, chosen: ReplyLogprobs, rejected: ReplyLogprobs
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(losses_N, chosen_rewards_N, rejected_rewards_N) of N pairs, the i-th replies of both being a pair."""
    assert loss.of_margin is not None, "this loss looks at single replies"
    assert chosen.policy_R.shape == rejected.policy_R.shape, "as many chosen replies as rejected ones"
    chosen_rewards_N, rejected_rewards_N = loss.reward(chosen, settings), loss.reward(rejected, settings)
    losses_N = loss.of_margin(chosen_rewards_N - rejected_rewards_N, settings)
    return losses_N - settings.nll_coef * chosen.means_R, chosen_rewards_N, rejected_rewards_N


def kl_estimate(mismatched: ReplyLogprobs) -> torch.Tensor:
    """max(0, mean of log π − log π_ref over replies to other prompts): KTO's point of reference, in nats, no gradient.

    0 where there are no such replies.
    """
    if mismatched.policy_R.numel() == 0:
        return mismatched.policy_R.new_zeros(())
    return mismatched.log_ratios_R.detach().mean().clamp(min=0.0)


def kto_losses(
    settings: LossSettings, replies: ReplyLogprobs, is_desirable_R: torch.Tensor, kl: torch.Tensor
) -> torch.Tensor:
    """losses_R = weight·(1 − σ(±(r − β·kl))): + for a desirable reply, − for an undesirable one."""
    distances_R = log_ratio_reward(replies, settings) - settings.beta * kl
    desirable_R = settings.desirable_weight * torch.sigmoid(-distances_R)
    undesirable_R = settings.undesirable_weight * torch.sigmoid(distances_R)
    return torch.where(is_desirable_R, desirable_R, undesirable_R)
