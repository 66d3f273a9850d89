"""The rule for environments that fail: dropped, retried, counted, and too many of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mint
from mint.errors import InvalidRequest
from recipe.completers import MintTokenCompleter
from recipe.rl.env_faults import EnvFaultConfig, EnvironmentFailed, FaultWindow
from recipe.rl.rollouts import roll_out_group, roll_out_groups
from recipe.rl.types import (
    ActionExtra,
    Env,
    EnvFault,
    GroupOutcome,
    RolloutBatch,
    StepResult,
    TrajectoryGroup,
)
from tests.recipe.rl import misbehaving_envs
from tests.recipe.rl.misbehaving_envs import (
    MISBEHAVIOUR,
    NAN,
    SEEDS,
    EchoPolicy,
    Group,
    HangingEnv,
    PlainEnv,
    StubbornEnv,
    good,
    roll_out,
    with_last,
)

# ---- hanging ----


@pytest.mark.parametrize("env_class", [HangingEnv, StubbornEnv])
async def test_a_call_past_its_deadline_is_a_hang(env_class: type[Env]) -> None:
    batch = await roll_out([good(), with_last(env_class)], deadline_s=0.05)
    [fault] = batch.faults
    assert (fault.kind, fault.i_group, fault.error) == ("hung", 1, "did not return within 0.05 s")
    assert len(batch.groups_P) == 1


async def test_the_traceback_of_a_hang_shows_where_the_environment_stood() -> None:
    batch = await roll_out([with_last(HangingEnv)], deadline_s=0.05)
    assert "in wait_for_a_tool_that_never_answers\n    await asyncio.Event().wait()" in batch.faults[0].traceback
    assert batch.faults[0].traceback.endswith("did not return within 0.05 s")


async def test_making_environments_may_hang_too() -> None:
    class Slow(Group):
        async def make_envs(self) -> Sequence[Env]:
            await asyncio.sleep(60)
            return []

    batch = await roll_out([good(), Slow(list)], deadline_s=0.05)
    assert [(fault.kind, fault.where) for fault in batch.faults] == [("hung", "Slow.make_envs() of group 1")]
    assert len(batch.groups_P) == 1


async def test_a_hanging_environment_holds_up_no_batch_of_the_engine(
    service: mint.ServiceClient, tiny_model_dir: Any
) -> None:
    sampling_client = service.create_sampling_client(base_model=str(tiny_model_dir))
    policy = MintTokenCompleter(sampling_client, max_tokens=4)
    finished: list[float] = []

    class TimedEnv(PlainEnv):
        async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
            result = await super().step(action, extra=extra)
            if result.episode_done:
                finished.append(time.monotonic())
            return result

    def players() -> Group:
        return Group(lambda: [TimedEnv(turns=3) for _ in range(3)])

    alone = await roll_out_groups([players()], policy, SEEDS, EnvFaultConfig())
    finished.clear()
    started = time.monotonic()
    batch = await roll_out_groups([players(), with_last(HangingEnv)], policy, SEEDS, EnvFaultConfig(deadline_s=4.0))
    ended = time.monotonic()
    assert [(fault.kind, fault.i_group) for fault in batch.faults] == [("hung", 1)]
    # Three turns of every other member were sampled while the one call hung.
    assert len(finished) == 3 and max(finished) - started < 3.0 < ended - started
    for here, there in zip(batch.groups_P[0].trajectories_G, alone.groups_P[0].trajectories_G, strict=True):
        assert [t.ac.tokens for t in here.transitions] == [t.ac.tokens for t in there.transitions]
        here_logprobs = np.concatenate([t.ac.logprobs for t in here.transitions])
        np.testing.assert_allclose(here_logprobs, np.concatenate([t.ac.logprobs for t in there.transitions]), atol=1e-5)


# ---- the rule ----


class FlakyGroup(Group):
    """Fails in its first `num_failures` attempts."""

    def __init__(self, num_failures: int) -> None:
        super().__init__(lambda: None)
        self.num_made = 0
        self.num_failures = num_failures

    async def make_envs(self) -> Sequence[Env]:
        self.num_made += 1
        error = KeyError(f"attempt {self.num_made}") if self.num_made <= self.num_failures else None
        return [PlainEnv(turns=2), PlainEnv(step_error=error)]


async def test_a_retry_plays_new_environments_with_seeds_of_their_own() -> None:
    async def play(num_failures: int) -> tuple[GroupOutcome, list[int]]:
        policy, rule = EchoPolicy(), EnvFaultConfig(on_fault="retry", max_retries=2)
        return await roll_out_group(FlakyGroup(num_failures), 4, policy, SEEDS, rule), policy.seeds

    outcome, seeds = await play(num_failures=2)
    assert outcome.group is not None and outcome.num_attempts == 3
    assert [(fault.attempt, fault.error) for fault in outcome.faults] == [
        (0, "KeyError: 'attempt 1'"),
        (1, "KeyError: 'attempt 2'"),
    ]
    assert len(set(seeds)) == 9
    expected = [SEEDS.turn_seed(4, member, turn, 2) for member, turn in ((0, 0), (1, 0), (0, 1))]
    assert seeds[-3:] == expected
    assert outcome.group.trajectories_G[0].transitions[0].ac.tokens == [expected[0] % 100]
    assert await play(num_failures=2) == (outcome, seeds)
    dropped, _ = await play(num_failures=3)
    assert (dropped.group, len(dropped.faults)) == (None, 3)


def test_the_first_attempt_has_the_seeds_it_always_had() -> None:
    assert SEEDS.turn_seed(1, 2, 3) == SEEDS.turn_seed(1, 2, 3, attempt=0) != SEEDS.turn_seed(1, 2, 3, attempt=1)


async def test_a_group_that_came_through_later_is_retried_not_dropped() -> None:
    batch = await roll_out([FlakyGroup(1), FlakyGroup(5), good()], on_fault="retry")
    assert (batch.num_retried, batch.num_dropped, batch.num_groups) == (2, 1, 3)
    assert [group.i_group for group in batch.groups_P] == [0, 2]
    assert batch.first_cause.i_group == 1


@pytest.mark.parametrize("name", MISBEHAVIOUR)
async def test_stop_ends_at_the_first_fault_with_its_traceback(name: str) -> None:
    make_env, _, error = MISBEHAVIOUR[name]
    with pytest.raises(EnvironmentFailed, match=error) as caught:
        await roll_out([with_last(make_env)], on_fault="stop")
    assert misbehaving_envs.__file__ in str(caught.value)


def batch_of(num_groups: int, failed: Sequence[int] = (), text: str = "boom") -> RolloutBatch:
    def fault(i: int) -> EnvFault:
        return EnvFault("raised", f"step() of group {i}", text, f"traceback of {text}", "E", i, 0)

    return RolloutBatch.of(
        [
            GroupOutcome(i, None, [fault(i)])
            if i in failed
            else GroupOutcome(i, TrajectoryGroup([], [], [], i_group=i))
            for i in range(num_groups)
        ]
    )


def test_too_large_a_share_stops_with_the_first_cause() -> None:
    window = FaultWindow(EnvFaultConfig(max_failed_share=0.1, window_groups=40))
    # 4 of 40 are allowed.
    window.add(batch_of(10, [3, 4], "first"), "iteration_000000")
    window.add(batch_of(10, [0, 5], "second"), "iteration_000001")
    window.add(batch_of(10), "iteration_000002")
    with pytest.raises(EnvironmentFailed) as caught:
        window.add(batch_of(10, [9], "third"), "iteration_000003")
    assert str(caught.value).startswith("environments failed in 5 of the last 40 groups: more than")
    assert str(caught.value).endswith("iteration_000000, step() of group 3: first\ntraceback of first")


def test_old_iterations_leave_the_window() -> None:
    window = FaultWindow(EnvFaultConfig(max_failed_share=0.1, window_groups=40))
    for i in range(30):
        window.add(batch_of(10, [i % 10]), f"iteration_{i:06d}")
    kept = window.loop_state()["env_faults"]
    assert [entry["first_cause"].split(",")[0] for entry in kept] == [f"iteration_{i:06d}" for i in range(26, 30)]


def test_a_run_in_which_nothing_came_through_stops_at_once() -> None:
    window = FaultWindow(EnvFaultConfig(max_failed_share=1.0, window_groups=1000))
    with pytest.raises(EnvironmentFailed, match="2 of the last 2 groups: no group came through"):
        window.add(batch_of(2, [0, 1]), "iteration_000000")


def test_an_iteration_without_groups_is_survived_where_others_came_through() -> None:
    window = FaultWindow(EnvFaultConfig(max_failed_share=0.1, window_groups=20))
    window.add(batch_of(2), "iteration_000000")
    window.add(batch_of(2, [0, 1]), "iteration_000001")
    assert [entry["num_dropped"] for entry in window.loop_state()["env_faults"]] == [0, 2]


def test_a_restored_window_decides_like_the_one_that_was_saved() -> None:
    rule = EnvFaultConfig(max_failed_share=0.2, window_groups=10)
    window = FaultWindow(rule)
    window.add(batch_of(4, [1]), "iteration_000000")
    window.add(batch_of(4, [2]), "iteration_000001")
    restored = FaultWindow(rule, json.loads(json.dumps(window.loop_state())))
    messages = []
    for one in (window, restored):
        with pytest.raises(EnvironmentFailed) as caught:
            one.add(batch_of(4, [3]), "iteration_000002")
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_retries": 0}, "env_faults.max_retries=0: must be at least 1"),
        ({"window_groups": 0}, "env_faults.window_groups=0: must be at least 1"),
        ({"max_failed_share": 1.5}, "env_faults.max_failed_share=1.5: must be between 0 and 1"),
        ({"max_failed_share": NAN}, "env_faults.max_failed_share=nan: must be between 0 and 1"),
        ({"deadline_s": 0.0}, "env_faults.deadline_s=0.0: must be positive"),
    ],
)
def test_a_bad_rule_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        EnvFaultConfig(**changes)
