"""The pipeline on storage that fails: one at a time, no reward by accident, and back from damaged checkpoints."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from recipe.run_log import FolderLock, read_metrics
from tests.recipes.test_rlhf_pipeline import ONE_STEP, SMALL, adapter, recipe

__all__ = ["recipe"]

STAGES = ("sft", "preference", "rl")
TWO_STEPS = [f"{stage}.{setting}" for stage in STAGES for setting in ("max_steps=2", "save_every=1")]
TWO_STEPS += ["sft.num_epochs=2", "preference.num_epochs=2"]


@pytest.mark.parametrize("busy", ["", "preference"])
def test_a_second_pipeline_is_refused_and_trains_no_policy_with_another_reward(
    busy: str, recipe: ModuleType, mint_home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with FolderLock(run / busy), pytest.raises(SystemExit) as stopped:
        recipe.main([f"log_path={run}", *ONE_STEP, *SMALL])
    assert stopped.value.code == 1
    assert "is in use by another run (process " in capfd.readouterr().err
    assert not (run / "rl").exists() and not (run / "summary.json").exists()


@pytest.mark.slow
def test_damaged_final_checkpoints_of_all_stages_are_made_again(
    recipe: ModuleType, mint_home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run() -> tuple[dict[str, Any], list[Any]]:
        recipe.main([f"log_path={tmp_path / 'run'}", *TWO_STEPS, *SMALL])
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        lines = [
            {key: value for key, value in line.items() if not key.startswith("time/")}
            for stage in STAGES
            for line in read_metrics(tmp_path / "run" / stage)
        ]
        return summary, [adapter(summary[f"{stage}.state_path"], mint_home) for stage in STAGES] + lines

    summary, whole = run()
    for stage in STAGES:
        shutil.rmtree(mint_home / "runs" / summary[f"{stage}.state_path"].removeprefix("mint://"))
    with caplog.at_level(logging.WARNING):
        again, end = run()
    for stage in STAGES:
        assert f"run/{stage}: going on from the older checkpoint '000001', step 1" in caplog.text
        assert again[f"{stage}.state_path"] != summary[f"{stage}.state_path"]
    assert end == whole
