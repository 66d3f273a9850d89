"""Asynchronous off-policy mode: groups of later batches are played while those that are done are trained on.

A group is sampled with one set of weights from its first token to its last, so its sampler logprobs, and with them the
ratios of the loss, are exact. By the time it is trained on the weights are some iterations newer: never more than
max_steps_off_policy, since a group that has become too old is played again. Every group of the dataset is trained on
once. Which groups meet in one batch depends on which finish first, so where environments take time of their own two
runs differ; a resumed run plays what was under way again and leaves nothing out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from recipe.completers import MintTokenCompleter
from recipe.rl.learning import learn
from recipe.rl.loop_modes import AsyncConfig, LoopMode
from recipe.rl.loop_watchdog import LoopWatchdog
from recipe.rl.rollouts import roll_out_group
from recipe.rl.run import Run
from recipe.rl.stopwatch import Stopwatch
from recipe.rl.types import EnvGroupBuilder, GroupOutcome, RolloutBatch

_LOOP_STATE_KEY = "asynchronous"


@dataclass(frozen=True)
class _Place:
    """Where a group stands in the dataset."""

    i_batch: int
    i_group: int


@dataclass(frozen=True)
class _Play:
    """A group being played, or played, with the weights of iteration `version`."""

    place: _Place
    version: int
    task: asyncio.Task[GroupOutcome]


class Asynchronous(LoopMode):
    """Groups are played ahead of the updates, by at most max_steps_off_policy batches."""

    def __init__(self, run: Run, config: AsyncConfig, start: int, loop_state: dict[str, Any]) -> None:
        """start: the first iteration to come. loop_state: that of the checkpoint a run goes on from."""
        self._run = run
        self._config = config
        state = loop_state.get(_LOOP_STATE_KEY, {"next_batch": start, "due": []})
        self._next_batch: int = state["next_batch"]
        # Groups to be played before those of the next batch.
        self._due = deque(_Place(**place) for place in state["due"])
        # In the order in which they were started.
        self._plays: list[_Play] = []
        self._builders: dict[int, list[EnvGroupBuilder]] = {}
        self._a_play_ended = asyncio.Event()

    def loop_state(self) -> dict[str, Any]:
        """The groups that were taken out of the dataset and not trained on yet, and where the dataset goes on."""
        due = sorted([*(play.place for play in self._plays), *self._due], key=lambda p: (p.i_batch, p.i_group))
        return {_LOOP_STATE_KEY: {"next_batch": self._next_batch, "due": [asdict(place) for place in due]}}

    async def aclose(self) -> None:
        """Stop what is being played."""
        await _cancel(self._plays)
        self._plays = []

    async def run_iteration(self, iteration: int, metrics: dict[str, Any]) -> None:
        """See LoopMode."""
        run, clock = self._run, Stopwatch()
        with clock.measure("snapshot"):
            policy_client, policy = await run.current_policy()
        with LoopWatchdog():
            with clock.measure("sampling"):
                num_replayed = await self._replay_what_is_too_old(iteration)
                plays = await self._take_batch(iteration, policy)
            # The next groups are played with these weights while the update below is under way.
            self._start_plays(iteration, policy)
            self._forget_batches_before(iteration)
            steps_off_policy = [iteration - play.version for play in plays]
            metrics |= {
                "async/mean_steps_off_policy": sum(steps_off_policy) / len(steps_off_policy),
                "async/max_steps_off_policy": float(max(steps_off_policy)),
                "async/num_replayed_groups": float(num_replayed),
            }
            # Positions in different batches of the dataset may be equal; here each group needs one of its own.
            rollouts = RolloutBatch.of([_renumbered(play.task.result(), i) for i, play in enumerate(plays)])
            await learn(run, rollouts, policy_client, iteration, metrics, clock)
        metrics |= clock.metrics()

    async def _take_batch(self, iteration: int, policy: MintTokenCompleter) -> list[_Play]:
        """As many finished groups as the dataset's batch has; of those that are finished, the ones started first."""
        num_wanted = len(self._batch(iteration))
        while True:
            self._start_plays(iteration, policy)
            self._a_play_ended.clear()
            done = [play for play in self._plays if play.task.done()]
            for play in done:
                play.task.result()  # raises what ends the run
            if len(done) >= num_wanted:
                taken = done[:num_wanted]
                self._plays = [play for play in self._plays if play not in taken]
                return taken
            await self._a_play_ended.wait()

    async def _replay_what_is_too_old(self, iteration: int) -> int:
        """Put groups whose weights are too old before all others that are due; how many."""
        oldest_version = iteration - self._config.max_steps_off_policy
        old = [play for play in self._plays if play.version < oldest_version]
        self._plays = [play for play in self._plays if play not in old]
        self._due.extendleft(play.place for play in reversed(old))
        await _cancel(old)
        return len(old)

    def _start_plays(self, version: int, policy: MintTokenCompleter) -> None:
        """Keep max_steps_off_policy batches in play: a group that starts last then meets its limit and no more."""
        num_ahead = len(self._batch(version)) * self._config.max_steps_off_policy
        while len(self._plays) < num_ahead and (place := self._next_place()) is not None:
            play = roll_out_group(
                self._batch(place.i_batch)[place.i_group],
                place.i_group,
                policy,
                self._run.seeds(place.i_batch),
                self._run.config.env_faults,
                min_group_size=2,
            )
            task = asyncio.create_task(play)
            task.add_done_callback(lambda _: self._a_play_ended.set())
            self._plays.append(_Play(place, version, task))

    def _next_place(self) -> _Place | None:
        """The next group to play; None where the dataset is used up."""
        if not self._due and self._next_batch < self._run.num_iterations:
            self._due.extend(_Place(self._next_batch, i) for i in range(len(self._batch(self._next_batch))))
            self._next_batch += 1
        return self._due.popleft() if self._due else None

    def _batch(self, i_batch: int) -> list[EnvGroupBuilder]:
        if i_batch not in self._builders:
            self._builders[i_batch] = list(self._run.train_dataset.get_batch(i_batch))
        return self._builders[i_batch]

    def _forget_batches_before(self, iteration: int) -> None:
        """Let go of the environments of old batches, those aside that still have a group to play."""
        in_use = {play.place.i_batch for play in self._plays} | {place.i_batch for place in self._due}
        self._builders = {i: batch for i, batch in self._builders.items() if i >= iteration or i in in_use}


async def _cancel(plays: Sequence[_Play]) -> None:
    for play in plays:
        play.task.cancel()
    await asyncio.gather(*(play.task for play in plays), return_exceptions=True)


def _renumbered(outcome: GroupOutcome, i_group: int) -> GroupOutcome:
    return replace(
        outcome,
        i_group=i_group,
        group=None if outcome.group is None else replace(outcome.group, i_group=i_group),
        faults=[replace(fault, i_group=i_group) for fault in outcome.faults],
    )
