"""The math recipe: its two presets for a step or two, and what the additions are for."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint.checkpoint_store import CheckpointStore
from recipe.run_log import read_metrics
from tests.recipes.loading import load_recipe

SMALL = [
    "sft.max_steps=1",
    "rl.max_steps=2",
    "rl.dataset_builder.groups_per_batch=2",
    "rl.dataset_builder.group_size=2",
    "rl.dataset_builder.num_test_problems=4",
]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load_recipe("math_rl")


def accuracies(output: str) -> dict[str, float]:
    """The printed held-out accuracies, in percent."""
    (line,) = re.findall(r"held-out accuracy: (.*)", output)
    return {name: float(value) for name, value in re.findall(r"([a-zA-Z ]+?) ([\d.]+)%", line.replace(", ", ","))}


def recorded(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["values"]


def test_additions_start_from_the_warm_start_and_end_with_the_accuracy(
    recipe: ModuleType, mint_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.main([f"log_path={tmp_path / 'run'}", *SMALL])
    assert accuracies(capsys.readouterr().out).keys() == {"base model", "warm start", "RL"}
    start = recorded(tmp_path / "run" / "rl")["load_checkpoint_path"]
    lines = read_metrics(tmp_path / "run" / "rl")
    assert [line["step"] for line in lines] == [0, 1, 2] and "test/env/all/correct" in lines[-1]
    records = [json.loads(line) for line in (tmp_path / "run" / "rl" / "checkpoints.jsonl").read_text().splitlines()]
    assert CheckpointStore(mint_home).manifest(records[-1]["state_path"]).parent == start


def test_gsm8k_from_a_file_with_worked_examples(
    recipe: ModuleType, shared_data: Path, tiny_model_dir: Path, mint_home: Path, tmp_path: Path
) -> None:
    settings = {
        "log_path": tmp_path,
        "rl.model_name": tiny_model_dir,
        "rl.dataset_builder.path": shared_data / "gsm8k_train.jsonl",
        "rl.dataset_builder.test_path": shared_data / "gsm8k_test.jsonl",
        "rl.dataset_builder.max_rows": 20,
        "rl.dataset_builder.num_test": 2,
        "rl.dataset_builder.num_examples": 1,
        "rl.dataset_builder.group_size": 2,
        "rl.dataset_builder.groups_per_batch": 2,
        "rl.max_steps": 1,
        "rl.max_tokens": 8,
    }
    recipe.main(["gsm8k", *(f"{name}={value}" for name, value in settings.items())])
    assert not (tmp_path / "sft").exists() and recorded(tmp_path / "rl")["load_checkpoint_path"] is None
    first, last = read_metrics(tmp_path / "rl")
    assert first["env/math/total_episodes"] == 4.0 and last["test/env/math/correct"] == 0.0
    prompt = json.loads((tmp_path / "rl" / "rollouts" / "iteration_000000.jsonl").read_text().splitlines()[0])
    assert prompt["turns"][0]["prompt"].count("####") == 3, "an example with its answer, and two requests"


@pytest.mark.slow
def test_additions_gain_thirty_points_within_three_minutes(
    recipe: ModuleType, mint_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    recipe.main([f"log_path={tmp_path}", "rl.save_every=0"])
    assert time.monotonic() - started < 180
    found = accuracies(capsys.readouterr().out)
    assert found["RL"] >= found["base model"] + 30
