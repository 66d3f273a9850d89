"""`mint env check`: every environment of the project passes, and each kind of broken one is caught by its check."""

from __future__ import annotations

import ast
import asyncio
import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envs import (
    AdditionEnv,
    Env,
    EnvGroupBuilder,
    GroupDataset,
    MessageEnv,
    MessageEnvGroupBuilder,
    MessageStepResult,
    RLDataset,
    StepResult,
)
from envs.env_check import Report, check_target
from envs.env_target import Target, load_target
from mint.cli import main as mint_command
from mint.errors import InvalidRequest
from mint.types import ModelInput
from renderers import Message, Renderer
from tests.repository.source_tree import ROOT, files_in, tree_of

PROBLEMS, PROGRAMS = "problems.jsonl", "programs.jsonl"
# Every dataset builder that the package envs has, with settings that make it small.
BUILDERS: dict[str, list[str]] = {
    "envs.advice:AdviceDatasetBuilder": ["num_test=2"],
    "envs.arithmetic:AdditionDatasetBuilder": ["num_test_problems=2"],
    "envs.calculator:CalculatorDatasetBuilder": [],
    "envs.code_env:CodeDatasetBuilder": [f"path={PROGRAMS}", "num_test=1"],
    "envs.code_templates:CodeTemplateDatasetBuilder": ["num_test_problems=1"],
    "envs.guess_number:GuessNumberDatasetBuilder": [],
    "envs.math_env:MathDatasetBuilder": [f"path={PROBLEMS}", "num_test=2", "num_examples=1"],
}
BUILDERS["envs.mixture:MixtureDatasetBuilder"] = [
    f"parts.{i}.{setting}"
    for i in range(2)
    for setting in (
        f"name={'ab'[i]}",
        "dataset_builder=envs.arithmetic:AdditionDatasetBuilder",
        "dataset_builder.model_name=mint-tiny",
        "dataset_builder.renderer_name=qwen3_disable_thinking",
        "dataset_builder.group_size=2",
        "dataset_builder.groups_per_batch=2",
        "dataset_builder.num_batches=1",
    )
]
# Builders that are given Python objects, or are only a base.
WITHOUT_COMMAND = {
    "envs.chat:TournamentDatasetBuilder",
    "envs.generated_dataset:GeneratedDatasetBuilder",
    "envs.rlhf:ListRLHFDatasetBuilder",
    "envs.rlhf:RLHFDatasetBuilder",
    "envs.types:RLDatasetBuilder",
}


def dataset_builders() -> set[str]:
    """MODULE:NAME of every class in envs whose name ends in DatasetBuilder."""
    return {
        f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}:{node.name}"
        for path in files_in("envs")
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("DatasetBuilder")
    }


def test_the_list_of_environments_is_complete() -> None:
    missing = dataset_builders() - WITHOUT_COMMAND - BUILDERS.keys()
    assert missing == set(), "add them to BUILDERS, with settings that make them small"


