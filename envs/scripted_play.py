"""Episodes with replies that are given beforehand: how an environment is tried without a model.

Axes: _G member of a group.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

from envs.types import (
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Metrics,
    Observation,
    StepResult,
    StopReason,
    TokensWithLogprobs,
    Trajectory,
    Transition,
)
from mint import types
from renderers import StopCondition, Tokenizer

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """The tokens of one turn, as a policy might have sampled them."""

    tokens: list[int]
    stop_reason: StopReason = "stop"


# Asked for the reply to an observation, whose stop condition it is given too; None leaves the episode as it is.
NextReply = Callable[[Observation, StopCondition], Awaitable[Reply | None]]


@dataclass
class Episode:
    """What became of one member."""

    trajectory: Trajectory
    is_done: bool
    # The longest that one call of the environment took, and what in its results was not of the protocol's types.
    slowest_seconds: float
    type_problems: list[str]

    @property
    def reward(self) -> float:
        """The sum of the steps' rewards."""
        return sum(transition.reward for transition in self.trajectory.transitions)


@dataclass
class GroupPlay:
    """What became of a group."""

    episodes_G: list[Episode]
    # Step rewards and what compute_group_rewards() added, and all metrics in order.
    rewards_G: list[float]
    metrics_G: list[list[Metrics]]
    type_problems: list[str] = field(default_factory=list)

    @property
    def is_done_G(self) -> list[bool]:
        """Whether each member's episode ended."""
        return [episode.is_done for episode in self.episodes_G]

    @property
    def slowest_seconds(self) -> float:
        """The longest that one call took."""
        return max((episode.slowest_seconds for episode in self.episodes_G), default=0.0)


async def play_group(
    builder: EnvGroupBuilder, replies_G: Sequence[Sequence[Reply]], max_seconds: float | None = None
) -> GroupPlay:
    """Play a group made afresh, all members at once, each with its own replies in order until its episode ends.

    max_seconds: a call of an environment that awaits longer is a TimeoutError; None: no limit. What the environments
    raise comes through.
    """
    envs_G = await asyncio.wait_for(builder.make_envs(), max_seconds)
    waiting_G = [list(replies) for replies in replies_G]

    def script(i_member: int) -> NextReply:
        async def next_reply(observation: Observation, stop: StopCondition) -> Reply | None:
            return waiting_G[i_member].pop(0) if waiting_G[i_member] else None

        return next_reply

    players = [play_episode(env, script(i), max_seconds) for i, env in enumerate(envs_G)]
    episodes_G = await _all_or_none(players)
    scored_G = await asyncio.wait_for(
        builder.compute_group_rewards([episode.trajectory for episode in episodes_G], envs_G), max_seconds
    )
    problems = [problem for episode in episodes_G for problem in episode.type_problems]
    if len(scored_G) != len(envs_G):
        problems.append(f"compute_group_rewards() returned {len(scored_G)} results for {len(envs_G)} members")
        scored_G = [(0.0, {}) for _ in envs_G]
    problems += [
        problem
        for reward, metrics in scored_G
        for problem in _number_problems("compute_group_rewards()", reward, metrics)
    ]
    pairs = list(zip(episodes_G, scored_G, strict=True))
    rewards_G = [episode.reward + reward for episode, (reward, _) in pairs]
    metrics_G = [[turn.metrics for turn in episode.trajectory.transitions] + [own] for episode, (_, own) in pairs]
    return GroupPlay(episodes_G, rewards_G, metrics_G, problems)


async def play_episode(env: Env, next_reply: NextReply, max_seconds: float | None = None) -> Episode:
    """One episode, until it ends or no reply is given. max_seconds: as in play_group."""
    slowest = 0.0

    async def timed(call: Awaitable[T]) -> T:
        nonlocal slowest
        started = time.monotonic()
        result = await asyncio.wait_for(call, max_seconds)
        slowest = max(slowest, time.monotonic() - started)
        return result

    observation, stop = await timed(env.initial_observation())
    problems = _prompt_problems("initial_observation()", observation, stop)
    transitions: list[Transition] = []
    while (reply := await next_reply(observation, stop)) is not None:
        result = await timed(env.step(list(reply.tokens), extra=ActionExtra(stop_reason=reply.stop_reason)))
        problems += _result_problems(result)
        action = TokensWithLogprobs(reply.tokens, [0.0] * len(reply.tokens), reply.stop_reason)
        transitions.append(
            Transition(observation, action, float(result.reward), result.episode_done, result.metrics, result.logs)
        )
        observation, stop = result.next_observation, result.next_stop_condition
        if result.episode_done:
            return Episode(Trajectory(transitions, observation), True, slowest, problems)
    await env.leave()
    return Episode(Trajectory(transitions, observation), False, slowest, problems)


def sampled_text(text: str, stop: StopCondition, tokenizer: Tokenizer) -> Reply:
    """The reply that a policy would give by sampling this text, control tokens written out, and then stopping."""
    tokens = tokenizer.encode(text, add_special_tokens=False) if text else []
    end = [stop[0]] if stop and isinstance(stop[0], int) else []
    if stop and isinstance(stop[0], str):
        end = tokenizer.encode(stop[0], add_special_tokens=False)
    return Reply([*tokens, *end], "stop" if end else "length")


async def _all_or_none(calls: Sequence[Awaitable[T]]) -> list[T]:
    """All results; when one call raises, the others are stopped: one that waits for it would wait for ever."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _prompt_problems(where: str, observation: Any, stop: Any) -> list[str]:
    problems = []
    if not isinstance(observation, types.ModelInput):
        problems.append(f"{where} gave an observation of type {type(observation).__name__}, not mint.types.ModelInput")
    elif observation.length == 0:
        problems.append(f"{where} gave an empty observation; a policy needs a token to begin from")
    kinds = {type(item) for item in stop} if isinstance(stop, list) else {type(None)}
    if not (kinds <= {int} or kinds <= {str}):
        problems.append(f"{where} gave the stop condition {stop!r}; it must be a list of token ids or of strings")
    return problems


def _result_problems(result: StepResult) -> list[str]:
    problems = _number_problems("step()", result.reward, result.metrics)
    if not isinstance(result.episode_done, bool):
        problems.append(f"step() gave episode_done={result.episode_done!r}; it must be True or False")
    for name, value in result.logs.items():
        if not isinstance(value, str | int | float):
            problems.append(f"step() gave the log {name}={value!r}; it must be text or a number")
    if not result.episode_done:
        problems += _prompt_problems("step()", result.next_observation, result.next_stop_condition)
    return problems


def _number_problems(where: str, reward: Any, metrics: Metrics) -> list[str]:
    return [
        f"{where} gave {name}={value!r}; it must be a finite number"
        for name, value in (("reward", reward), *metrics.items())
        if not isinstance(value, Real) or not math.isfinite(value)
    ]
