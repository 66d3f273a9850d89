"""Additions: the right answer scores highest, nothing scores nothing, and test problems stay out of training."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import AdditionDatasetBuilder, AdditionEnv, EnvFromMessageEnv, MessageEnvGroupBuilder
from envs.arithmetic import addition_conversations, draw_additions, is_test_addition
from mint.errors import InvalidRequest
from renderers import Renderer


@given(left=st.integers(0, 999), right=st.integers(0, 999))
async def test_reference_answer_scores_one_and_an_empty_reply_does_not(left: int, right: int) -> None:
    env = AdditionEnv(left, right)
    reference = await env.step({"role": "assistant", "content": env.get_reference_answer()})
    assert (reference.reward, reference.metrics) == (1.0, {"correct": 1.0, "format": 1.0})
    empty = await env.step({"role": "assistant", "content": ""})
    assert (empty.reward, empty.metrics) == (-env.format_coef, {"correct": 0.0, "format": 0.0})


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("12", 1.0),
        (" 12\n", 1.0),
        ("It is 12.", 0.9),
        ("12 or 13", -0.1),
        ("13", 0.0),
        ("112", 0.0),
        ("012", 0.0),
    ],
)
async def test_reward_by_hand(reply: str, reward: float) -> None:
    result = await AdditionEnv(5, 7).step({"role": "assistant", "content": reply})
    assert result.reward == pytest.approx(reward)


async def test_cut_off_reply_counts_as_wrong(renderer: Renderer, sampled: Callable[[str], list[int]]) -> None:
    env = EnvFromMessageEnv(renderer, AdditionEnv(5, 7))
    await env.initial_observation()
    result = await env.step(sampled("12"), extra={"stop_reason": "length"})
    assert (result.metrics["correct"], result.metrics["cut_off"]) == (0.0, 1.0)


def test_train_and_test_additions_are_disjoint_and_repeatable() -> None:
    train, test = draw_additions(200, 9, seed=0, is_test=False), draw_additions(50, 9, seed=0, is_test=True)
    assert not set(train) & set(test)
    assert all(is_test_addition(*addition) for addition in test)
    assert train == draw_additions(200, 9, seed=0, is_test=False)
    assert train != draw_additions(200, 9, seed=1, is_test=False)


def _builder(**changes: Any) -> AdditionDatasetBuilder:
    from mint import builtin

    settings: dict[str, Any] = {
        "model_name": str(builtin.model_dir()),
        "renderer_name": "qwen3_disable_thinking",
        "group_size": 4,
        "groups_per_batch": 3,
        "num_batches": 2,
    }
    return AdditionDatasetBuilder(**{**settings, **changes})


async def test_batches_of_groups() -> None:
    train, test = await _builder(num_test_problems=4)()
    assert test is not None
    assert ([len(train.get_batch(i)) for i in range(len(train))], len(test)) == ([3, 3], 2)
    group = train.get_batch(0)[0]
    assert len(await group.make_envs()) == 4
    assert group.logging_tags() == ["addition"]
    assert len(await test.get_batch(0)[0].make_envs()) == 1
    assert (await _builder()())[1] is None


async def test_group_survives_pickling() -> None:
    train, _ = await _builder()()
    group = train.get_batch(1)[2]
    assert isinstance(group, MessageEnvGroupBuilder)
    envs = await pickle.loads(pickle.dumps(group)).make_envs()
    expected, _ = await (await group.make_envs())[0].initial_observation()
    assert (await envs[0].initial_observation())[0] == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 1}, "group_size=1: advantages need at least 2; set group_size >= 2"),
        ({"num_batches": 0}, "num_batches=0: must be at least 1"),
        ({"max_operand": 3}, "max_operand=3: must be at least 9"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        _builder(**changes)


async def test_the_question_can_be_put_in_other_words() -> None:
    env = AdditionEnv(3, 4, "{left}+{right}=")
    assert await env.initial_observation() == [{"role": "user", "content": "3+4="}]
    ((question, answer),) = addition_conversations(1, 9, seed=0, question="{left}+{right}=")
    left, right = str(question["content"]).removesuffix("=").split("+")
    assert answer["content"] == str(int(left) + int(right))


@pytest.mark.parametrize("question", ["3+4=", "{left}+4=", "{left}+{right}+{middle}=", "{left}+{right", "{0}+{1}="])
def test_a_question_without_both_numbers_is_refused(question: str) -> None:
    settings: dict[str, Any] = {"model_name": "mint-tiny", "renderer_name": "completion", "group_size": 2}
    with pytest.raises(InvalidRequest, match=r"question=.*\{left\}"):
        AdditionDatasetBuilder(groups_per_batch=1, num_batches=1, question=question, **settings)
