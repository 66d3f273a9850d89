"""Episodes: every member of every group is played concurrently, so that the engine sees all waiting turns as one batch.

Each turn of each member has its own seed, derived from where it stands (run, iteration, group, member, turn). A rollout
thus depends on no other, and an iteration can be repeated without replaying the ones before it.

Axes: _P group of the batch (problem), _G member of a group.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TypeVar

from mint.errors import InvalidRequest, MintError, NonFiniteError
from mint.seeds import derive_seed
from recipe.completers import TokenCompleter
from recipe.rl.concurrency import gather_or_cancel
from recipe.rl.types import (
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Metrics,
    Observation,
    StepResult,
    TokensWithLogprobs,
    Trajectory,
    TrajectoryGroup,
    Transition,
)

T = TypeVar("T")


class EnvironmentFailed(MintError, RuntimeError):
    """An environment raised; the message says which one and where, the original error is its __cause__."""


@dataclass(frozen=True)
class SeedScope:
    """Where in a run the rollouts happen: the seed of each turn is derived from it."""

    seed: int
    # "train" or "test": their rollouts never share seeds.
    split: str
    iteration: int

    def turn_seed(self, i_group: int, i_member: int, turn: int) -> int:
        """The sampling seed of one turn."""
        return derive_seed("rollout", self.split, self.seed, self.iteration, i_group, i_member, turn)


async def roll_out_groups(
    builders_P: Sequence[EnvGroupBuilder], policy: TokenCompleter, seeds: SeedScope, *, min_group_size: int = 1
) -> list[TrajectoryGroup]:
    """One TrajectoryGroup per builder, in order; all groups and members run concurrently.

    min_group_size: smallest group allowed; advantages need 2. Checked before anything is sampled.
    """
    envs_PG = await gather_or_cancel([_make_envs(builder, i, min_group_size) for i, builder in enumerate(builders_P)])
    return await gather_or_cancel(
        [
            _roll_out_group(builder, envs_G, policy, seeds, i_group)
            for i_group, (builder, envs_G) in enumerate(zip(builders_P, envs_PG, strict=True))
        ]
    )


async def _make_envs(builder: EnvGroupBuilder, i_group: int, min_group_size: int) -> Sequence[Env]:
    where = f"{type(builder).__name__}.make_envs() of group {i_group}"
    envs_G = await _named(builder.make_envs(), where)
    if len(envs_G) < min_group_size:
        raise InvalidRequest(
            f"group_size={len(envs_G)}: advantages need at least {min_group_size}; {where} must return that many"
            f" environments (set group_size >= {min_group_size})."
        )
    return envs_G


async def _roll_out_group(
    builder: EnvGroupBuilder, envs_G: Sequence[Env], policy: TokenCompleter, seeds: SeedScope, i_group: int
) -> TrajectoryGroup:
    trajectories_G = await gather_or_cancel(
        [_roll_out_member(env, policy, seeds, i_group, i_member) for i_member, env in enumerate(envs_G)]
    )
    where = f"{type(builder).__name__}.compute_group_rewards() of group {i_group}"
    scored_G = await _named(builder.compute_group_rewards(trajectories_G, envs_G), where)
    if len(scored_G) != len(envs_G):
        raise InvalidRequest(f"{where} returned {len(scored_G)} results for {len(envs_G)} members; return one each.")
    for i_member, (reward, metrics) in enumerate(scored_G):
        _check_finite(reward, metrics, f"{where}, member {i_member}")
    return TrajectoryGroup(
        trajectories_G=trajectories_G,
        final_rewards_G=[float(reward) for reward, _ in scored_G],
        metrics_G=[metrics for _, metrics in scored_G],
        tags=list(builder.logging_tags()),
        env_name=_env_name(envs_G[0]) if envs_G else type(builder).__name__,
        i_group=i_group,
    )


async def _roll_out_member(
    env: Env, policy: TokenCompleter, seeds: SeedScope, i_group: int, i_member: int
) -> Trajectory:
    member = f"{_env_name(env)} (group {i_group}, member {i_member})"
    observation, stop = await _named(env.initial_observation(), f"initial_observation() of {member}")
    transitions: list[Transition] = []
    while True:
        turn = len(transitions)
        action = await policy(observation, stop, seed=seeds.turn_seed(i_group, i_member, turn))
        _check_action(action, f"turn {turn} of {member}")
        where = f"step() of {member}, turn {turn}"
        result = await _named(env.step(list(action.tokens), extra=ActionExtra(stop_reason=action.stop_reason)), where)
        _check_finite(result.reward, result.metrics, where)
        transitions.append(_transition(observation, action, result))
        if result.episode_done:
            return Trajectory(transitions=transitions, final_ob=result.next_observation)
        observation, stop = result.next_observation, result.next_stop_condition


def _env_name(env: Env) -> str:
    """The class a user wrote: what an adapter such as EnvFromMessageEnv plays, where there is one."""
    return type(getattr(env, "message_env", env)).__name__


def _transition(observation: Observation, action: TokensWithLogprobs, result: StepResult) -> Transition:
    return Transition(
        ob=observation,
        ac=action,
        reward=float(result.reward),
        episode_done=result.episode_done,
        metrics=result.metrics,
        logs=result.logs,
    )


async def _named(call: Awaitable[T], where: str) -> T:
    """The result of an environment's own code; an error in it says where it happened (a MintError keeps its class)."""
    try:
        return await call
    except MintError as error:
        raise type(error)(f"{where}: {error}") from error
    except Exception as error:
        raise EnvironmentFailed(f"{where} raised {type(error).__name__}: {error}") from error


def _check_action(action: TokensWithLogprobs, where: str) -> None:
    if action.logprobs is None or len(action.logprobs) != len(action.tokens):
        num_logprobs = "no" if action.logprobs is None else str(len(action.logprobs))
        raise InvalidRequest(
            f"{where}: the policy returned {len(action.tokens)} tokens with {num_logprobs} logprobs; training needs the"
            " sampler's logprob of every token."
        )


def _check_finite(reward: float, metrics: Metrics, where: str) -> None:
    for name, value in (("reward", reward), *metrics.items()):
        if not isinstance(value, Real):
            raise InvalidRequest(f"{where}: {name} is {value!r} ({type(value).__name__}); it must be a number.")
        if not math.isfinite(value):
            raise NonFiniteError(f"{where}: {name} is {value}; it must be finite. Clamp it or fix the scoring.")
