"""What the preference stage minimises: Bradley-Terry, and the additions to it that a configuration asks for.

Pure functions of reward tensors. With the defaults the objective is the mean Bradley-Terry loss, bit for bit.

Axes: _N preference pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import chz
import torch
import torch.nn.functional as F

from mint.errors import InvalidRequest


@chz.chz(typecheck=True)
class PairObjectiveConfig:
    """Additions to the Bradley-Terry loss. With m = r_chosen - r_rejected, each is off at 0."""

    # Share of pairs taken to be labelled the wrong way round: the loss is (1 - e)·(-log σ(m)) + e·(-log σ(-m)).
    label_smoothing: float = 0.0
    # How far apart the rewards of a pair should be, in nats: times the pair's strength, taken off m.
    margin_coef: float = 0.0
    # Weight of (r_chosen + r_rejected)², which keeps rewards near 0 without touching their differences.
    centring_coef: float = 0.0
    # Weight of ρ², the squared correlation of m with the difference in length over a batch, which makes a model
    # length-debiased; 1 is a good weight, 8 pairs a batch the fewest.
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

    strengths_N: how much better the chosen reply is. is_tie_N: True where neither is better. length_differences_N: the
    chosen reply's length less the rejected one's, in tokens.
    """

    strengths_N: torch.Tensor
    is_tie_N: torch.Tensor
    length_differences_N: torch.Tensor

    @classmethod
    def plain(cls, num_pairs: int) -> PairFacts:
        """Pairs of strength 1 and equal length, none of them a tie."""
        return cls(torch.ones(num_pairs), torch.zeros(num_pairs, dtype=torch.bool), torch.zeros(num_pairs))


def pair_objective(
    chosen_rewards_N: torch.Tensor, rejected_rewards_N: torch.Tensor, facts: PairFacts, config: PairObjectiveConfig
) -> torch.Tensor:
    """The mean loss over N pairs, a scalar with gradient.

    x = m - margin_coef·strength is the log-odds of the label as given, and the loss of a pair is the cross-entropy
    -t·log σ(x) - (1 - t)·log σ(-x) with t = 1 - label_smoothing. A tie counts as half a preference each way: t = ½
    and no margin. Sources: docs/losses.md.
    """
    margins_N = chosen_rewards_N - rejected_rewards_N
    assert margins_N.shape == facts.is_tie_N.shape, f"{margins_N.shape} rewards, {facts.is_tie_N.shape} pairs"
    strengths_N = facts.strengths_N.to(margins_N).masked_fill(facts.is_tie_N, 0.0)
    log_odds_N = margins_N - config.margin_coef * strengths_N
    targets_N = torch.full_like(margins_N, 1.0 - config.label_smoothing).masked_fill(facts.is_tie_N, 0.5)
    losses_N = -targets_N * F.logsigmoid(log_odds_N) - (1.0 - targets_N) * F.logsigmoid(-log_odds_N)
    loss = losses_N.mean()
    if config.centring_coef > 0.0:
        loss = loss + config.centring_coef * (chosen_rewards_N + rejected_rewards_N).square().mean()
    if config.length_debias_coef > 0.0:
        loss = loss + config.length_debias_coef * length_correlation(margins_N, facts).square()
    return loss


def length_correlation(margins_N: torch.Tensor, facts: PairFacts) -> torch.Tensor:
    """cov(m, ℓ) / sqrt((var(m) + 1)·var(ℓ)) over the pairs that are no ties; ℓ is the difference in length.

    Pearson's correlation but for the 1: without it the gradient grows without limit as margins shrink, and a model that
    knows nothing yet is thrown about. It is taken given who won, so a model whose margins ignore length has 0 however
    often the longer reply is the chosen one. 0 for fewer than three pairs and for equal differences, which say nothing.
    """
    margins_N = margins_N[~facts.is_tie_N]
    lengths_N = facts.length_differences_N[~facts.is_tie_N].to(margins_N)
    if margins_N.numel() < 3 or bool((lengths_N == lengths_N[0]).all()):
        return (0.0 * margins_N).sum()
    margins_N, lengths_N = margins_N - margins_N.mean(), lengths_N - lengths_N.mean()
    spread = ((margins_N.square().mean() + 1.0) * lengths_N.square().mean()).sqrt()
    return (margins_N * lengths_N).mean() / spread
