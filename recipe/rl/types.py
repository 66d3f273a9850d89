"""The vocabulary of the RL stage: the environment protocol (which lives in `envs.types`) and groups of trajectories.

Axes: _G member of a group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
)


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


__all__ = [
    "Action",
    "ActionExtra",
    "Env",
    "EnvGroupBuilder",
    "Logs",
    "Metrics",
    "Observation",
    "RLDataset",
    "RLDatasetBuilder",
    "StepResult",
    "StopCondition",
    "TokensWithLogprobs",
    "Trajectory",
    "TrajectoryGroup",
    "Transition",
]
