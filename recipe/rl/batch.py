"""From scored groups to the training sequences of one update.

Axes: _P group of the batch (problem), _G member of a group, _D training sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mint
from recipe.rl.advantages import AdvantageFn, is_constant
from recipe.rl.datums import TrainingSequence, num_sampled_tokens, sequences_from_trajectory
from recipe.rl.kl import add_kl_penalty, kl_metrics
from recipe.rl.metrics import entropy_metrics
from recipe.rl.reference_logprobs import fetch_reference
from recipe.rl.types import TrajectoryGroup


@dataclass(frozen=True)
class ScoredGroup:
    """A group and the advantage of each of its members."""

    group: TrajectoryGroup
    advantages_G: list[float]

    def __post_init__(self) -> None:
        assert len(self.group) == len(self.advantages_G), (
            f"{len(self.group)} members, {len(self.advantages_G)} advantages"
        )

    @property
    def has_constant_reward(self) -> bool:
        """True when every member has the same reward."""
        return is_constant(self.group.get_total_rewards())

    def sequences(self) -> list[TrainingSequence]:
        """The training sequences of all members, in order."""
        return [
            sequence
            for i_member, (trajectory, advantage) in enumerate(
                zip(self.group.trajectories_G, self.advantages_G, strict=True)
            )
            for sequence in sequences_from_trajectory(
                trajectory, advantage, i_group=self.group.i_group, i_member=i_member
            )
        ]


@dataclass(frozen=True)
class KLPenalty:
    """The reference policy and what departing from it costs."""

    reference_client: mint.SamplingClient
    # Coefficient of the penalty in the advantages; 0 means that KL is only reported.
    coef: float
    # The policy that sampled the batch, and at which temperature it did.
    policy_client: mint.SamplingClient
    temperature: float


@dataclass(frozen=True)
class TrainingBatch:
    """What one update trains on, and what is reported about it."""

    sequences_D: list[TrainingSequence]
    metrics: dict[str, float]


def score_groups(groups_P: Sequence[TrajectoryGroup], advantage_fn: AdvantageFn) -> list[ScoredGroup]:
    """Each group with its advantages."""
    return [ScoredGroup(group, advantage_fn(group.get_total_rewards())) for group in groups_P]


async def build_batch(
    scored_P: Sequence[ScoredGroup], *, remove_constant_reward_groups: bool, penalty: KLPenalty | None
) -> TrainingBatch:
    """The sequences to train on: of all groups, or of those whose rewards differ, with the KL penalty added.

    KL and entropy are reported over all groups, so dropping some does not bend them.
    """
    all_sequences_D = [sequence for scored in scored_P for sequence in scored.sequences()]
    dropped = {
        scored.group.i_group for scored in scored_P if remove_constant_reward_groups and scored.has_constant_reward
    }
    metrics = {
        "batch/num_groups": float(len(scored_P)),
        "batch/num_constant_groups": float(sum(scored.has_constant_reward for scored in scored_P)),
        "batch/num_dropped_groups": float(len(dropped)),
        **entropy_metrics(all_sequences_D),
    }
    sequences_D = [sequence for sequence in all_sequences_D if sequence.i_group not in dropped]
    if penalty is not None:
        referenced_D = await fetch_reference(
            all_sequences_D, penalty.reference_client, penalty.policy_client, penalty.temperature
        )
        metrics |= kl_metrics(referenced_D)
        if penalty.coef > 0:
            kept_D = [row for row in referenced_D if row.sequence.i_group not in dropped]
            sequences_D = add_kl_penalty(kept_D, penalty.coef)
    metrics["batch/num_datums"] = float(len(sequences_D))
    metrics["batch/num_action_tokens"] = float(num_sampled_tokens(sequences_D))
    return TrainingBatch(sequences_D, metrics)
