"""The vocabulary of the RL stage: the environment protocol (which lives in `envs.types`), groups of trajectories, and
what became of groups whose environments failed.

Axes: _P group of the batch (problem), _G member of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from envs.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Logs,
    Metrics,
    Observation,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    StopCondition,
    TokensWithLogprobs,
    Trajectory,
    Transition,
    WrongType,
)

FaultKind = Literal["raised", "hung", "non_finite", "wrong_type"]


@dataclass(frozen=True)
class TrajectoryGroup:
    """The episodes that one EnvGroupBuilder gave rise to, with everything known about them.

    Advantages are centred within a group. Rewards, metrics and tags stay on this one object, so nothing that drops or
    reorders groups can pair an episode with another one's numbers.
    """

    # One episode per member.
    trajectories_G: list[Trajectory]
    # What compute_group_rewards() added to each member's step rewards.
    final_rewards_G: list[float]
    # What compute_group_rewards() measured for each member.
    metrics_G: list[Metrics]
    # The builder's logging_tags(): each gives its own env/<tag>/... metrics.
    tags: list[str] = field(default_factory=list)
    # Class name of the environment, for messages.
    env_name: str = ""
    # Position of the group in its batch: part of every seed used for it, and its name in messages and exports.
    i_group: int = 0
    # The builder's problem_id(): the name under which the dataset is told the rewards.
    problem_id: str | None = None

    def __post_init__(self) -> None:
        sizes = (len(self.trajectories_G), len(self.final_rewards_G), len(self.metrics_G))
        assert len(set(sizes)) == 1, f"a group's trajectories, final rewards and metrics differ in number: {sizes}"

    def __len__(self) -> int:
        return len(self.trajectories_G)

    def get_total_rewards(self) -> list[float]:
        """rewards_G: the sum of each member's step rewards plus its final reward."""
        return [
            sum(transition.reward for transition in trajectory.transitions) + final_reward
            for trajectory, final_reward in zip(self.trajectories_G, self.final_rewards_G, strict=True)
        ]


@dataclass(frozen=True)
class EnvFault:
    """One call into an environment that failed, with the episode up to it."""

    kind: FaultKind
    # Which call, such as "step() of CodeEnv (group 3, member 1), turn 0".
    where: str
    # The error in one line, and its traceback as text; where no code of the environment raised, where that code is.
    error: str
    traceback: str
    env_name: str
    i_group: int
    # Which attempt at the group, from 0.
    attempt: int
    # None where the call was about the whole group.
    i_member: int | None = None
    # The turns of the episode before the failed call.
    transitions: list[Transition] = field(default_factory=list)
    # What was shown to the policy, and its reply, where the call failed on that reply.
    unrated_turn: tuple[Observation, TokensWithLogprobs] | None = None

    @property
    def summary(self) -> str:
        """Which call, and its error."""
        return f"{self.where}: {self.error}"


@dataclass(frozen=True)
class GroupOutcome:
    """What became of one group, by the rule for environment faults."""

    i_group: int
    # None: dropped.
    group: TrajectoryGroup | None
    # Of all attempts, in their order, and within an attempt by member.
    faults: list[EnvFault] = field(default_factory=list)
    # How often the group was played.
    num_attempts: int = 1


@dataclass(frozen=True)
class RolloutBatch:
    """The groups of a batch that came through, and what became of the others."""

    groups_P: list[TrajectoryGroup]
    faults: list[EnvFault]
    num_dropped: int
    num_retried: int

    @classmethod
    def of(cls, outcomes: Sequence[GroupOutcome]) -> RolloutBatch:
        """All outcomes as one batch, by the position of their group, whatever the order in which they finished."""
        ordered = sorted(outcomes, key=lambda outcome: outcome.i_group)
        return cls(
            groups_P=[outcome.group for outcome in ordered if outcome.group is not None],
            faults=[fault for outcome in ordered for fault in outcome.faults],
            num_dropped=sum(outcome.group is None for outcome in ordered),
            num_retried=sum(outcome.num_attempts > 1 for outcome in ordered),
        )

    @property
    def first_cause(self) -> EnvFault:
        """The first fault of the first group that was dropped; there must be one."""
        kept = {group.i_group for group in self.groups_P}
        return next(fault for fault in self.faults if fault.i_group not in kept)

    @property
    def num_groups(self) -> int:
        """Groups of the batch, dropped ones included."""
        return len(self.groups_P) + self.num_dropped


__all__ = [
    "Action",
    "ActionExtra",
    "Env",
    "EnvFault",
    "EnvGroupBuilder",
    "FaultKind",
    "GroupOutcome",
    "Logs",
    "Metrics",
    "Observation",
    "RLDataset",
    "RLDatasetBuilder",
    "RolloutBatch",
    "StepResult",
    "StopCondition",
    "TokensWithLogprobs",
    "Trajectory",
    "TrajectoryGroup",
    "Transition",
    "WrongType",
]
