"""Episodes: every member of every group is played concurrently, so that the engine sees all waiting turns as one batch.

Each turn of each member has its own seed, derived from where it stands (run, iteration, group, member, turn, attempt).
A rollout thus depends on no other, and an iteration can be repeated without replaying the ones before it.

When an environment fails, the other members of its group play to their end before the group is dropped or tried again:
which requests the engine sees then depends on no clock, and none outlives its group.

Axes: _P group of the batch (problem), _G member of a group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.completers import TokenCompleter
from recipe.rl.concurrency import gather_or_cancel
from recipe.rl.env_calls import EnvCallFailed, call_env, call_env_now
from recipe.rl.env_faults import EnvFaultConfig, EnvironmentFailed
from recipe.rl.env_results import (
    checked_envs,
    checked_first_prompt,
    checked_group_rewards,
    checked_step,
    checked_tags,
)
from recipe.rl.loop_watchdog import LoopWatchdog
from recipe.rl.types import (
    ActionExtra,
    Env,
    EnvFault,
    EnvGroupBuilder,
    GroupOutcome,
    Observation,
    RolloutBatch,
    StepResult,
    TokensWithLogprobs,
    Trajectory,
    TrajectoryGroup,
    Transition,
)

__all__ = ["EnvironmentFailed", "SeedScope", "roll_out_group", "roll_out_groups"]

T = TypeVar("T")


@dataclass(frozen=True)
class SeedScope:
    """Where in a run the rollouts happen: the seed of each turn is derived from it."""

    seed: int
    # "train" or "test": their rollouts never share seeds.
    split: str
    iteration: int

    def turn_seed(self, i_group: int, i_member: int, turn: int, attempt: int = 0) -> int:
        """The sampling seed of one turn; another one in each attempt at the group."""
        place = ("rollout", self.split, self.seed, self.iteration, i_group, i_member, turn)
        return derive_seed(*place, *(("attempt", attempt) if attempt > 0 else ()))


async def roll_out_groups(
    builders_P: Sequence[EnvGroupBuilder],
    policy: TokenCompleter,
    seeds: SeedScope,
    rule: EnvFaultConfig,
    *,
    min_group_size: int = 1,
) -> RolloutBatch:
    """Play one group per builder, all groups and members concurrently, by the rule for environment faults.

    min_group_size: smallest group allowed; advantages need 2. Checked for all groups before anything is sampled, so
        that sampling starts once every make_envs() has returned or failed.
    """
    attempts_P = [_Attempt(builder, i, 0, policy, seeds, rule) for i, builder in enumerate(builders_P)]
    with LoopWatchdog():
        envs_PG = await gather_or_cancel([attempt.make_envs(min_group_size) for attempt in attempts_P])
        outcomes = await gather_or_cancel(
            [
                roll_out_group(builder, i_group, policy, seeds, rule, min_group_size=min_group_size, first_envs=envs_G)
                for i_group, (builder, envs_G) in enumerate(zip(builders_P, envs_PG, strict=True))
            ]
        )
    return RolloutBatch.of(outcomes)


async def roll_out_group(
    builder: EnvGroupBuilder,
    i_group: int,
    policy: TokenCompleter,
    seeds: SeedScope,
    rule: EnvFaultConfig,
    *,
    min_group_size: int = 1,
    first_envs: list[Env] | EnvFault | None = None,
) -> GroupOutcome:
    """Play one group by the rule for environment faults.

    i_group: its position in the batch. first_envs: what make_envs() gave for the first attempt, where it was called
        already.
    Raises EnvironmentFailed where the rule is to stop, InvalidRequest for a group that is too small, and whatever the
    policy or the engine raise.
    """
    faults: list[EnvFault] = []
    for number in range(rule.num_attempts):
        attempt = _Attempt(builder, i_group, number, policy, seeds, rule)
        envs_G = first_envs if number == 0 else None
        if envs_G is None:
            envs_G = await attempt.make_envs(min_group_size)
        played = [envs_G] if isinstance(envs_G, EnvFault) else await attempt.play(envs_G)
        if isinstance(played, TrajectoryGroup):
            return GroupOutcome(i_group, played, faults, number + 1)
        faults += played
    return GroupOutcome(i_group, None, faults, rule.num_attempts)


@dataclass(frozen=True)
class _Attempt:
    """One attempt at a group. Its calls into environments return an EnvFault where they fail and may be survived."""

    builder: EnvGroupBuilder
    i_group: int
    number: int
    policy: TokenCompleter
    seeds: SeedScope
    rule: EnvFaultConfig

    async def make_envs(self, min_group_size: int) -> list[Env] | EnvFault:
        where = self._of_builder("make_envs")
        try:
            envs_G = await self._call(self.builder.make_envs, checked_envs, where, self.builder)
        except EnvCallFailed as failure:
            return self._fault(failure, type(self.builder).__name__)
        if len(envs_G) < min_group_size:
            raise InvalidRequest(
                f"group_size={len(envs_G)}: advantages need at least {min_group_size}; {where} must return that many"
                f" environments (set group_size >= {min_group_size})."
            )
        return envs_G

    async def play(self, envs_G: list[Env]) -> TrajectoryGroup | list[EnvFault]:
        played_G = await gather_or_cancel([self._play_member(env, i_member) for i_member, env in enumerate(envs_G)])
        faults = [member for member in played_G if isinstance(member, EnvFault)]
        if faults:
            return faults
        trajectories_G = [member for member in played_G if isinstance(member, Trajectory)]
        try:
            scored_G = await self._call(
                partial(self.builder.compute_group_rewards, trajectories_G, envs_G),
                partial(checked_group_rewards, group_size=len(envs_G)),
                self._of_builder("compute_group_rewards"),
                self.builder,
            )
            tags = call_env_now(self.builder.logging_tags, checked_tags, self._of_builder("logging_tags"))
        except EnvCallFailed as failure:
            return [self._fault(failure, type(self.builder).__name__)]
        return TrajectoryGroup(
            trajectories_G=trajectories_G,
            final_rewards_G=[reward for reward, _ in scored_G],
            metrics_G=[metrics for _, metrics in scored_G],
            tags=tags,
            env_name=_env_name(envs_G[0]),
            i_group=self.i_group,
            problem_id=self.builder.problem_id(),
        )

    async def _play_member(self, env: Env, i_member: int) -> Trajectory | EnvFault:
        member = f"{_env_name(env)} (group {self.i_group}, member {i_member})"
        transitions: list[Transition] = []
        unrated_turn: tuple[Observation, TokensWithLogprobs] | None = None
        try:
            observation, stop = await self._call(
                env.initial_observation, checked_first_prompt, f"initial_observation() of {member}", env
            )
            while True:
                turn = len(transitions)
                action = await self.policy(observation, stop, seed=self._seed(i_member, turn))
                _check_action(action, f"turn {turn} of {member}")
                unrated_turn = (observation, action)
                step = partial(env.step, list(action.tokens), extra=ActionExtra(stop_reason=action.stop_reason))
                check = partial(checked_step, num_tokens=len(action.tokens))
                result = await self._call(step, check, f"step() of {member}, turn {turn}", env)
                transitions.append(_transition(observation, action, result))
                if result.episode_done:
                    return Trajectory(transitions=transitions, final_ob=result.next_observation)
                observation, stop, unrated_turn = result.next_observation, result.next_stop_condition, None
        except EnvCallFailed as failure:
            return self._fault(failure, _env_name(env), i_member, transitions, unrated_turn)

    async def _call(
        self, method: Callable[[], Awaitable[Any]], check: Callable[[Any], T], where: str, owner: Env | EnvGroupBuilder
    ) -> T:
        name = getattr(method, "func", method).__name__
        written_in = getattr(_played(owner), name, None)
        return await call_env(method, check, where, deadline_s=self.rule.deadline_s, written_in=written_in)

    def _fault(
        self,
        failure: EnvCallFailed,
        env_name: str,
        i_member: int | None = None,
        transitions: Sequence[Transition] = (),
        unrated_turn: tuple[Observation, TokensWithLogprobs] | None = None,
    ) -> EnvFault:
        if self.rule.on_fault == "stop":
            raise failure.as_stop() from failure.__cause__
        return EnvFault(
            kind=failure.kind,
            where=failure.where,
            error=failure.error,
            traceback=failure.traceback_text,
            env_name=env_name,
            i_group=self.i_group,
            attempt=self.number,
            i_member=i_member,
            transitions=list(transitions),
            unrated_turn=unrated_turn,
        )

    def _seed(self, i_member: int, turn: int) -> int:
        return self.seeds.turn_seed(self.i_group, i_member, turn, self.number)

    def _of_builder(self, method: str) -> str:
        return f"{type(self.builder).__name__}.{method}() of group {self.i_group}"


def _played(owner: object) -> object:
    """The object a user wrote: what an adapter such as EnvFromMessageEnv plays, where there is one."""
    return getattr(owner, "message_env", owner)


def _env_name(env: Env) -> str:
    return type(_played(env)).__name__


def _transition(observation: Observation, action: TokensWithLogprobs, result: StepResult) -> Transition:
    return Transition(
        ob=observation,
        ac=action,
        reward=result.reward,
        episode_done=result.episode_done,
        metrics=result.metrics,
        logs=result.logs,
        token_rewards=result.token_rewards,
    )


def _check_action(action: TokensWithLogprobs, where: str) -> None:
    if action.logprobs is None or len(action.logprobs) != len(action.tokens):
        num_logprobs = "no" if action.logprobs is None else str(len(action.logprobs))
        raise InvalidRequest(
            f"{where}: the policy returned {len(action.tokens)} tokens with {num_logprobs} logprobs; training needs the"
            " sampler's logprob of every token."
        )
