"""The calculator task: the gold episode earns the most, an answer from nowhere earns nothing, splits stay apart."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import EnvFromMessageEnv, MessageEnvGroupBuilder
from envs.calculator import (
    CalculatorDatasetBuilder,
    CalculatorEnv,
    Problem,
    demonstration,
    draw_problems,
    is_test_problem,
    result_of,
)
from mint import builtin
from mint.errors import InvalidRequest
from renderers import Renderer, TrainOnWhat, get_renderer

PROBLEMS = st.tuples(st.integers(10, 999), st.sampled_from("+-*"), st.integers(10, 999))


@given(problem=PROBLEMS)
async def test_gold_replies_earn_the_most_and_an_empty_answer_nothing(problem: Problem) -> None:
    env = CalculatorEnv(problem)
    await env.initial_observation()
    call, answer = env.gold_replies()
    asked = await env.step(call)
    assert (asked.reward, asked.episode_done) == (0.0, False)
    assert asked.next_messages[-1] == {"role": "tool", "name": "calculator", "content": str(result_of(problem))}
    answered = await env.step(answer)
    assert (answered.reward, answered.episode_done) == (env.max_reward, True)
    assert (env.episode_metrics()["correct"], env.episode_metrics()["tool/calls"]) == (1.0, 1.0)
    empty = await CalculatorEnv(problem).step({"role": "assistant", "content": ""})
    assert (empty.reward, empty.episode_done) == (0.0, True)


@pytest.mark.parametrize(
    ("problem", "reply", "reward"),
    [
        ((47, "+", 85), "132", 1.0),
        ((47, "+", 85), "47 + 85 is 132.", 1.0),
        ((47, "+", 85), "132 or 133", 0.0),
        ((47, "+", 85), "1320", 0.0),
        ((12, "-", 30), "The answer is -18.", 1.0),
        ((12, "-", 30), "18", 0.0),
        ((12, "*", 30), "360.0", 1.0),
    ],
)
async def test_answer_by_hand(problem: Problem, reply: str, reward: float) -> None:
    result = await CalculatorEnv(problem).step({"role": "assistant", "content": reply})
    assert result.reward == reward


def test_train_and_test_problems_are_disjoint_and_repeatable() -> None:
    train, test = draw_problems(300, 20, 0, is_test=False), draw_problems(60, 20, 0, is_test=True)
    assert not set(train) & set(test)
    assert all(is_test_problem(problem) for problem in test)
    assert train == draw_problems(300, 20, 0, is_test=False) != draw_problems(300, 20, 1, is_test=False)
    assert {operator for _, operator, _ in train} == set("+-*")
    assert {operator for _, operator, _ in draw_problems(50, 20, 0, is_test=False, operators="-")} == {"-"}


async def test_demonstration_looks_as_an_episode_does(tokenizer: Any) -> None:
    renderer: Renderer = get_renderer("qwen3_instruct", tokenizer)
    messages, tools = demonstration([(47, "+", 85)])
    example, weights = renderer.build_supervised_example(messages, TrainOnWhat.ALL_ASSISTANT_MESSAGES, tools)
    env = CalculatorEnv((47, "+", 85))
    adapter = EnvFromMessageEnv(renderer, env)
    prompt, _ = await adapter.initial_observation()
    tokens = prompt.to_ints()
    assert example.to_ints()[: len(tokens)] == tokens
    num_call = int(next(i for i, weight in enumerate(weights[len(tokens) :]) if weight == 0))
    call = example.to_ints()[len(tokens) : len(tokens) + num_call]
    result = await adapter.step(call, extra={"stop_reason": "stop"})
    shown = result.next_observation.to_ints()
    assert example.to_ints()[: len(shown)] == shown
    roles = [message["role"] for message in demonstration([(47, "+", 85), (10, "*", 11)], num_from_head=1)[0]]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant"]


def _builder(**changes: Any) -> CalculatorDatasetBuilder:
    settings: dict[str, Any] = {
        "model_name": str(builtin.model_dir()),
        "renderer_name": "qwen3_instruct",
        "group_size": 4,
        "groups_per_batch": 3,
        "num_batches": 2,
    }
    return CalculatorDatasetBuilder(**{**settings, **changes})


async def test_batches_of_groups() -> None:
    train, test = await _builder(num_test_problems=4, max_calls=1)()
    assert test is not None
    assert ([len(train.get_batch(i)) for i in range(len(train))], len(test)) == ([3, 3], 2)
    group = pickle.loads(pickle.dumps(train.get_batch(0)[0]))
    assert isinstance(group, MessageEnvGroupBuilder)
    assert (len(await group.make_envs()), group.logging_tags()) == (4, ["calculator"])
    env = group.make_env()
    assert isinstance(env, CalculatorEnv) and env.limits.max_calls == 1
    assert len(await test.get_batch(0)[0].make_envs()) == 1
    assert (await _builder()())[1] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 1}, "group_size=1: advantages need at least 2"),
        ({"num_batches": 0}, "num_batches=0: must be at least 1"),
        ({"max_operand": 10}, "max_operand=10: must be at least 19"),
        ({"operators": "+/"}, r"operators='\+/': must be one or more of \+-\*"),
        ({"max_turns": 0}, "max_turns=0: must be at least 1"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        _builder(**changes)
