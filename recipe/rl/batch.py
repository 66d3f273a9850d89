"""From scored groups to the training sequences of one update.

Axes: _P group of the batch (problem), _G member of a group, _K turn of an episode, _T sampled token, _D training
sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mint
from recipe.rl.advantages import get_advantage_fn, is_constant
from recipe.rl.credit import AdvantageConfig, length_factors, token_advantages
from recipe.rl.datums import TrainingSequence, num_sampled_tokens, sequences_from_trajectory
from recipe.rl.kl import ReferencedSequence, add_kl_penalty, kl_metrics
from recipe.rl.kl_coefficient import KLPenaltyConfig
from recipe.rl.metrics import constant_group_metrics, entropy_metrics
from recipe.rl.reference_logprobs import fetch_reference
from recipe.rl.types import TrajectoryGroup


@dataclass(frozen=True)
class ScoredGroup:
    """A group, the advantage of each token that it sampled, and the factor on the loss of each member."""

    group: TrajectoryGroup
    advantages_GKT: list[list[list[float]]]
    loss_factors_G: list[float]

    def __post_init__(self) -> None:
        sizes = (len(self.group), len(self.advantages_GKT), len(self.loss_factors_G))
        assert len(set(sizes)) == 1, f"a group's members, advantages and loss factors differ in number: {sizes}"

    @property
    def teaches_nothing(self) -> bool:
        """True when no token has an advantage: with the whole reward on every token, when all rewards are the same."""
        return not any(any(advantages) for advantages in self._flat_advantages_G)

    @property
    def mean_advantages_G(self) -> list[float]:
        """The mean advantage over each member's tokens; exactly the advantage where all of them have the same."""
        return [_mean(advantages) for advantages in self._flat_advantages_G]

    @property
    def _flat_advantages_G(self) -> list[list[float]]:
        return [[value for turn in advantages_KT for value in turn] for advantages_KT in self.advantages_GKT]

    def sequences(self) -> list[TrainingSequence]:
        """The training sequences of all members, in order."""
        return [
            sequence
            for i_member, (trajectory, advantages_KT, loss_factor) in enumerate(
                zip(self.group.trajectories_G, self.advantages_GKT, self.loss_factors_G, strict=True)
            )
            for sequence in sequences_from_trajectory(
                trajectory, advantages_KT, i_group=self.group.i_group, i_member=i_member, loss_factor=loss_factor
            )
        ]


@dataclass(frozen=True)
class KLPenalty:
    """The reference policy and what departing from it costs."""

    reference_client: mint.SamplingClient
    # Coefficient of the penalty; 0 means that KL is only reported.
    coef: float
    # The policy that sampled the batch, and at which temperature it did.
    policy_client: mint.SamplingClient
    temperature: float
    config: KLPenaltyConfig

    def apply(self, referenced_D: Sequence[ReferencedSequence]) -> list[TrainingSequence]:
        """The sequences with the penalty in their advantages, or with what the loss needs to compute it."""
        if self.coef == 0:
            return [row.sequence for row in referenced_D]
        if self.config.loss_estimator is None:
            return add_kl_penalty(referenced_D, self.coef, self.config.discount)
        return [replace(row.sequence, reference_logprobs_T=row.reference_logprobs_T) for row in referenced_D]


@dataclass(frozen=True)
class TrainingBatch:
    """What an update trains on, and what is reported about it."""

    scored_P: list[ScoredGroup]
    # What was sampled in all groups, advantages without the KL penalty.
    sampled_D: list[TrainingSequence]
    # What is trained on: of the groups that were kept, advantages with the penalty.
    sequences_D: list[TrainingSequence]
    # `sampled_D` with the logprobs of the reference policy; None where there is no reference.
    referenced_D: list[ReferencedSequence] | None
    # Groups left out because all their rewards are the same.
    num_dropped_groups: int

    @classmethod
    def joined(cls, parts: Sequence[TrainingBatch]) -> TrainingBatch:
        """The parts of one iteration as one batch, in order."""
        has_reference = any(part.referenced_D is not None for part in parts)
        return cls(
            [scored for part in parts for scored in part.scored_P],
            [sequence for part in parts for sequence in part.sampled_D],
            [sequence for part in parts for sequence in part.sequences_D],
            [row for part in parts for row in part.referenced_D or []] if has_reference else None,
            sum(part.num_dropped_groups for part in parts),
        )

    @property
    def metrics(self) -> dict[str, float]:
        """KL and entropy are reported over all groups, so dropping some does not bend them."""
        return {
            "batch/num_groups": float(len(self.scored_P)),
            **constant_group_metrics([scored.group for scored in self.scored_P]),
            "batch/num_dropped_groups": float(self.num_dropped_groups),
            "batch/num_datums": float(len(self.sequences_D)),
            "batch/num_action_tokens": float(num_sampled_tokens(self.sequences_D)),
            **entropy_metrics(self.sampled_D),
            **({} if self.referenced_D is None else kl_metrics(self.referenced_D)),
        }


def score_groups(
    groups_P: Sequence[TrajectoryGroup], advantage: str, config: AdvantageConfig, max_tokens: int
) -> list[ScoredGroup]:
    """Each group with its advantages. advantage: one of ADVANTAGES. max_tokens: the most that are sampled in a turn."""
    advantage_fn = get_advantage_fn(advantage)
    return [
        ScoredGroup(
            group,
            token_advantages(group, advantage_fn, config),
            length_factors(group, config.length_norm, max_tokens),
        )
        for group in groups_P
    ]


async def build_batch(
    scored_P: Sequence[ScoredGroup], *, remove_constant_reward_groups: bool, penalty: KLPenalty | None
) -> TrainingBatch:
    """The sequences to train on: of all groups, or of those that teach something, with the KL penalty applied."""
    sampled_D = [sequence for scored in scored_P for sequence in scored.sequences()]
    kept = {s.group.i_group for s in scored_P if not (remove_constant_reward_groups and s.teaches_nothing)}
    sequences_D = [sequence for sequence in sampled_D if sequence.i_group in kept]
    referenced_D = None
    if penalty is not None:
        referenced_D = await fetch_reference(
            sampled_D, penalty.reference_client, penalty.policy_client, penalty.temperature
        )
        sequences_D = penalty.apply([row for row in referenced_D if row.sequence.i_group in kept])
    return TrainingBatch(list(scored_P), sampled_D, sequences_D, referenced_D, len(scored_P) - len(kept))


def _mean(values: Sequence[float]) -> float:
    if not values:
        return 0.0
    return values[0] if is_constant(values) else sum(values) / len(values)
