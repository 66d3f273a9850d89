"""The DPO recipe: a few steps of each stage, and what its preset is for."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint.checkpoint_store import CheckpointStore
from recipe.command_line import parse_config
from recipe.run_log import read_metrics
from tests.recipes.loading import RECIPES, load_recipe

SMALL = [
    "sft.max_steps=2",
    "sft.dataset_builder.num_train=64",
    "sft.dataset_builder.num_test=8",
    "dpo.max_steps=3",
    "dpo.dataset_builder.num_train=24",
    "dpo.dataset_builder.num_test=4",
    "dpo.dataset_builder.examples.batch_size=8",
    "num_prompts=3",
    "max_tokens=8",
]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load_recipe("dpo")


def compared(output: str) -> dict[str, float]:
    """The printed gold scores and the share of prompts won."""
    (found,) = re.findall(r"gold on held-out prompts: ([\d.]+) before, ([\d.]+) after; .* (\d+)% of them", output)
    return dict(
        zip(("before", "after", "win_rate"), (float(found[0]), float(found[1]), int(found[2]) / 100), strict=True)
    )


def recorded(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["values"]


def test_dpo_starts_from_the_supervised_policy_and_ends_with_the_comparison(
    recipe: ModuleType, mint_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.main([f"log_path={tmp_path}", *SMALL])
    assert 0 <= compared(capsys.readouterr().out)["win_rate"] <= 1
    start = recorded(tmp_path / "dpo")["load_checkpoint_path"]
    lines = read_metrics(tmp_path / "dpo")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert lines[0]["mean_margin"] == pytest.approx(0.0, abs=1e-4), "policy and reference are one"
    records = [json.loads(line) for line in (tmp_path / "dpo" / "checkpoints.jsonl").read_text().splitlines()]
    assert CheckpointStore(mint_home).manifest(records[-1]["state_path"]).parent == start
    (about,) = (tmp_path / "dpo" / "reference_logprobs").glob("*/about.json")
    assert json.loads(about.read_text())["reference"] == start


def test_the_losses_that_the_script_names_are_settings_of_it(recipe: ModuleType) -> None:
    lines = [line.split() for line in (recipe.__doc__ or "").splitlines() if "dpo.loss.name" in line]
    named = [[word for word in line if word.startswith("dpo.loss")] for line in lines]
    losses = [parse_config(recipe.Config, recipe.PRESET, settings).dpo.loss for settings in named]
    assert [(loss.name, loss.nll_coef) for loss in losses] == [("ipo", 1.0), ("kto", None)]


def test_a_loss_without_a_reference_keeps_none(
    recipe: ModuleType, mint_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.main([f"log_path={tmp_path}", *SMALL, "dpo.loss.name=simpo", "dpo.loss.target_margin=0.5"])
    assert compared(capsys.readouterr().out) and not (tmp_path / "dpo" / "reference_logprobs").exists()
    with pytest.raises(SystemExit) as left:
        recipe.main([f"log_path={tmp_path}", "dpo.loss.name=simpo", "dpo.reference_path=mint://a/sampler_weights/b"])
    assert left.value.code == 2 and "simpo compares with no reference" in capsys.readouterr().err


def start(folder: Path) -> subprocess.Popen[bytes]:
    """The recipe in a process of its own, with storage beside its folder."""
    command = [sys.executable, str(RECIPES / "dpo.py"), f"log_path={folder}", *SMALL, "dpo.save_every=1"]
    environment = {**os.environ, "MINT_HOME": str(folder.with_name(f"{folder.name} home")), "OMP_NUM_THREADS": "1"}
    environment.pop("MINT_BASE_URL", None)
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def kill_when(folder: Path, is_time: Callable[[], bool]) -> None:
    process = start(folder)
    while not is_time():
        assert process.poll() is None, "it came to its end before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def outcome(folder: Path) -> list[Any]:
    """Metrics without times, the reference's logprobs, and the tensors of the last checkpoint."""
    lines = [{key: value for key, value in line.items() if "time/" not in key} for line in read_metrics(folder / "dpo")]
    cached = [file.read_bytes() for file in sorted((folder / "dpo" / "reference_logprobs").glob("*/0*.json"))]
    record = json.loads((folder / "dpo" / "checkpoints.jsonl").read_text().splitlines()[-1])
    saved = folder.with_name(f"{folder.name} home") / "runs" / record["state_path"].removeprefix("mint://")
    return [
        lines,
        [json.loads(content)["logprobs"] for content in cached],
        *map(Path.read_bytes, sorted(saved.glob("*.safetensors"))),
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_process_killed_at_the_reference_and_between_steps_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert start(whole).wait() == 0
    kill_when(parts, lambda: any((parts / "dpo" / "reference_logprobs").glob("*/0*.json")))
    kill_when(parts, lambda: len(read_metrics(parts / "dpo")) == 2)
    assert start(parts).wait() == 0
    assert outcome(parts) == outcome(whole)


@pytest.mark.slow
def test_the_preset_improves_the_gold_score_within_three_minutes(
    recipe: ModuleType, mint_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    recipe.main([f"log_path={tmp_path}"])
    assert time.monotonic() - started < 180
    found = compared(capsys.readouterr().out)
    assert found["after"] > found["before"] + 0.1 and found["win_rate"] > 0.7
