"""What an environment is to the RL stage: tokens in, tokens out, grouped by problem.

The group is the unit: an EnvGroupBuilder is a light, picklable description of one problem. It makes the environments
that play it, each of them once, and may score them against each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

import chz

from mint import types
from mint.errors import InvalidRequest
from renderers import Message, StopCondition

Action = list[int]
Observation = types.ModelInput
Metrics = dict[str, float]
Logs = dict[str, str | int | float]
StopReason = Literal["stop", "length"]


class WrongType(InvalidRequest, TypeError):
    """An environment returned something that is not of the type which the protocol asks for."""


@dataclass(frozen=True)
class TokensWithLogprobs:
    """Sampled tokens, the stop token included, each with the logprob (nats) it was drawn with."""

    tokens: list[int]
    logprobs: list[float]
    # "length": max_tokens came before a stop.
    stop_reason: StopReason = "stop"


class ActionExtra(TypedDict, total=False):
    """What is known about an action beside its tokens."""

    stop_reason: StopReason


@dataclass
class StepResult:
    """What one action led to. The next observation and stop condition are not looked at once the episode is done."""

    reward: float
    episode_done: bool
    next_observation: Observation
    next_stop_condition: StopCondition
    # Numbers to average over episodes, by name.
    metrics: Metrics = field(default_factory=dict)
    # Things to show beside the episode; not averaged.
    logs: Logs = field(default_factory=dict)
    # How the reward is spread over the tokens of the action, stop token included; None: it is the action's as a whole.
    token_rewards: list[float] | None = None


class Env(ABC):
    """One episode. It is played once and thrown away."""

    @property
    def max_reward(self) -> float | None:
        """What the best episode earns in all; None where that is not known."""
        return None

    def gold_actions(self) -> list[Action] | None:
        """The actions, turn by turn, of an episode that earns the most; None where none is known.

        `mint env check` plays them: they have to earn `max_reward`, and an empty reply less.
        """
        return None

    @abstractmethod
    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        """The first prompt, and what ends the reply to it."""

    @abstractmethod
    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Take the sampled tokens, stop token included."""

    async def leave(self) -> None:
        """Nobody plays on: who waits for this player in the same game must not wait any longer. By default nothing."""
        return None


@dataclass(frozen=True)
class Transition:
    """One turn: the prompt, what was sampled, and what it earned."""

    ob: Observation
    ac: TokensWithLogprobs
    reward: float
    episode_done: bool
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)
    # How the reward is spread over the sampled tokens, where the environment said so.
    token_rewards: list[float] | None = None


@dataclass(frozen=True)
class Trajectory:
    """An episode, turn by turn, and the observation it ended with."""

    transitions: list[Transition]
    final_ob: Observation


class EnvGroupBuilder(ABC):
    """One problem, to be tried several times. Picklable; everything heavy is made in make_envs."""

    @abstractmethod
    async def make_envs(self) -> Sequence[Env]:
        """The environments of the group, one per member; training needs at least two."""

    async def compute_group_rewards(
        self, trajectories: list[Trajectory], envs: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """For each member, what is added to the rewards of its steps, and metrics; by default nothing is added."""
        return [(0.0, {}) for _ in trajectories]

    def logging_tags(self) -> list[str]:
        """Names under which the group's metrics are also reported apart (env/<tag>/...)."""
        return []

    def problem_id(self) -> str | None:
        """What its dataset calls the problem; None: the dataset is not told its rewards."""
        return None


class RLDataset(ABC):
    """Batches of groups. `get_batch(index)` gives the same batch whenever it is asked, so a run can be resumed.

    A dataset that chooses by what it observes gives its batches in order; what it needs to go on with the next one is
    its state, which is saved in every checkpoint.
    """

    @abstractmethod
    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Batch `index`, 0 <= index < len(self)."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of batches."""

    def observe(self, rewards: Sequence[tuple[str, Sequence[float]]]) -> Metrics:
        """Told, at the end of an iteration, the rewards of its groups by their problem_id(); returns metrics to log."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What load_state_dict() needs to go on, as JSON; {} where batches depend on their index alone."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that state_dict() gave."""
        return None


@chz.chz(typecheck=True)
class RLDatasetBuilder(ABC):
    """The part of a run's config that says which environments to train on."""

    @abstractmethod
    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """The training set and, where there is one, the test set."""


@runtime_checkable
class ConversationScorer(Protocol):
    """Something that rates a reply. A preference model is one; so is any object with such a method."""

    async def score(self, conversation: list[Message]) -> float:
        """The reward of the last message, the assistant's, given those before it."""
        ...
