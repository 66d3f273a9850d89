"""Which problems are worth playing: those that are always right or always wrong are passed over, most of the time.

How often a problem is solved is estimated from the rewards of its groups, the recent ones counting more. Nothing here
is random beyond the order of an epoch, so a run that goes on from a checkpoint goes on with the same problems.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import chz

from envs.types import EnvGroupBuilder
from mint.errors import InvalidRequest
from mint.seeds import derive_seed


@chz.chz(typecheck=True)
class CurriculumConfig:
    """When a problem is passed over."""

    # Shares of success from which on a problem is too easy, and down to which it is too hard.
    skip_above: float = 0.9
    skip_below: float = 0.1
    # What earlier replies count for when a new group comes, each time anew: 0 forgets them, 1 keeps all alike.
    memory: float = 0.7
    # A problem that would be passed over is played this one time in so many.
    revisit_every: int = 5
    # The rewards that count as no success and as full success; those between count in part.
    lowest_reward: float = 0.0
    highest_reward: float = 1.0

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if not 0 <= self.skip_below < self.skip_above <= 1:
            raise InvalidRequest(
                f"skip_below={self.skip_below} and skip_above={self.skip_above}: must rise and lie in [0, 1]"
            )
        if not 0 <= self.memory <= 1:
            raise InvalidRequest(f"memory={self.memory}: must lie in [0, 1]")
        if self.revisit_every < 1:
            raise InvalidRequest(f"revisit_every={self.revisit_every}: must be at least 1")
        if self.lowest_reward >= self.highest_reward:
            raise InvalidRequest(
                f"lowest_reward={self.lowest_reward} and highest_reward={self.highest_reward}: must rise"
            )


@dataclass
class SuccessEstimate:
    """What is known of one problem: replies that succeeded and that failed, discounted, and passes since it was played.

    The share of success is the mean of a Beta distribution with Jeffreys' prior: half a success and half a failure.
    """

    successes: float = 0.0
    failures: float = 0.0
    num_passes: int = 0

    @property
    def share(self) -> float:
        """Estimated share of replies that succeed, in (0, 1)."""
        return (0.5 + self.successes) / (1.0 + self.successes + self.failures)

    def observe(self, rewards: Sequence[float], config: CurriculumConfig) -> None:
        """Take in the rewards of one group."""
        width = config.highest_reward - config.lowest_reward
        shares = [min(1.0, max(0.0, (reward - config.lowest_reward) / width)) for reward in rewards]
        self.successes = config.memory * self.successes + sum(shares)
        self.failures = config.memory * self.failures + len(shares) - sum(shares)

    def is_settled(self, config: CurriculumConfig) -> bool:
        """True for a problem that is too easy or too hard to learn from."""
        return self.share >= config.skip_above or self.share <= config.skip_below


class ProblemStream:
    """An endless stream of a dataset's groups, epoch after epoch, each in an order of its own.

    config: which groups are passed over; None: none.
    """

    def __init__(
        self, name: str, groups: Sequence[EnvGroupBuilder], seed: int, config: CurriculumConfig | None = None
    ) -> None:
        if not groups:
            raise InvalidRequest(f"the dataset {name!r} has no groups")
        self.name = name
        self.groups = groups
        self.num_passed = 0
        self._seed = seed
        self._config = config
        self._epoch = self._position = 0
        self._order = self._order_of(0)
        self._estimates: dict[int, SuccessEstimate] = {}

    def draw(self) -> int:
        """The index of the next group to play."""
        while True:
            index = self._next_index()
            estimate = self._estimates.get(index)
            if self._config is None or estimate is None or not estimate.is_settled(self._config):
                return index
            if estimate.num_passes + 1 >= self._config.revisit_every:
                estimate.num_passes = 0
                return index
            estimate.num_passes += 1
            self.num_passed += 1

    def observe(self, index: int, rewards: Sequence[float]) -> None:
        """Take in the rewards of a group that was played."""
        if self._config is not None:
            self._estimates.setdefault(index, SuccessEstimate()).observe(rewards, self._config)

    def metrics(self) -> dict[str, float]:
        """mean_estimate, num_seen, num_settled, num_passed (in all); {} without a config."""
        if self._config is None:
            return {}
        shares = [estimate.share for estimate in self._estimates.values()]
        settled = [estimate.is_settled(self._config) for estimate in self._estimates.values()]
        return {
            **({"mean_estimate": sum(shares) / len(shares)} if shares else {}),
            "num_seen": float(len(shares)),
            "num_settled": float(sum(settled)),
            "num_passed": float(self.num_passed),
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as JSON."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "num_passed": self.num_passed,
            "estimates": {str(i): [e.successes, e.failures, e.num_passes] for i, e in self._estimates.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand where the stream of that state stood. InvalidRequest where the dataset is smaller now."""
        estimates = {int(index): SuccessEstimate(*values) for index, values in state["estimates"].items()}
        if max([state["position"] - 1, *estimates]) >= len(self.groups):
            raise InvalidRequest(
                f"the dataset {self.name!r} has {len(self.groups)} groups, fewer than when the checkpoint was saved; "
                "give it the same data to go on"
            )
        self._epoch, self._position = state["epoch"], state["position"]
        self.num_passed = state["num_passed"]
        self._order = self._order_of(self._epoch)
        self._estimates = estimates

    def _next_index(self) -> int:
        if self._position == len(self._order):
            self._epoch, self._position = self._epoch + 1, 0
            self._order = self._order_of(self._epoch)
        self._position += 1
        return self._order[self._position - 1]

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(len(self.groups)))
        random.Random(derive_seed("order of a stream", self._seed, self.name, epoch)).shuffle(order)
        return order
