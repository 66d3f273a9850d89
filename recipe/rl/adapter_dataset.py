"""The samples of an RLAdapter as groups of one-turn environments.

Axes: _G member of a group.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import chz
import numpy as np

from mint import types
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.rl.types import (
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Metrics,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    StopCondition,
    Trajectory,
)
from recipe.tokenizer_utils import get_tokenizer


class RLAdapter(ABC):
    """A task in four methods: what is asked, how it is put to the model, what a reply is worth, what is reported.

    The names are those of MinT's quickstart.
    """

    @abstractmethod
    def build_dataset(self) -> Sequence[Any]:
        """The samples to choose from in one step; batch_size of them are drawn (all, where there are no more).

        It is called once a step, each time with `random` and `numpy.random` seeded by run and step: what it draws from
        them is the same when the run is repeated or resumed.
        """

    @abstractmethod
    def make_prompt(self, sample: Any, tokenizer: Any) -> list[int]:
        """The prompt's token ids."""

    @abstractmethod
    def compute_reward(self, response: str, sample: Any) -> float:
        """What a reply is worth: a finite number. `response` is its text without special tokens."""

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        """Called after each step, the first of which is 1, with all its rewards and the replies it trained on.

        The console line and metrics.jsonl say the same and more, so by default nothing is done.
        """
        del step, rewards, num_datums

    def get_stop_sequences(self, tokenizer: Any) -> StopCondition:
        """What ends a reply: the model's end of text. Return texts such as ["\\n"] to stop there."""
        return [int(tokenizer.eos_token_id)]

    def __repr__(self) -> str:
        """The class: what a run's config.json records of the adapter."""
        return f"<adapter {type(self).__module__}:{type(self).__qualname__}>"


class AdapterEnv(Env):
    """One reply to one sample."""

    def __init__(self, adapter: RLAdapter, sample: Any, tokenizer: Any) -> None:
        self.adapter = adapter
        self.sample = sample
        self.tokenizer = tokenizer

    async def initial_observation(self) -> tuple[types.ModelInput, StopCondition]:
        """See Env."""
        prompt = self.adapter.make_prompt(self.sample, self.tokenizer)
        if not isinstance(prompt, list) or not prompt or not all(isinstance(token, int) for token in prompt):
            raise InvalidRequest(
                f"make_prompt() of {self.adapter!r} returned {prompt!r}; it must be a list of token ids, at least one:"
                " tokenizer.encode(text)."
            )
        return types.ModelInput.from_ints(prompt), self.adapter.get_stop_sequences(self.tokenizer)

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        """See Env."""
        response = self.tokenizer.decode(action, skip_special_tokens=True)
        reward = self.adapter.compute_reward(response, self.sample)
        return StepResult(reward, True, types.ModelInput.from_ints([]), [])


@dataclass(frozen=True)
class AdapterGroupBuilder(EnvGroupBuilder):
    """One sample, group_size times. Its rewards are kept for RLAdapter.evaluate."""

    adapter: RLAdapter
    sample: Any
    tokenizer: Any
    group_size: int
    rewards_G: list[float] = field(default_factory=list)

    async def make_envs(self) -> Sequence[Env]:
        """See EnvGroupBuilder."""
        return [AdapterEnv(self.adapter, self.sample, self.tokenizer) for _ in range(self.group_size)]

    async def compute_group_rewards(
        self, trajectories: list[Trajectory], envs: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Adds no reward."""
        self.rewards_G[:] = [trajectory.transitions[0].reward for trajectory in trajectories]
        return [(0.0, {}) for _ in trajectories]


class AdapterDataset(RLDataset):
    """One batch for each step."""

    def __init__(self, builder: AdapterDatasetBuilder) -> None:
        self._builder = builder
        self._tokenizer = get_tokenizer(builder.model_name)
        self._last: tuple[int, list[AdapterGroupBuilder]] = (-1, [])

    def __len__(self) -> int:
        """See RLDataset."""
        return self._builder.num_steps

    def get_batch(self, index: int) -> list[AdapterGroupBuilder]:
        """See RLDataset."""
        builder = self._builder
        with _seeded_globals(derive_seed("adapter samples", builder.seed, index)):
            samples = list(builder.adapter.build_dataset())
        if not samples:
            raise InvalidRequest(f"build_dataset() of {builder.adapter!r} gave no samples; it needs at least one.")
        order = random.Random(derive_seed("adapter batch", builder.seed, index))
        chosen = order.sample(range(len(samples)), min(builder.groups_per_batch, len(samples)))
        groups = [AdapterGroupBuilder(builder.adapter, samples[i], self._tokenizer, builder.group_size) for i in chosen]
        self._last = (index, groups)
        return groups

    def rewards_of(self, index: int) -> list[float]:
        """The rewards of the batch that was asked for last, group by group."""
        i_last, groups = self._last
        assert i_last == index, f"rewards of batch {index} were asked for after batch {i_last}"
        return [reward for group in groups for reward in group.rewards_G]


@chz.chz(typecheck=True)
class AdapterDatasetBuilder(RLDatasetBuilder):
    """The groups of an adapter."""

    # The task.
    adapter: RLAdapter
    # Whose tokenizer the adapter gets.
    model_name: str
    # Replies per sample.
    group_size: int
    # Samples per step.
    groups_per_batch: int
    # Steps of the run.
    num_steps: int
    # Of the samples.
    seed: int = 0

    @chz.init_property
    def dataset(self) -> AdapterDataset:
        """The one dataset of this builder."""
        return AdapterDataset(self)

    async def __call__(self) -> tuple[AdapterDataset, None]:
        """See RLDatasetBuilder."""
        return self.dataset, None


@contextmanager
def _seeded_globals(seed: int) -> Iterator[None]:
    """The global generators of `random` and numpy, seeded, and as they were before afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
