"""From groups to the sequences of an update."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from mint import types
from recipe.rl.batch import KLPenalty, ScoredGroup, TrainingBatch, build_batch, score_groups
from recipe.rl.credit import AdvantageConfig
from recipe.rl.kl_coefficient import KLPenaltyConfig
from recipe.rl.metrics import constant_group_metrics
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


def scored(*groups: TrajectoryGroup, advantage: str = "centred", **config: Any) -> list[ScoredGroup]:
    return score_groups(groups, advantage, AdvantageConfig(**config), max_tokens=8)


MIXED, CONSTANT = group(0, [1.0, 0.0]), group(1, [2.0, 2.0])


async def batch_of(*groups: TrajectoryGroup, remove: bool = False, penalty: KLPenalty | None = None) -> TrainingBatch:
    return await build_batch(scored(*groups), remove_constant_reward_groups=remove, penalty=penalty)


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


def penalty(coef: float, temperature: float = 1.0, **config: Any) -> KLPenalty:
    reference: Any = Reference(-1.5)
    policy: Any = Reference(-1.25)
    return KLPenalty(reference, coef, policy, temperature, KLPenaltyConfig(**config))


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


async def test_a_penalty_in_the_loss_leaves_the_advantages_and_brings_the_references_logprobs() -> None:
    batch = await batch_of(MIXED, CONSTANT, remove=True, penalty=penalty(0.1, form="loss_k3"))
    assert tokens_and_advantages(batch) == [(0, 0.5), (1, -0.5)]
    references = [sequence.reference_logprobs_T for sequence in batch.sequences_D]
    assert [None if values is None else values.tolist() for values in references] == [[-1.5], [-1.5]]


async def test_a_penalty_in_the_advantages_brings_nothing_else() -> None:
    batch = await batch_of(MIXED, penalty=penalty(0.1))
    assert all(sequence.reference_logprobs_T is None for sequence in batch.sequences_D)


def turns(rewards_K: list[float]) -> Trajectory:
    """Turn k samples k + 1 tokens of id 50 + k."""
    transitions = [
        Transition(
            types.ModelInput.from_ints([1]),
            TokensWithLogprobs([50 + k] * (k + 1), [-1.0] * (k + 1)),
            reward,
            episode_done=k == len(rewards_K) - 1,
        )
        for k, reward in enumerate(rewards_K)
    ]
    return Trajectory(transitions, types.ModelInput.from_ints([]))


def group_of_turns(members: list[list[float]]) -> TrajectoryGroup:
    return TrajectoryGroup([turns(rewards_K) for rewards_K in members], [0.0] * len(members), [{} for _ in members])


# Both members earn 1 in all, in different turns.
EQUAL_SUMS = group_of_turns([[1.0, 0.0], [0.0, 1.0]])


async def test_with_credit_by_turn_a_group_of_equal_sums_still_teaches() -> None:
    (by_episode,), (by_turn,) = scored(EQUAL_SUMS), scored(EQUAL_SUMS, credit="turn")
    assert (by_episode.teaches_nothing, by_turn.teaches_nothing) == (True, False)
    batch = await build_batch([by_turn], remove_constant_reward_groups=True, penalty=None)
    # Each turn's prompt does not go on from the turn before, so each is a sequence. Returns 1, 0 and 1, 1.
    assert [sequence.advantages_T.tolist() for sequence in batch.sequences_D] == [
        [0.0],
        [-0.5, -0.5],
        [0.0],
        [0.5, 0.5],
    ]
    assert batch.metrics["batch/num_constant_groups"] == 1
    assert batch.metrics["batch/num_dropped_groups"] == 0


def test_an_episode_is_summed_up_by_its_mean_advantage() -> None:
    (by_turn,) = scored(EQUAL_SUMS, credit="turn")
    assert by_turn.mean_advantages_G == pytest.approx([-1 / 3, 1 / 3])
    (by_episode,) = scored(MIXED)
    assert by_episode.mean_advantages_G == [0.5, -0.5]


def test_the_length_of_an_episode_is_a_factor_on_all_its_sequences() -> None:
    (by_length,) = scored(EQUAL_SUMS, length_norm="sequence_mean", credit="turn")
    assert [sequence.loss_factor for sequence in by_length.sequences()] == [1 / 3] * 4
    datum = by_length.sequences()[3].to_datum()
    assert datum.loss_fn_inputs["advantages"].tolist() == pytest.approx([0.5 / 3, 0.5 / 3])
    assert datum.loss_fn_inputs["weights"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [("centred", [0.5, -0.5]), ("standardised", [1.0, -1.0]), ("leave_one_out", [1.0, -1.0])],
)
async def test_the_advantage_is_the_one_that_is_named(advantage: str, expected: list[float]) -> None:
    (by_name,) = scored(MIXED, advantage=advantage)
    assert by_name.mean_advantages_G == pytest.approx(expected, rel=1e-5)


def same_text(rewards: list[float]) -> TrajectoryGroup:
    """Members that all sample the token 7."""
    made = group(0, rewards)
    action = TokensWithLogprobs([7], [-1.0])
    trajectories = [
        Trajectory([replace(trajectory.transitions[0], ac=action)], trajectory.final_ob)
        for trajectory in made.trajectories_G
    ]
    return replace(made, trajectories_G=trajectories)


@pytest.mark.parametrize(
    ("groups", "counts"),
    [
        ([MIXED], (0, 0, 0, 0)),
        ([group(0, [1.0, 1.0])], (1, 1, 0, 0)),
        ([group(0, [0.5, 0.5])], (1, 1, 0, 0)),
        ([group(0, [0.49, 0.49]), group(1, [-1.0, -1.0])], (2, 0, 2, 0)),
        # What the texts are comes first: neither easier nor harder samples would help here.
        ([same_text([1.0, 1.0]), same_text([0.0, 0.0])], (2, 0, 0, 2)),
        # A reward that differs between equal texts is noise, and yet not constant.
        ([same_text([1.0, 0.0])], (0, 0, 0, 0)),
    ],
)
def test_constant_groups_are_counted_by_what_would_help(
    groups: list[TrajectoryGroup], counts: tuple[int, int, int, int]
) -> None:
    names = ("constant", "all_right", "all_wrong", "identical_text")
    assert constant_group_metrics(groups) == {
        f"batch/num_{name}_groups": count for name, count in zip(names, counts, strict=True)
    }
