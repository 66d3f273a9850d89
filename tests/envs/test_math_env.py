"""Word problems: what a reply earns, what a row becomes, and which problems go where."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from envs import MessageEnvGroupBuilder, math_grading
from envs.group_dataset import GroupDataset
from envs.math_env import MathDatasetBuilder, MathEnv, MathProblem, problem_from_row
from mint.errors import InvalidRequest

APPLES = MathProblem("2 apples and 3 apples?", "5", "2+3=5")


async def earned(env: MathEnv, reply: str) -> float:
    return (await env.step({"role": "assistant", "content": reply})).reward


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("2+3=5\n#### 5", 1.0),
        ("#### 5.00", 1.0),
        ("2+3=5", 0.9),
        ("#### 5\nThat is all.", 0.9),
        ("#### 4\n#### 5", 0.9),
        ("#### 6", 0.0),
        ("The answer is \\boxed{5}", 0.9),
        ("six", -0.1),
        ("", -0.1),
    ],
)
async def test_reward_by_hand(reply: str, reward: float) -> None:
    assert await earned(MathEnv(APPLES), reply) == pytest.approx(reward)


@pytest.mark.parametrize(("reply", "reward"), [("\\boxed{5}", 1.0), ("\\boxed{4} \\boxed{5}", 0.9), ("#### 5", 0.9)])
async def test_reward_of_the_boxed_form(reply: str, reward: float) -> None:
    assert await earned(MathEnv(APPLES, form="boxed"), reply) == pytest.approx(reward)


async def test_the_cost_of_the_form_is_a_setting() -> None:
    assert await earned(MathEnv(APPLES, format_coef=0.5), "5") == pytest.approx(0.5)


async def test_an_expression_is_right_in_another_writing_and_a_failed_comparison_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = math_grading.WorkerPool(num_workers=1, cpu_seconds=1)
    monkeypatch.setattr(math_grading, "_worker_pool", lambda: pool)
    env = MathEnv(MathProblem("Expand (x+1)^2", "x^2+2x+1"), form="boxed", grading="symbolic")
    assert await earned(env, "\\boxed{(x+1)^2}") == 1.0
    result = await env.step({"role": "assistant", "content": "\\boxed{9^{9^{9^{9}}}}"})
    assert (result.reward, result.metrics["correct"], result.metrics["grading_failed"]) == (0.0, 0.0, 1.0)
    pool.close()


async def test_worked_examples_come_before_the_question() -> None:
    example = MathProblem("1+1?", "2", "1+1=2")
    messages = await MathEnv(APPLES, examples=(example,)).initial_observation()
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == "1+1=2\n#### 2"
    assert messages[0]["content"].startswith("1+1?\n") and messages[2]["content"].startswith("2 apples")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("3+4=<<3+4=7>>7\n#### 7", MathProblem("q", "7", "3+4=7")),
        ("So \\boxed{7}", MathProblem("q", "7", "So \\boxed{7}")),
        (" 7 ", MathProblem("q", "7")),
    ],
)
def test_a_row_becomes_a_problem(answer: str, problem: MathProblem) -> None:
    assert problem_from_row(" q\n", answer) == problem


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def sums(path: Path, number: int) -> str:
    return write(path, *({"question": f"{i}+1?", "answer": f"#### {i + 1}"} for i in range(number)))


def builder(path: str, **changes: Any) -> MathDatasetBuilder:
    settings: dict[str, Any] = {
        "model_name": "mint-tiny",
        "renderer_name": "qwen3_disable_thinking",
        "group_size": 3,
        "groups_per_batch": 4,
        "num_test": 0,
    }
    return MathDatasetBuilder(path=path, **{**settings, **changes})


def problems(dataset: GroupDataset) -> list[MathProblem]:
    groups = [group for i in range(len(dataset)) for group in dataset.get_batch(i)]
    assert all(isinstance(group, MessageEnvGroupBuilder) for group in groups)
    return [group.make_env().problem for group in groups]  # pyright: ignore[reportAttributeAccessIssue]


async def test_examples_training_and_test_problems_are_apart_and_repeatable(tmp_path: Path) -> None:
    data = builder(sums(tmp_path / "a.jsonl", 20), num_test=5, num_examples=2)
    train, test = await data()
    assert test is not None
    examples = train.get_batch(0)[0].make_env().examples  # pyright: ignore[reportAttributeAccessIssue]
    parts = [set(problems(train)), set(problems(test)), set(examples)]
    assert [len(part) for part in parts] == [13, 5, 2]
    assert len(set.union(*parts)) == 20
    again, _ = await data()
    assert problems(again) == problems(train)
    other, _ = await builder(data.path, num_test=5, num_examples=2, seed=1)()
    assert problems(other) != problems(train)


async def test_a_test_file_of_its_own(tmp_path: Path) -> None:
    path, test_path = sums(tmp_path / "a.jsonl", 6), sums(tmp_path / "b.jsonl", 4)
    train, test = await builder(path, test_path=test_path, num_test=3)()
    assert test is not None and (len(problems(train)), len(problems(test))) == (6, 3)
    assert (await builder(path, test_path=test_path)())[1] is None


async def test_a_group_survives_pickling(tmp_path: Path) -> None:
    train, _ = await builder(sums(tmp_path / "a.jsonl", 4), num_examples=1)()
    group = train.get_batch(0)[0]
    first, _ = await (await group.make_envs())[0].initial_observation()
    again, _ = await (await pickle.loads(pickle.dumps(group)).make_envs())[0].initial_observation()
    assert first == again


async def test_every_solution_of_gsm8k_is_right_and_in_form(shared_data: Path) -> None:
    _, test = await builder(str(shared_data / "gsm8k_test.jsonl"), num_test=399)()
    assert test is not None and len(problems(test)) == 399
    for problem in problems(test):
        assert await earned(MathEnv(problem), problem.written_solution("hashes")) == 1.0
        assert await earned(MathEnv(problem, form="boxed"), problem.written_solution("boxed")) == 1.0


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        ({"question": "q"}, {}, "line 1: column 'answer' must hold text; the row's columns are 'question'. Name yours"),
        (
            {"question": "q", "answer": "#### x"},
            {},
            "line 1: the answer 'x' is not a number; repair it, or set grading",
        ),
        ({"question": "q", "answer": "1"}, {"num_test": 1}, "num_test=1 and num_examples=0 of 1 problems leave none"),
    ],
)
async def test_bad_rows_are_refused(tmp_path: Path, row: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await builder(write(tmp_path / "a.jsonl", row), **changes)()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 1}, "group_size=1: advantages need at least 2"),
        ({"num_examples": -1}, "num_examples=-1: must not be negative"),
        ({"grading": "fuzzy"}, "grading"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidRequest, TypeError), match=message):
        builder("a.jsonl", **changes)
