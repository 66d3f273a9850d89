"""Rollouts of scripted environments with a scripted policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mint import types
from mint.errors import InvalidRequest
from recipe.rl.env_faults import EnvFaultConfig, EnvironmentFailed
from recipe.rl.rollouts import SeedScope, roll_out_groups
from recipe.rl.types import (
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Metrics,
    StepResult,
    StopCondition,
    TokensWithLogprobs,
    Trajectory,
    TrajectoryGroup,
)

SEEDS = SeedScope(seed=3, split="train", iteration=5)


class CountingPolicy:
    """Answers every prompt with its length and remembers the seeds; counts how many calls were waiting at once."""

    def __init__(self, *, drop_logprobs: bool = False) -> None:
        self.seeds: list[int | None] = []
        self.waiting = 0
        self.most_waiting = 0
        self.drop_logprobs = drop_logprobs

    async def __call__(
        self,
        model_input: types.ModelInput,
        stop: StopCondition,
        *,
        seed: int | None = None,
        max_tokens: int | None = None,
    ) -> TokensWithLogprobs:
        self.seeds.append(seed)
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        await asyncio.sleep(0.001)
        self.waiting -= 1
        logprobs = [] if self.drop_logprobs else [-0.5]
        return TokensWithLogprobs(tokens=[model_input.length], logprobs=logprobs, stop_reason="stop")


class CountdownEnv(Env):
    """`turns` turns; each is rewarded with the token sampled. `reward` replaces the last reward."""

    def __init__(self, turns: int, reward: float | None = None, fails_at: int | None = None) -> None:
        self.turns_left = turns
        self.reward = reward
        self.fails_at = fails_at
        self.tokens = [9]

    async def initial_observation(self) -> tuple[types.ModelInput, StopCondition]:
        return types.ModelInput.from_ints(self.tokens), [0]

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        if self.fails_at == len(self.tokens):
            raise KeyError("no such tool")
        assert extra is not None and extra.get("stop_reason") == "stop"
        self.tokens = [*self.tokens, *action, 9]
        self.turns_left -= 1
        done = self.turns_left == 0
        reward = self.reward if done and self.reward is not None else float(action[0])
        return StepResult(reward, done, types.ModelInput.from_ints(self.tokens), [0], metrics={"steps": 1.0})


class Countdowns(EnvGroupBuilder):
    def __init__(self, envs: Sequence[Env], group_rewards: list[float] | None = None) -> None:
        self.envs = envs
        self.group_rewards = group_rewards

    async def make_envs(self) -> Sequence[Env]:
        return self.envs

    async def compute_group_rewards(
        self, trajectories: list[Trajectory], envs: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        if self.group_rewards is None:
            return await super().compute_group_rewards(trajectories, envs)
        return [(reward, {"rank": float(i)}) for i, reward in enumerate(self.group_rewards)]

    def logging_tags(self) -> list[str]:
        return ["countdown"]


async def roll_out(builders: Sequence[EnvGroupBuilder], policy: CountingPolicy | None = None) -> list[TrajectoryGroup]:
    rule = EnvFaultConfig(on_fault="stop")
    batch = await roll_out_groups(builders, policy or CountingPolicy(), SEEDS, rule, min_group_size=2)
    return batch.groups_P


async def test_every_turn_keeps_its_tokens_logprobs_and_reward() -> None:
    [group] = await roll_out([Countdowns([CountdownEnv(2), CountdownEnv(1)], group_rewards=[10.0, 0.0])])
    first = group.trajectories_G[0]
    assert [transition.ob.to_ints() for transition in first.transitions] == [[9], [9, 1, 9]]
    assert [transition.ac.tokens for transition in first.transitions] == [[1], [3]]
    assert first.final_ob.to_ints() == [9, 1, 9, 3, 9]
    assert group.get_total_rewards() == [1 + 3 + 10, 1]
    assert group.metrics_G == [{"rank": 0.0}, {"rank": 1.0}]
    assert (group.tags, group.env_name) == (["countdown"], "CountdownEnv")


async def test_all_members_of_all_groups_wait_for_the_policy_together() -> None:
    policy = CountingPolicy()
    groups = await roll_out([Countdowns([CountdownEnv(1) for _ in range(4)]) for _ in range(3)], policy)
    assert policy.most_waiting == 12
    assert [group.i_group for group in groups] == [0, 1, 2]


async def test_each_turn_has_its_own_seed_and_the_same_one_every_time() -> None:
    async def seeds_of_a_batch() -> list[int | None]:
        policy = CountingPolicy()
        await roll_out([Countdowns([CountdownEnv(2), CountdownEnv(2)]) for _ in range(2)], policy)
        return policy.seeds

    seeds = await seeds_of_a_batch()
    assert len(set(seeds)) == 8 and None not in seeds
    assert sorted(filter(None, seeds)) == sorted(filter(None, await seeds_of_a_batch()))


def test_seeds_differ_between_iterations_splits_and_runs() -> None:
    scopes = [SEEDS, SeedScope(3, "test", 5), SeedScope(3, "train", 6), SeedScope(4, "train", 5)]
    assert len({scope.turn_seed(0, 0, 0) for scope in scopes}) == 4


async def test_missing_logprobs_name_the_member() -> None:
    builder = Countdowns([CountdownEnv(1), CountdownEnv(1)])
    with pytest.raises(
        InvalidRequest, match=r"turn 0 of CountdownEnv \(group 0, member 0\): .* 1 tokens with 0 logprobs"
    ):
        await roll_out([builder], CountingPolicy(drop_logprobs=True))


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
async def test_a_non_finite_reward_names_environment_group_and_member(reward: float) -> None:
    good = Countdowns([CountdownEnv(1), CountdownEnv(1)])
    bad = Countdowns([CountdownEnv(1), CountdownEnv(2, reward=reward)])
    with pytest.raises(
        EnvironmentFailed, match=r"step\(\) of CountdownEnv \(group 1, member 1\), turn 1: reward is (nan|inf)"
    ):
        await roll_out([good, bad])


async def test_a_non_finite_group_reward_names_the_builder_and_member() -> None:
    builder = Countdowns([CountdownEnv(1), CountdownEnv(1)], group_rewards=[0.0, float("nan")])
    with pytest.raises(
        EnvironmentFailed, match=r"Countdowns.compute_group_rewards\(\) of group 0: member 1: reward is nan"
    ):
        await roll_out([builder])


async def test_a_reward_that_is_no_number_is_refused() -> None:
    builder = Countdowns([CountdownEnv(1), CountdownEnv(1, reward="good")])  # pyright: ignore[reportArgumentType]
    with pytest.raises(EnvironmentFailed, match=r"member 1\), turn 0: reward is 'good' \(str\); it must be a number"):
        await roll_out([builder])


async def test_an_exception_in_an_environment_names_its_place_and_keeps_its_cause() -> None:
    builder = Countdowns([CountdownEnv(3), CountdownEnv(3, fails_at=3)])
    with pytest.raises(
        EnvironmentFailed, match=r"step\(\) of CountdownEnv \(group 0, member 1\), turn 1 raised KeyError"
    ) as caught:
        await roll_out([builder])
    assert isinstance(caught.value.__cause__, KeyError)


async def test_a_failed_rollout_leaves_nothing_running() -> None:
    policy = CountingPolicy()
    with pytest.raises(EnvironmentFailed):
        await roll_out([Countdowns([CountdownEnv(50), CountdownEnv(50, fails_at=1)])], policy)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    assert len(policy.seeds) < 10


async def test_a_group_of_one_is_refused_before_sampling() -> None:
    policy = CountingPolicy()
    with pytest.raises(InvalidRequest, match=r"group_size=1: advantages need at least 2; .* of group 1"):
        await roll_out([Countdowns([CountdownEnv(1)] * 2), Countdowns([CountdownEnv(1)])], policy)
    assert policy.seeds == []


async def test_group_rewards_of_the_wrong_number_are_refused() -> None:
    with pytest.raises(EnvironmentFailed, match=r"returned 3 results for 2 members"):
        await roll_out([Countdowns([CountdownEnv(1), CountdownEnv(1)], group_rewards=[0.0, 1.0, 2.0])])


class TokenRewardEnv(CountdownEnv):
    """One turn with a reward of 3, spread as given."""

    def __init__(self, token_rewards: list[float]) -> None:
        super().__init__(turns=1, reward=3.0)
        self.token_rewards = token_rewards

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        return replace(await super().step(action, extra=extra), token_rewards=self.token_rewards)


async def test_token_rewards_stay_with_their_turn_and_count_once() -> None:
    [group] = await roll_out([Countdowns([TokenRewardEnv([3.0]), CountdownEnv(1, reward=1.0)])])
    assert [trajectory.transitions[0].token_rewards for trajectory in group.trajectories_G] == [[3.0], None]
    assert group.get_total_rewards() == [3.0, 1.0]


@pytest.mark.parametrize(
    ("token_rewards", "message"),
    [
        ([1.0, 2.0], "2 token_rewards for an action of 1 tokens; return one for each"),
        ([2.0], "the token_rewards sum to 2.0 and the reward is 3.0"),
        ([float("nan")], r"token_rewards\[0\] is nan; it must be finite"),
    ],
)
async def test_token_rewards_that_do_not_spread_the_reward_are_refused(
    token_rewards: list[float], message: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=message):
        await roll_out([Countdowns([TokenRewardEnv(token_rewards), CountdownEnv(1)])])
