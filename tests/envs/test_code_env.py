"""Code environments: solutions score highest, nothing scores nothing, rewards are as worked by hand."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import chz
import pytest

from envs.code_env import CodeDatasetBuilder, CodeEnv, CodeGrading, extract_code, problem_from_row, written_reply
from envs.code_templates import (
    CodeTemplateDatasetBuilder,
    all_recipes,
    draw_recipes,
    is_test_recipe,
    template_conversations,
    template_problem,
)
from envs.sandbox import Limits, SandboxConfig
from mint.errors import InvalidRequest
from renderers import get_text


def fenced(code: str) -> str:
    return written_reply(code, "block")


LOCAL = CodeGrading(sandbox=SandboxConfig(minimum_isolation="none", num_workers=2), limits=Limits(cpu_seconds=0.5))
ROW = {
    "text": "Write a function to double a number.",
    "code": "import math\r\ndef double(x):\r\n\treturn 2 * x",
    "test_list": ["assert double(2) == 4", "assert double(-1) == -2", "assert math.isclose(double(0.5), 1.0)"],
    "test_setup_code": "import math",
}


async def reward(env: CodeEnv, reply: str) -> float:
    return (await env.step({"role": "assistant", "content": reply})).reward


@pytest.mark.parametrize(
    ("reply", "share", "all_or_nothing"),
    [
        (fenced("def double(x):\n    return x + x"), 1.0, 1.0),
        ("def double(x): return x + x", 0.9, 0.9),  # no block
        ("Here:\n" + fenced("def double(x): return 2 * x") + "\nDone.", 0.9, 0.9),  # more than the block
        (fenced("def double(x): return x + 2"), 1 / 3, 0.0),  # 2 + 2 only
        (fenced("def double(x): return x + 2") + "\n" + fenced("def double(x): return 2 * x"), 0.9, 0.9),  # last counts
        (fenced("def double(x): return 4"), 1 / 3, 0.0),
        (fenced("def twice(x): return 2 * x"), 0.0, 0.0),
        (fenced("def double(x):\n    while True: pass"), 0.0, 0.0),
        (fenced("def double(x) return"), 0.0, 0.0),
        ("```python\n```", -0.1, -0.1),
        ("", -0.1, -0.1),
    ],
)
async def test_reward_by_hand(reply: str, share: float, all_or_nothing: float) -> None:
    problem = problem_from_row(ROW, num_shown_tests=1)
    for credit, expected in (("share", share), ("all", all_or_nothing)):
        grading = CodeGrading(credit=credit, sandbox=LOCAL.sandbox, limits=LOCAL.limits)  # pyright: ignore[reportArgumentType]
        assert await reward(CodeEnv(problem, grading), reply) == pytest.approx(expected)


async def test_metrics_say_what_happened() -> None:
    env = CodeEnv(problem_from_row(ROW, num_shown_tests=1), LOCAL)
    for code, passed, over_limit, failure in (
        ("def double(x): return 2 * x", 1.0, 0.0, ""),
        ("def double(x): return x", 0.0, 0.0, "a wrong value"),
        ("def double(x): return y", 0.0, 0.0, "NameError: name 'y' is not defined"),
        ("import sys\nsys.exit()", 0.0, 0.0, "SystemExit: "),
        ("def double(x):\n    while True: pass", 0.0, 1.0, "the program reached its limit of cpu time"),
    ):
        result = await env.step({"role": "assistant", "content": fenced(code)})
        metrics = {"correct": float(passed == 1), "tests_passed": passed, "format": 1.0, "over_limit": over_limit}
        assert (result.metrics, result.logs["first_failure"]) == (metrics, failure)
    assert env.unread_reply_metrics().keys() == metrics.keys()


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```py \r\nx = 1```", "```py \r\nx = 1```"),
        ("text ```python\nx = 1\n``` and ```Python\ny = 2\n```", "y = 2\n"),
        ("x = 1", "x = 1"),
        ("```python\nx = 1", "```python\nx = 1"),
    ],
)
def test_code_in_a_reply(reply: str, code: str) -> None:
    assert extract_code(reply) == code


def test_the_question_shows_the_first_tests_only() -> None:
    question = problem_from_row(ROW, num_shown_tests=1).question
    assert "assert double(2) == 4" in question and "double(-1)" not in question
    assert "assert" not in problem_from_row(ROW, num_shown_tests=0).question


# --- files ---


def file_of(tmp_path: Path, *rows: dict[str, Any]) -> str:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def file_builder(path: str, **changes: Any) -> CodeDatasetBuilder:
    from mint import builtin

    settings: dict[str, Any] = {
        "model_name": str(builtin.model_dir()),
        "renderer_name": "qwen3_disable_thinking",
        "group_size": 4,
        "groups_per_batch": 2,
        "path": path,
        "num_test": 1,
        "grading": LOCAL,
    }
    return CodeDatasetBuilder(**{**settings, **changes})


async def test_problems_of_a_file(tmp_path: Path) -> None:
    sanitized = {**ROW, "prompt": ROW["text"], "test_imports": ["import math"]}
    del sanitized["text"], sanitized["test_setup_code"]
    builder = file_builder(file_of(tmp_path, ROW, sanitized, {**ROW, "text": "Another."}))
    for problem in builder.read_problems():
        env = CodeEnv(problem, LOCAL)
        assert await reward(env, env.get_reference_answer()) == 1.0
    train, test = await builder()
    assert test is not None and (len(train), len(test)) == (1, 1)
    group = pickle.loads(pickle.dumps(train.get_batch(0)[0]))
    assert len(await group.make_envs()) == 4 and group.logging_tags() == ["code"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_list": ["assert all(double(x) == 2 * x for x in (1, 2))"]}, "line 2: test .* one assert for each call"),
        ({"test_list": []}, "line 2: 'test_list' must be a list of at least one test"),
        ({"code": "def double("}, "line 2: the reference solution is not valid Python"),
        ({"text": None}, "line 2: needs text in 'text' \\(or 'prompt'\\)"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_or_left_out(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = file_of(tmp_path, ROW, {**ROW, **changes})
    with pytest.raises(InvalidRequest, match=message):
        file_builder(path).read_problems()
    assert len(file_builder(path, drop_unusable=True).read_problems()) == 1


# --- generated functions ---


async def test_every_kind_of_function_is_right_and_graded_by_python_itself() -> None:
    recipes = all_recipes()
    assert len(recipes) == len(set(recipes)) == 5 * 20 + (5 * 4) * 20 * 20
    for recipe in recipes[::7]:
        problem = template_problem(recipe)
        namespace: dict[str, Any] = {}
        exec(problem.solution, namespace)
        for test in problem.tests:
            exec(test.source, namespace)


def test_the_tests_tell_functions_apart() -> None:
    problems = [template_problem(recipe) for recipe in all_recipes() if len(recipe) == 1]
    answers = {tuple(test.literal for test in problem.tests) for problem in problems}
    assert len(answers) == len(problems) == 100


@pytest.mark.parametrize(
    ("recipe", "words", "code"),
    [
        (((0, 3),), "x + 3", "x + 3"),
        (((0, 3), (2, 2)), "x + 3, then * 2", "(x + 3) * 2"),
        (((2, 2), (1, 5)), "x * 2, then - 5", "x * 2 - 5"),
        (((3, 4), (2, 2)), "x, but at least 4, then * 2", "max(x, 4) * 2"),
        (((1, 4), (4, 9)), "x - 4, but at most 9", "min(x - 4, 9)"),
    ],
)
async def test_functions_in_words_and_in_code(recipe: Any, words: str, code: str) -> None:
    problem = template_problem(recipe)
    assert problem.question == f"Write a function f(x) that returns {words}."
    assert problem.solution == f"def f(x): return {code}"
    env = CodeEnv(problem, chz.replace(LOCAL, form="plain"))
    assert await reward(env, env.get_reference_answer()) == 1.0
    assert await reward(env, fenced(env.get_reference_answer())) == 0.9
    assert await reward(env, "") == -0.1


def test_test_functions_stay_out_of_training() -> None:
    train, test = (draw_recipes(n, 0, is_test=is_test, max_operations=2) for n, is_test in ((300, False), (100, True)))
    assert not any(map(is_test_recipe, train)) and all(map(is_test_recipe, test))
    assert train == draw_recipes(300, 0, is_test=False, max_operations=2)
    assert train != draw_recipes(300, 1, is_test=False, max_operations=2)
    test_questions = {template_problem(recipe).question for recipe in test}
    conversations = template_conversations(300, 0, max_operations=2)
    assert not test_questions & {get_text(conversation[0]) for conversation in conversations}
    assert {len(recipe) for recipe in draw_recipes(50, 0, is_test=True, max_operations=1)} == {1}


async def test_batches_of_generated_functions() -> None:
    from mint import builtin

    settings: dict[str, Any] = {
        "model_name": str(builtin.model_dir()),
        "renderer_name": "qwen3_disable_thinking",
        "group_size": 4,
        "groups_per_batch": 3,
        "num_batches": 2,
    }
    train, test = await CodeTemplateDatasetBuilder(**settings, num_test_problems=4)()
    assert test is not None
    assert ([len(train.get_batch(i)) for i in range(len(train))], len(test)) == ([3, 3], 2)
    assert (await CodeTemplateDatasetBuilder(**settings)())[1] is None
    for changes, message in (({"max_operations": 3}, "must be 1 or 2"), ({"group_size": 1}, "at least 2")):
        with pytest.raises(InvalidRequest, match=message):
            CodeTemplateDatasetBuilder(**{**settings, **changes})
