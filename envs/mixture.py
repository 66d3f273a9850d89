"""Several datasets in one, in given shares, each with a curriculum where asked for.

    dataset_builder=envs.mixture:MixtureDatasetBuilder dataset_builder.parts.0.name=sums
    dataset_builder.parts.0.dataset_builder=envs.arithmetic:AdditionDatasetBuilder dataset_builder.parts.0.weight=2 ...

A mixture of one dataset is that dataset with a curriculum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import chz

from envs.curriculum import CurriculumConfig, ProblemStream
from envs.group_dataset import GroupDataset
from envs.types import Env, EnvGroupBuilder, Metrics, RLDataset, RLDatasetBuilder, Trajectory
from mint.errors import InvalidRequest

# Batches whose groups are remembered: a loop that runs ahead, or goes on from a checkpoint, asks for them again.
_NUM_KEPT_BATCHES = 64


@dataclass(frozen=True)
class MixedGroupBuilder(EnvGroupBuilder):
    """A group of one of the datasets, and its name in the mixture."""

    group: EnvGroupBuilder
    name: str

    async def make_envs(self) -> Sequence[Env]:
        """See EnvGroupBuilder."""
        return await self.group.make_envs()

    async def compute_group_rewards(
        self, trajectories: list[Trajectory], envs: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """See EnvGroupBuilder."""
        return await self.group.compute_group_rewards(trajectories, envs)

    def logging_tags(self) -> list[str]:
        """See EnvGroupBuilder."""
        return self.group.logging_tags()

    def problem_id(self) -> str:
        """See EnvGroupBuilder."""
        return self.name


class MixtureDataset(RLDataset):
    """Batches drawn from streams so that each stream's share of all groups so far is as near to its weight as can be.

    Batches are drawn in order, since what was observed decides what is drawn.
    """

    def __init__(
        self, streams: Sequence[ProblemStream], weights: Sequence[float], groups_per_batch: int, num_batches: int
    ) -> None:
        self._streams = {stream.name: stream for stream in streams}
        if len(self._streams) < len(streams):
            raise InvalidRequest(f"parts have the names {[stream.name for stream in streams]}: give each its own")
        total = sum(weights)
        self._weights = {stream.name: weight / total for stream, weight in zip(streams, weights, strict=True)}
        self._groups_per_batch = groups_per_batch
        self._num_batches = num_batches
        self._counts = dict.fromkeys(self._streams, 0)
        # The groups of the latest batches, as (stream, index in it).
        self._batches: dict[int, list[tuple[str, int]]] = {}
        self._next_batch = 0

    def __len__(self) -> int:
        return self._num_batches

    def get_batch(self, index: int) -> list[EnvGroupBuilder]:
        """See RLDataset."""
        if index == self._next_batch < self._num_batches:
            self._batches[index] = [self._draw() for _ in range(self._groups_per_batch)]
            self._batches.pop(index - _NUM_KEPT_BATCHES, None)
            self._next_batch += 1
        if index not in self._batches:
            raise InvalidRequest(
                f"batch {index}: a mixture of {self._num_batches} batches gives them in order, and {self._next_batch} "
                "is next; a run goes on only from a checkpoint that was saved with this dataset"
            )
        return [MixedGroupBuilder(self._streams[name].groups[i], f"{name}/{i}") for name, i in self._batches[index]]

    def observe(self, rewards: Sequence[tuple[str, Sequence[float]]]) -> Metrics:
        """See RLDataset."""
        for problem_id, rewards_of_group in rewards:
            name, _, index = problem_id.rpartition("/")
            self._streams[name].observe(int(index), rewards_of_group)
        num_groups = sum(self._counts.values())
        metrics = {f"mixture/{name}/share": count / num_groups for name, count in self._counts.items()}
        for name, stream in self._streams.items():
            metrics |= {f"curriculum/{name}/{key}": value for key, value in stream.metrics().items()}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """See RLDataset."""
        return {
            "next_batch": self._next_batch,
            "counts": dict(self._counts),
            "batches": {str(index): [list(drawn) for drawn in batch] for index, batch in self._batches.items()},
            "streams": {name: stream.state_dict() for name, stream in self._streams.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See RLDataset."""
        if state["streams"].keys() != self._streams.keys():
            raise InvalidRequest(
                f"the mixture has the parts {list(self._streams)}, the checkpoint's had {list(state['streams'])}: give "
                "it the same parts to go on"
            )
        for name, stream in self._streams.items():
            stream.load_state_dict(state["streams"][name])
        self._next_batch = state["next_batch"]
        self._counts = {name: state["counts"][name] for name in self._streams}
        self._batches = {int(i): [(name, index) for name, index in batch] for i, batch in state["batches"].items()}

    def _draw(self) -> tuple[str, int]:
        num_drawn = sum(self._counts.values()) + 1
        # The stream that is furthest behind its share; of equals the first.
        name = max(self._streams, key=lambda name: self._weights[name] * num_drawn - self._counts[name])
        self._counts[name] += 1
        return name, self._streams[name].draw()


@chz.chz(typecheck=True)
class MixturePart:
    """One dataset of a mixture. Its own batches and epochs do not matter; its groups do."""

    # For the metrics.
    name: str
    dataset_builder: RLDatasetBuilder
    # Its share of the groups, relative to those of the other parts.
    weight: float = 1.0

    # typecheck=True checks types last; the rules below compare values.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if not self.weight > 0:
            raise InvalidRequest(f"weight={self.weight} of {self.name!r}: must be positive; leave the part out instead")


@chz.chz(typecheck=True)
class MixtureDatasetBuilder(RLDatasetBuilder):
    """Groups of several datasets, mixed within every batch; the test set has the groups of all their test sets."""

    parts: list[MixturePart]
    # Groups per batch, of all parts together.
    groups_per_batch: int
    num_batches: int
    # Pass over what is always right or always wrong; None: play everything equally often.
    curriculum: CurriculumConfig | None = None
    # Of the order of the groups.
    seed: int = 0

    # typecheck=True checks types last; the rules below compare values.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if not self.parts:
            raise InvalidRequest("parts is empty: give at least one, as parts.0.name=... parts.0.dataset_builder=...")
        for name in ("groups_per_batch", "num_batches"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name}={getattr(self, name)}: must be at least 1")

    @chz.init_property
    def renderer_name(self) -> str | None:
        """The renderer of the parts, where they have the same one."""
        names = {getattr(part.dataset_builder, "renderer_name", None) for part in self.parts}
        return names.pop() if len(names) == 1 else None

    async def __call__(self) -> tuple[MixtureDataset, GroupDataset | None]:
        """See RLDatasetBuilder."""
        streams: list[ProblemStream] = []
        test_groups: list[EnvGroupBuilder] = []
        for part in self.parts:
            train, test = await part.dataset_builder()
            streams.append(ProblemStream(part.name, _groups_of(train), self.seed, self.curriculum))
            test_groups += _groups_of(test) if test is not None else []
        weights = [part.weight for part in self.parts]
        dataset = MixtureDataset(streams, weights, self.groups_per_batch, self.num_batches)
        return dataset, GroupDataset(test_groups, self.groups_per_batch) if test_groups else None


def _groups_of(dataset: RLDataset) -> list[EnvGroupBuilder]:
    """Every group once: of a GroupDataset the groups themselves, of others those of all batches."""
    if isinstance(dataset, GroupDataset):
        return dataset.groups
    return [group for index in range(len(dataset)) for group in dataset.get_batch(index)]
