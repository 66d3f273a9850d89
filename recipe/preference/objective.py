"""What the preference stage minimises: Bradley-Terry, and the additions to it that a configuration asks for.

Pure functions of reward tensors. With the defaults the objective is the mean Bradley-Terry loss, bit for bit.

Axes: _N preference pair, _F feature of the lengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import chz
import torch
import torch.nn.functional as F

from mint.errors import InvalidRequest

_NUM_NEWTON_STEPS = 30


@chz.chz(typecheck=True)
class PairObjectiveConfig:
    """Additions to the Bradley-Terry loss. With m = r_chosen - r_rejected, each is off at 0."""

    # Share of pairs taken to be labelled the wrong way round: the loss is (1 - e)·(-log σ(m)) + e·(-log σ(-m)).
    label_smoothing: float = 0.0
    # How far apart the rewards of a pair should be, in nats: times the pair's strength, taken off m.
    margin_coef: float = 0.0
    # Weight of (r_chosen + r_rejected)², which keeps rewards near 0 without touching their differences.
    centring_coef: float = 0.0
    # Share of what length alone says about a pair that is added to m in training, and not when scoring: at 1 the model
    # has no reason left to learn that longer replies won more often.
    length_debias_coef: float = 0.0

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _ranges(self) -> None:
        if not 0.0 <= self.label_smoothing < 0.5:
            raise InvalidRequest(
                f"objective.label_smoothing={self.label_smoothing}: must be at least 0 and below 0.5, where a label "
                "would say nothing"
            )
        for name in ("margin_coef", "centring_coef", "length_debias_coef"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise InvalidRequest(f"objective.{name}={value}: must be finite and at least 0")


@dataclass(frozen=True)
class PairFacts:
    """What the objective knows of N pairs beside their rewards.

    strengths_N: how much better the chosen reply is. is_tie_N: True where neither is better. length_log_odds_N: of the
    chosen reply being preferred, as far as the lengths alone tell (`LengthModel`).
    """

    strengths_N: torch.Tensor
    is_tie_N: torch.Tensor
    length_log_odds_N: torch.Tensor

    @classmethod
    def plain(cls, num_pairs: int) -> PairFacts:
        """Pairs of strength 1 of which length says nothing, none of them a tie."""
        return cls(torch.ones(num_pairs), torch.zeros(num_pairs, dtype=torch.bool), torch.zeros(num_pairs))


def pair_objective(
    chosen_rewards_N: torch.Tensor, rejected_rewards_N: torch.Tensor, facts: PairFacts, config: PairObjectiveConfig
) -> torch.Tensor:
    """The mean loss over N pairs, a scalar with gradient.

    x = m - margin_coef·strength + length_debias_coef·length_log_odds is the log-odds of the label as given, and the
    loss of a pair is the cross-entropy -t·log σ(x) - (1 - t)·log σ(-x) with t = 1 - label_smoothing. A tie counts as
    half a preference each way: t = ½ and no margin. Sources: docs/losses.md.
    """
    margins_N = chosen_rewards_N - rejected_rewards_N
    assert margins_N.shape == facts.is_tie_N.shape, f"{margins_N.shape} rewards, {facts.is_tie_N.shape} pairs"
    strengths_N = facts.strengths_N.to(margins_N).masked_fill(facts.is_tie_N, 0.0)
    log_odds_N = margins_N - config.margin_coef * strengths_N
    if config.length_debias_coef > 0.0:
        log_odds_N = log_odds_N + config.length_debias_coef * facts.length_log_odds_N.to(margins_N)
    targets_N = torch.full_like(margins_N, 1.0 - config.label_smoothing).masked_fill(facts.is_tie_N, 0.5)
    losses_N = -targets_N * F.logsigmoid(log_odds_N) - (1.0 - targets_N) * F.logsigmoid(-log_odds_N)
    loss = losses_N.mean()
    if config.centring_coef > 0.0:
        loss = loss + config.centring_coef * (chosen_rewards_N + rejected_rewards_N).square().mean()
    return loss


@dataclass(frozen=True)
class LengthModel:
    """Who is preferred, from lengths alone: log-odds sign·sgn(ℓ) + slope·ℓ for a reply that is longer by ℓ tokens."""

    sign: float = 0.0
    slope: float = 0.0

    def log_odds(self, length_differences_N: torch.Tensor) -> torch.Tensor:
        """Of the reply whose length comes first in the difference."""
        return self.sign * length_differences_N.sign() + self.slope * length_differences_N

    @classmethod
    def fit(cls, length_differences: Sequence[int]) -> LengthModel:
        """By logistic regression on pairs that are no ties, chosen less rejected; all 0 where no lengths differ.

        With the targets of Platt (1999), (N + 1)/(N + 2) in place of 1, so it is finite where the longer reply always
        wins. Newton's method in float64; the ridge of 1e-6 decides where all differences are of one size.
        """
        differences_N = torch.tensor(length_differences, dtype=torch.float64)
        scale = differences_N.square().mean().sqrt().item() if len(length_differences) else 0.0
        if scale == 0.0:
            return cls()
        features_NF = torch.stack([differences_N.sign(), differences_N / scale], dim=1)
        target = (len(length_differences) + 1) / (len(length_differences) + 2)

        def objective(weights_F: torch.Tensor) -> torch.Tensor:
            log_odds_N = features_NF @ weights_F
            losses_N = -target * F.logsigmoid(log_odds_N) - (1 - target) * F.logsigmoid(-log_odds_N)
            return losses_N.mean() + 1e-6 * weights_F.square().sum()

        weights_F = torch.zeros(2, dtype=torch.float64)
        for _ in range(_NUM_NEWTON_STEPS):
            chances_N = torch.sigmoid(features_NF @ weights_F)
            gradient_F = features_NF.T @ (chances_N - target) / len(differences_N) + 2e-6 * weights_F
            curvature_N = (chances_N * (1 - chances_N) / len(differences_N))[:, None]
            hessian_FF = features_NF.T @ (curvature_N * features_NF) + 2e-6 * torch.eye(2, dtype=torch.float64)
            step_F = torch.linalg.solve(hessian_FF, gradient_F)
            size = 1.0
            while size > 1e-6 and objective(weights_F - size * step_F) > objective(weights_F):
                size /= 2  # far from the minimum a full step overshoots
            weights_F = weights_F - size * step_F
        return cls(weights_F[0].item(), weights_F[1].item() / scale)
