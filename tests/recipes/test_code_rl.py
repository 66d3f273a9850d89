"""The code recipe from end to end: one step of each stage, programs run in the sandbox, and the success it is about."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from recipe.run_log import read_metrics
from tests.recipes.loading import load_recipe

SMALL = [
    "sft.max_steps=1",
    "sft.dataset_builder.num_train=4",
    "rl.max_steps=1",
    "rl.dataset_builder.group_size=2",
    "rl.dataset_builder.groups_per_batch=2",
    "rl.dataset_builder.num_test_problems=4",
    "rl.dataset_builder.grading.sandbox.minimum_isolation=none",
]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load_recipe("code_rl")


@pytest.fixture(autouse=True)
def _local(mint_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINT_BASE_URL", raising=False)


def test_both_stages_take_a_step(recipe: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.main([f"log_path={tmp_path / 'run'}", *SMALL])
    assert read_metrics(tmp_path / "run" / "sft")[0]["train_mean_nll"] > 0
    first, last = read_metrics(tmp_path / "run" / "rl")
    assert {"env/all/tests_passed", "env/all/over_limit", "env/code/correct"} <= set(first)
    assert 0.0 <= last["test/env/all/correct"] <= 1.0
    assert "held-out functions that pass all tests: " in capsys.readouterr().out


def test_problems_of_a_file(recipe: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"text": "Write a function to double a number.", "code": "def f(x):\n    return 2 * x"}
    path = tmp_path / "problems.jsonl"
    tests = ["assert f(2) == 4", "assert f(3) == 6"]
    path.write_text("".join(json.dumps({**row, "test_list": tests, "task_id": i}) + "\n" for i in range(3)))
    small = [argument for argument in SMALL if "num_test_problems" not in argument and not argument.startswith("sft.")]
    settings = [f"rl.dataset_builder.path={path}", "rl.dataset_builder.num_test=1", "rl.model_name=mint-tiny"]
    recipe.main(["mbpp", f"log_path={tmp_path / 'run'}", *small, *settings, "rl.max_tokens=8", "rl.lora_rank=4"])
    first, _ = read_metrics(tmp_path / "run" / "rl")
    assert first["env/all/correct"] == 0.0 and not (tmp_path / "run" / "sft").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_reinforcement_learning_raises_the_pass_rate(recipe: ModuleType, tmp_path: Path) -> None:
    recipe.main([f"log_path={tmp_path / 'run'}"])
    lines = read_metrics(tmp_path / "run" / "rl")
    rates = [line["env/all/correct"] for line in lines if "env/all/correct" in line]
    assert sum(rates[-10:]) / 10 > sum(rates[:10]) / 10 + 0.02
    held_out = [line["test/env/all/correct"] for line in lines if "test/env/all/correct" in line]
    assert held_out[-1] >= held_out[0]
