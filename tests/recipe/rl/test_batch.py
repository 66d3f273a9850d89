"""From groups to the sequences of an update."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mint import types
from recipe.rl.advantages import centred
from recipe.rl.batch import KLPenalty, TrainingBatch, build_batch, score_groups
from recipe.rl.types import TokensWithLogprobs, Trajectory, TrajectoryGroup, Transition


def group(i_group: int, rewards: list[float]) -> TrajectoryGroup:
    """Member i samples the single token 10 * i_group + i, with logprob -1."""

    def trajectory(i_member: int) -> Trajectory:
        action = TokensWithLogprobs(tokens=[10 * i_group + i_member], logprobs=[-1.0], stop_reason="stop")
        transition = Transition(types.ModelInput.from_ints([1]), action, rewards[i_member], True)
        return Trajectory([transition], types.ModelInput.from_ints([]))

    number = len(rewards)
    trajectories = [trajectory(i_member) for i_member in range(number)]
    return TrajectoryGroup(trajectories, [0.0] * number, [{}] * number, i_group=i_group)


class Reference:
    """Gives every token the same logprob."""

    def __init__(self, logprob: float) -> None:
        self.logprob = logprob

    async def compute_logprobs(
        self, prompt: types.ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> list[float | None]:
        return [None] + [self.logprob] * (prompt.length - 1)


MIXED, CONSTANT = group(0, [1.0, 0.0]), group(1, [2.0, 2.0])


async def batch_of(*groups: TrajectoryGroup, remove: bool = False, penalty: KLPenalty | None = None) -> TrainingBatch:
    scored = score_groups(groups, centred)
    return await build_batch(scored, remove_constant_reward_groups=remove, penalty=penalty)


def tokens_and_advantages(batch: TrainingBatch) -> list[tuple[int, float]]:
    return [(sequence.tokens[-1], float(sequence.advantages_T[-1])) for sequence in batch.sequences_D]


async def test_every_member_keeps_its_own_advantage() -> None:
    batch = await batch_of(MIXED, CONSTANT)
    assert tokens_and_advantages(batch) == [(0, 0.5), (1, -0.5), (10, 0.0), (11, 0.0)]
    assert batch.metrics["batch/num_datums"] == 4


async def test_constant_groups_are_counted_and_dropped_on_request() -> None:
    batch = await batch_of(CONSTANT, MIXED, remove=True)
    assert tokens_and_advantages(batch) == [(0, 0.5), (1, -0.5)]
    assert (batch.metrics["batch/num_groups"], batch.metrics["batch/num_constant_groups"]) == (2, 1)
    assert (batch.metrics["batch/num_dropped_groups"], batch.metrics["batch/num_datums"]) == (1, 2)


async def test_a_batch_of_constant_groups_is_empty_and_not_an_error() -> None:
    batch = await batch_of(CONSTANT, remove=True)
    assert batch.sequences_D == []
    assert batch.metrics["batch/num_dropped_groups"] == 1


def penalty(coef: float, temperature: float = 1.0) -> KLPenalty:
    reference: Any = Reference(-1.5)
    policy: Any = Reference(-1.25)
    return KLPenalty(reference, coef, policy, temperature)


async def test_kl_is_reported_over_all_groups_even_where_all_are_dropped() -> None:
    batch = await batch_of(CONSTANT, remove=True, penalty=penalty(0.1))
    assert batch.metrics["kl_policy_base"] == pytest.approx(0.5)
    assert batch.sequences_D == []


async def test_at_another_temperature_kl_is_that_of_the_policy_at_temperature_one() -> None:
    batch = await batch_of(MIXED, penalty=penalty(0.0, temperature=0.5))
    assert batch.metrics["kl_policy_base"] == pytest.approx(0.25)


async def test_a_coefficient_of_zero_leaves_the_advantages() -> None:
    batch = await batch_of(MIXED, penalty=penalty(0.0))
    assert tokens_and_advantages(batch) == [(0, 0.5), (1, -0.5)]


async def test_the_entropy_estimate_is_minus_the_mean_logprob() -> None:
    assert (await batch_of(MIXED)).metrics["entropy"] == pytest.approx(1.0)
    assert not math.isnan((await batch_of(CONSTANT, remove=True)).metrics["entropy"])
