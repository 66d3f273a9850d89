"""Environments that misbehave in every way, and a scripted policy to play them with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mint import types
from mint.errors import InvalidRequest
from recipe.rl.env_faults import EnvFaultConfig
from recipe.rl.rollouts import SeedScope, roll_out_groups
from recipe.rl.types import (
    ActionExtra,
    Env,
    EnvGroupBuilder,
    RolloutBatch,
    StepResult,
    StopCondition,
    TokensWithLogprobs,
    Trajectory,
)

SEEDS = SeedScope(seed=3, split="train", iteration=5)
NAN = float("nan")


class EchoPolicy:
    """Answers with a token made of the seed, once others had a chance to run; counts the calls and those under way."""

    def __init__(self, error: Exception | None = None) -> None:
        self.seeds: list[int] = []
        self.num_waiting = 0
        self.error = error

    async def __call__(
        self,
        model_input: types.ModelInput,
        stop: StopCondition,
        *,
        seed: int | None = None,
        max_tokens: int | None = None,
    ) -> TokensWithLogprobs:
        assert seed is not None
        self.seeds.append(seed)
        self.num_waiting += 1
        await asyncio.sleep(0.001)
        self.num_waiting -= 1
        if self.error is not None:
            raise self.error
        return TokensWithLogprobs(tokens=[seed % 100], logprobs=[-0.5], stop_reason="stop")


def step_result(**changes: Any) -> StepResult:
    values: dict[str, Any] = {
        "reward": 1.0,
        "episode_done": True,
        "next_observation": types.ModelInput.empty(),
        "next_stop_condition": [],
    }
    return StepResult(**(values | changes))


class PlainEnv(Env):
    """`turns` turns of reward 1; `step_error` is raised in the last of them, `result` returned in its place."""

    def __init__(self, turns: int = 1, step_error: BaseException | None = None, result: Any = None) -> None:
        self.turns_left = turns
        self.step_error = step_error
        self.result = result

    async def initial_observation(self) -> tuple[types.ModelInput, StopCondition]:
        return types.ModelInput.from_ints([1, 2]), []

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        self.turns_left -= 1
        if self.turns_left > 0:
            return step_result(episode_done=False, next_observation=types.ModelInput.from_ints([1, 2, 3]))
        if self.step_error is not None:
            raise self.step_error
        return step_result() if self.result is None else self.result


class Group(EnvGroupBuilder):
    """A group of what `make` gives."""

    def __init__(self, make: Callable[[], Any], **returned: Any) -> None:
        self.make = make
        self.returned = returned

    async def make_envs(self) -> Sequence[Env]:
        return self.make()

    async def compute_group_rewards(self, trajectories: list[Trajectory], envs: Sequence[Env]) -> Any:
        return self.returned.get("rewards", [(0.0, {})] * len(trajectories))

    def logging_tags(self) -> Any:
        return self.returned.get("tags", ["tagged"])


def good() -> Group:
    return Group(lambda: [PlainEnv(), PlainEnv(turns=2)])


def with_last(make_env: Callable[[], Env]) -> Group:
    """A good member and a bad one."""
    return Group(lambda: [PlainEnv(), make_env()])


async def roll_out(builders: Sequence[EnvGroupBuilder], policy: EchoPolicy | None = None, **rule: Any) -> RolloutBatch:
    return await roll_out_groups(builders, policy or EchoPolicy(), SEEDS, EnvFaultConfig(**rule), min_group_size=2)


class FirstPromptEnv(PlainEnv):
    def __init__(self, first: Any) -> None:
        super().__init__()
        self.first = first

    async def initial_observation(self) -> Any:
        return self.first


class SyncEnv(PlainEnv):
    def step(self, action: list[int], *, extra: ActionExtra | None = None) -> Any:
        return step_result()


PROMPT = types.ModelInput.from_ints([1])
MISBEHAVIOUR: dict[str, tuple[Callable[[], Env], str, str]] = {
    "raises": (lambda: PlainEnv(step_error=KeyError("no such tool")), "raised", "KeyError: 'no such tool'"),
    "raises a timeout of its own": (lambda: PlainEnv(step_error=TimeoutError("tool")), "raised", "TimeoutError: tool"),
    "raises a MintError of its own": (
        lambda: PlainEnv(step_error=InvalidRequest("hm")),
        "raised",
        "InvalidRequest: hm",
    ),
    "reward nan": (lambda: PlainEnv(result=step_result(reward=NAN)), "non_finite", "reward is nan; it must be finite"),
    "reward inf": (lambda: PlainEnv(result=step_result(reward=np.float32("inf"))), "non_finite", "reward is inf"),
    "metric nan": (lambda: PlainEnv(result=step_result(metrics={"a": NAN})), "non_finite", "a is nan"),
    "reward None": (lambda: PlainEnv(result=step_result(reward=None)), "wrong_type", r"reward is None \(NoneType\)"),
    "reward str": (lambda: PlainEnv(result=step_result(reward="1")), "wrong_type", r"reward is '1' \(str\)"),
    "reward array": (lambda: PlainEnv(result=step_result(reward=np.zeros(2))), "wrong_type", r"\(ndarray\)"),
    "metric str": (lambda: PlainEnv(result=step_result(metrics={"a": "b"})), "wrong_type", "a is 'b'"),
    "metrics no dict": (lambda: PlainEnv(result=step_result(metrics=[1.0])), "wrong_type", "metrics is"),
    "metric without name": (lambda: PlainEnv(result=step_result(metrics={1: 1.0})), "wrong_type", "metrics is"),
    "log of objects": (lambda: PlainEnv(result=step_result(logs={"a": [1]})), "wrong_type", "logs has 'a'"),
    "no StepResult": (lambda: PlainEnv(result=(1.0, True)), "wrong_type", "must be a StepResult"),
    "episode_done None": (
        lambda: PlainEnv(result=step_result(episode_done=None)),
        "wrong_type",
        "episode_done is None",
    ),
    "empty next prompt": (lambda: PlainEnv(result=step_result(episode_done=False)), "wrong_type", "empty"),
    "prompt no ModelInput": (lambda: FirstPromptEnv(([1, 2], [])), "wrong_type", "observation is"),
    "no stop condition": (lambda: FirstPromptEnv(PROMPT), "wrong_type", "must be .observation, stop condition."),
    "stop condition None": (lambda: FirstPromptEnv((PROMPT, None)), "wrong_type", "stop condition is None"),
    "stop condition str": (lambda: FirstPromptEnv((PROMPT, "end")), "wrong_type", "stop condition is 'end'"),
    "step no coroutine": (SyncEnv, "wrong_type", "must be an `async def`"),
}


class HangingEnv(PlainEnv):
    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        return await self.wait_for_a_tool_that_never_answers()

    async def wait_for_a_tool_that_never_answers(self) -> StepResult:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")


class StubbornEnv(PlainEnv):
    """Takes no notice of its cancellation."""

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return step_result()
        raise AssertionError("nobody sets the event")
