"""What counts as an environment's fault, of which kind, and what does not."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import mint
from envs import EnvFromMessageEnv, MessageEnv, MessageStepResult
from mint import types
from mint.errors import InvalidRequest, MintError
from recipe.rl.env_faults import EnvFaultConfig, EnvironmentFailed
from recipe.rl.metrics import environment_metrics, fault_metrics
from recipe.rl.rollouts import roll_out_group
from recipe.rl.types import (
    ActionExtra,
    Env,
    StepResult,
    TokensWithLogprobs,
)
from renderers import Message, get_renderer
from tests.recipe.rl import misbehaving_envs
from tests.recipe.rl.misbehaving_envs import (
    MISBEHAVIOUR,
    NAN,
    SEEDS,
    EchoPolicy,
    Group,
    HangingEnv,
    PlainEnv,
    good,
    roll_out,
    step_result,
    with_last,
)


@pytest.mark.parametrize("name", MISBEHAVIOUR)
async def test_a_group_with_a_bad_member_is_dropped_and_the_others_stay(name: str) -> None:
    make_env, kind, error = MISBEHAVIOUR[name]
    batch = await roll_out([good(), with_last(make_env), good()])
    assert [group.i_group for group in batch.groups_P] == [0, 2]
    [fault] = batch.faults
    assert (fault.kind, fault.i_group, fault.i_member, fault.attempt) == (kind, 1, 1, 0)
    assert re.search(error, fault.error), fault.error
    # Of the user's own class: either where it raised, or where the function stands that returned the wrong thing.
    assert misbehaving_envs.__file__ in fault.traceback
    assert "env_calls.py" not in fault.traceback


@pytest.mark.parametrize(
    ("builder", "kind", "error"),
    [
        (Group(lambda: []), "wrong_type", "returned no environments"),
        (Group(lambda: None), "wrong_type", "must be a list of Env"),
        (Group(lambda: [PlainEnv(), "env"]), "wrong_type", "must be a list of Env"),
        (Group(lambda: 1 // 0), "raised", "ZeroDivisionError"),
        (Group(lambda: [PlainEnv()] * 2, rewards=[(0.0, {})]), "wrong_type", "returned 1 results for 2 members"),
        (Group(lambda: [PlainEnv(), PlainEnv()], rewards=None), "wrong_type", "returned None"),
        (Group(lambda: [PlainEnv(), PlainEnv()], rewards=[0.0, 1.0]), "wrong_type", "member 0 has 0.0"),
        (
            Group(lambda: [PlainEnv(), PlainEnv()], rewards=[(0.0, {}), (NAN, {})]),
            "non_finite",
            "member 1: reward is nan",
        ),
        (Group(lambda: [PlainEnv(), PlainEnv()], tags="abc"), "wrong_type", "must be a list of str"),
        (Group(lambda: [PlainEnv(), PlainEnv()], tags=[1]), "wrong_type", "must be a list of str"),
    ],
)
async def test_a_builder_that_misbehaves_drops_its_group(builder: Group, kind: str, error: str) -> None:
    batch = await roll_out([good(), builder])
    assert [group.i_group for group in batch.groups_P] == [0]
    [fault] = batch.faults
    assert (fault.kind, fault.i_group, fault.i_member, fault.env_name) == (kind, 1, None, "Group")
    assert error in fault.error
    assert misbehaving_envs.__file__ in fault.traceback


@pytest.mark.parametrize("reward", [True, np.bool_(True), np.float32(1.0), np.int64(1), 1])
async def test_booleans_and_numpy_scalars_are_numbers_and_become_floats(reward: Any) -> None:
    result = step_result(
        reward=reward, episode_done=np.bool_(True), metrics={"a": reward}, logs={"n": np.float32(0.5), "x": NAN}
    )
    batch = await roll_out([Group(lambda: [PlainEnv(), PlainEnv(result=result)])])
    [transition] = batch.groups_P[0].trajectories_G[1].transitions
    assert (transition.reward, transition.metrics) == (1.0, {"a": 1.0})
    assert {type(transition.reward), type(transition.metrics["a"])} == {float}
    assert transition.logs == {"n": 0.5, "x": "nan"}


async def test_a_fault_keeps_the_episode_up_to_the_reply_it_failed_on() -> None:
    batch = await roll_out([with_last(lambda: PlainEnv(turns=2, step_error=KeyError("tool")))])
    [fault] = batch.faults
    assert fault.where == "step() of PlainEnv (group 0, member 1), turn 1"
    assert [transition.ob.to_ints() for transition in fault.transitions] == [[1, 2]]
    assert fault.unrated_turn is not None
    observation, action = fault.unrated_turn
    assert observation.to_ints() == [1, 2, 3]
    assert action.tokens == [SEEDS.turn_seed(0, 1, 1) % 100]
    assert "raise self.step_error\nKeyError: 'tool'" in fault.traceback


async def test_faults_are_counted_by_kind() -> None:
    bad = [with_last(MISBEHAVIOUR[name][0]) for name in ("raises", "reward nan", "reward None", "metric str")]
    metrics = fault_metrics(await roll_out([good(), *bad]))
    assert metrics == {
        "env/all/faults/raised": 1.0,
        "env/all/faults/hung": 0.0,
        "env/all/faults/non_finite": 1.0,
        "env/all/faults/wrong_type": 2.0,
        "env/all/faults/groups_dropped": 4.0,
        "env/all/faults/groups_retried": 0.0,
    }


async def test_a_batch_without_groups_has_no_means() -> None:
    batch = await roll_out([with_last(MISBEHAVIOUR["raises"][0])])
    assert environment_metrics(batch.groups_P) == {}


async def test_every_failing_member_is_recorded_and_no_request_outlives_its_group() -> None:
    policy = EchoPolicy()
    envs: list[Env] = [PlainEnv(step_error=KeyError("a")), PlainEnv(turns=9), PlainEnv(4, step_error=KeyError("b"))]
    outcome = await roll_out_group(Group(lambda: envs), 0, policy, SEEDS, EnvFaultConfig())
    assert [fault.i_member for fault in outcome.faults] == [0, 2]
    assert policy.num_waiting == 0
    assert len(policy.seeds) == 1 + 9 + 4
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


# ---- not the environment's fault ----


class ScoredEnv(PlainEnv):
    """Asks the engine in `step`."""

    def __init__(self, ask: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self.ask = ask

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        try:
            [answer] = await asyncio.gather(self.ask())
        except InvalidRequest as error:
            raise RuntimeError("scoring failed") from error
        return step_result(reward=answer[-1])


@pytest.mark.parametrize("on_fault", ["drop", "retry", "stop"])
async def test_a_failure_of_the_policy_always_stops(on_fault: str) -> None:
    with pytest.raises(MintError, match="the engine has stopped"):
        await roll_out([good(), good()], EchoPolicy(MintError("the engine has stopped")), on_fault=on_fault)


async def test_a_refused_request_of_a_scorer_always_stops(service: mint.ServiceClient, tiny_model_dir: Any) -> None:
    scorer = service.create_sampling_client(base_model=str(tiny_model_dir))
    works = with_last(lambda: ScoredEnv(lambda: scorer.compute_logprobs_async(types.ModelInput.from_ints([1, 2]))))
    assert len((await roll_out([works])).groups_P) == 1
    refused = with_last(lambda: ScoredEnv(lambda: scorer.compute_logprobs_async(types.ModelInput.from_ints([10**8]))))
    with pytest.raises(MintError, match=r"step\(\) of ScoredEnv \(group 0, member 1\), turn 0: .*scoring failed"):
        await roll_out([refused])


async def test_a_deadline_met_while_waiting_for_the_engine_stops() -> None:
    never = mint.APIFuture(concurrent.futures.Future())
    with pytest.raises(EnvironmentFailed, match="waiting for the engine when its 0.05 s were over.*raise env_faults"):
        await roll_out([with_last(lambda: ScoredEnv(never.coroutine))], deadline_s=0.05)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_no_exception_passes_through(error: type[BaseException]) -> None:
    with pytest.raises(error):
        asyncio.run(roll_out([with_last(lambda: PlainEnv(step_error=error()))]))


async def test_cancelling_the_rollouts_ends_them() -> None:
    task = asyncio.create_task(roll_out([with_last(HangingEnv)]))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_group_that_is_too_small_stops_before_anything_is_sampled() -> None:
    policy = EchoPolicy()
    with pytest.raises(InvalidRequest, match="group_size=1: advantages need at least 2"):
        await roll_out([good(), with_last(HangingEnv), Group(lambda: [PlainEnv()])], policy)
    assert policy.seeds == []


# ---- environments that speak in messages ----


class BrokenMessageEnv(MessageEnv):
    def __init__(self, returned: Any) -> None:
        self.returned = returned

    async def initial_observation(self) -> list[Message]:
        return [{"role": "user", "content": "hi"}]

    async def step(self, message: Message) -> MessageStepResult:
        if isinstance(self.returned, Exception):
            raise self.returned
        return self.returned


@pytest.mark.parametrize(
    ("returned", "kind", "error"),
    [
        (KeyError("tool"), "raised", "KeyError: 'tool'"),
        (None, "wrong_type", "BrokenMessageEnv.step() gave None: it must be a MessageStepResult"),
        (MessageStepResult(NAN, True, []), "non_finite", "reward=nan"),
        (MessageStepResult(None, True, []), "wrong_type", "reward=None"),  # pyright: ignore[reportArgumentType]
        (MessageStepResult(np.bool_(True), True, []), None, ""),  # pyright: ignore[reportArgumentType]
    ],
)
async def test_a_fault_behind_the_adapter_names_the_message_environment_and_its_line(
    tokenizer: Any, returned: Any, kind: str | None, error: str
) -> None:
    renderer = get_renderer("qwen3_disable_thinking", tokenizer)
    end = tokenizer.encode("yes<|im_end|>", add_special_tokens=False)

    class EndingPolicy(EchoPolicy):
        async def __call__(self, *args: Any, **kwargs: Any) -> TokensWithLogprobs:
            return TokensWithLogprobs(end, [-0.1] * len(end))

    group = Group(lambda: [EnvFromMessageEnv(renderer, BrokenMessageEnv(returned)) for _ in range(2)])
    batch = await roll_out([group], EndingPolicy())
    if kind is None:
        assert batch.groups_P[0].get_total_rewards() == [1.0, 1.0]
        return
    fault = batch.faults[0]
    assert (fault.kind, fault.env_name) == (kind, "BrokenMessageEnv")
    assert error in fault.error
    assert "BrokenMessageEnv.step" in fault.traceback or "in step\n    raise self.returned" in fault.traceback
    assert __file__ in fault.traceback