@pytest.mark.parametrize("reference", BUILDERS)
def test_every_environment_of_the_project_proves_itself(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = [{"question": f"{i} + 1?", "answer": f"{i}+1={i + 1}\n#### {i + 1}"} for i in range(8)]
    adders = [
        {"text": f"Add {i}.", "code": f"def f(x):\n    return x + {i}", "test_list": [f"assert f(1) == {i + 1}"]}
        for i in range(3)
    ]
    for name, rows in ((PROBLEMS, sums), (PROGRAMS, adders)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code = mint_command(["env", "check", reference, *BUILDERS[reference], "--groups", "2"])
    output = capsys.readouterr().out
    assert code == 0, output
    if not reference.startswith("envs.advice"):
        assert "gold answer         ok" in output


class Sound(MessageEnv):
    """Wants to hear "yes"."""

    max_reward = 1.0

    def reward(self, text: str) -> Any:
        return float(text == "yes")

    async def initial_observation(self) -> list[Message]:
        return [{"role": "user", "content": "Say yes."}]

    async def step(self, message: Message) -> MessageStepResult:
        return MessageStepResult(self.reward(message["content"]), True, [*await self.initial_observation(), message])

    def gold_replies(self) -> Sequence[Message] | None:
        return [{"role": "assistant", "content": "yes"}]


class GoldIsNotBest(Sound):
    max_reward = 2.0


class EmptyIsBest(Sound):
    def reward(self, text: str) -> Any:
        return 1.0


class Moody(Sound):
    def reward(self, text: str) -> Any:
        return random.random() / 2 + (text == "yes") / 2


class Fragile(Sound):
    def reward(self, text: str) -> Any:
        return {"yes": 1.0, "": 0.0}[text]


class Text(Sound):
    def reward(self, text: str) -> Any:
        return str(text == "yes")


class LostGold(Sound):
    def gold_replies(self) -> Sequence[Message] | None:
        raise LookupError("no answer key")


class Slow(Sound):
    async def step(self, message: Message) -> MessageStepResult:
        await asyncio.sleep(5)
        return await super().step(message)


class Endless(Sound):
    async def step(self, message: Message) -> MessageStepResult:
        result = await super().step(message)
        result.episode_done = result.reward == 1.0
        return result


class GoldIsTooShort(Sound):
    async def step(self, message: Message) -> MessageStepResult:
        result = await super().step(message)
        result.episode_done = result.reward == 0.0
        return result


async def report_on(make_env: Any, renderer: Renderer, group_size: int = 2) -> Report:
    group = MessageEnvGroupBuilder(make_env, renderer, group_size)
    return await check_target(Target([group], []), max_seconds=0.5, max_turns=6)


async def test_a_sound_environment_passes(renderer: Renderer) -> None:
    report = await report_on(Sound, renderer)
    assert report.is_sound, report.table()
    assert report.num_held["gold answer"] == report.num_held["empty answer"] == 2


@pytest.mark.parametrize(
    ("env", "check", "message"),
    [
        (GoldIsNotBest, "gold answer", "group 0, member 0: the gold answer earned 1, the most is 2"),
        (GoldIsTooShort, "gold answer", "the episode goes on after all 1 gold replies"),
        (LostGold, "gold answer", "asking for it raised LookupError: no answer key"),
        (EmptyIsBest, "empty answer", "it earned 1, the gold answer 1"),
        (Moody, "deterministic", "earned"),
        (Fragile, "odd replies", "KeyError: 'I do not know.'"),
        (Text, "gold answer", "reward='True', a str: it must be a float"),
        (Slow, "time", "gold: a call took longer than 0.5 s"),
        (Endless, "odd replies", "the episode goes on after 6 replies"),
    ],
)
async def test_each_fault_is_caught_by_its_check(
    env: type[MessageEnv], check: str, message: str, renderer: Renderer
) -> None:
    report = await report_on(env, renderer)
    assert any(message in failure for failure in report.failures[check]), report.table()
    assert f"{check:20}FAILED" in report.table()


async def test_a_group_of_one_and_a_builder_that_cannot_travel_are_caught(renderer: Renderer) -> None:
    report = await report_on(lambda: Sound(), renderer, group_size=1)
    assert report.failures["group size"] == ["group 0: 1 members, needs 2"]
    assert "use functools.partial" in report.failures["survives pickling"][0]


class WrongTypes(Env):
    async def initial_observation(self) -> Any:
        return ModelInput.from_ints([1]), [1, "two"]

    async def step(self, action: list[int], *, extra: Any = None) -> StepResult:
        return StepResult(float("nan"), True, ModelInput.empty(), [], metrics={"m": None})  # type: ignore[dict-item]


class Tokens(EnvGroupBuilder):
    async def make_envs(self) -> Sequence[Env]:
        return [WrongTypes(), WrongTypes()]


async def test_wrong_types_of_an_environment_of_tokens_are_caught() -> None:
    report = await check_target(Target([Tokens()], []))
    found = "\n".join(report.failures["types"])
    for part in ("stop condition [1, 'two']", "reward=nan; it must be a finite number", "m=None; it must be a finite"):
        assert part in found


class Restless(RLDataset):
    """Another batch whenever it is asked."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.count = 0

    def get_batch(self, index: int) -> list[EnvGroupBuilder]:
        self.count += 1
        return [MessageEnvGroupBuilder(partial(AdditionEnv, self.count, 1), self.renderer, 2)]

    def __len__(self) -> int:
        return 1


async def test_batches_that_differ_when_asked_for_twice_are_caught(renderer: Renderer) -> None:
    dataset = Restless(renderer)
    report = await check_target(Target(list(dataset.get_batch(0)), [], dataset))
    assert "it has other prompts; no run could be resumed" in report.failures["repeatable batches"][0]
    steady = GroupDataset(dataset.get_batch(0), 1)
    assert (await check_target(Target(list(steady.get_batch(0)), [], steady))).is_sound


def test_the_command_ends_with_1_and_the_first_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = (
        "from envs import AdditionEnv\nclass Wrong(AdditionEnv):\n    def check_answer(self, reply): return False\n"
    )
    Path("mine.py").write_text(program, encoding="utf-8")
    assert mint_command(["env", "check", "mine.py:Wrong", "left=3", "right=4"]) == 1
    assert (
        "gold answer         FAILED  group 0, member 0: the gold answer earned 0, the most is 1"
        in capsys.readouterr().out
    )
    assert mint_command(["env", "check", "envs.arithmetic:AdditionEnv", "left=3", "right=4"]) == 0


@pytest.mark.parametrize(
    ("reference", "settings", "message"),
    [
        ("AdditionEnv", [], "write MODULE:NAME or FILE.py:NAME"),
        ("no.such.module:X", [], "there is no module 'no.such.module' here"),
        ("nothing.py:X", [], "nothing.py: no such file"),
        ("envs.arithmetic:Nothing", [], "envs.arithmetic has no 'Nothing'"),
        ("envs.arithmetic:AdditionEnv", ["left=3"], "missing a required argument: 'right'"),
        ("envs.arithmetic:AdditionEnv", ["left"], "settings are written key=value"),
        ("envs.arithmetic:AdditionDatasetBuilder", ["max_op=3"], "Did you mean 'max_operand'?"),
        (
            "envs.arithmetic:draw_additions",
            ["num_problems=1", "max_operand=9", "seed=0", "is_test=False"],
            "gives list",
        ),
    ],
)
async def test_what_cannot_be_loaded_is_said(reference: str, settings: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await load_target(reference, settings)
    assert message in str(caught.value)
