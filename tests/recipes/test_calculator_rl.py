"""The tool recipe from end to end: one step of each stage, and the success it is about."""

from __future__ import annotations

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
]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load_recipe("calculator_rl")


def test_both_stages_take_a_step(
    recipe: ModuleType,
    mint_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("MINT_BASE_URL", raising=False)
    recipe.main([f"log_path={tmp_path / 'run'}", *SMALL])
    assert read_metrics(tmp_path / "run" / "sft")[0]["train_mean_nll"] > 0
    first, last = read_metrics(tmp_path / "run" / "rl")
    assert {"env/all/tool/calls", "env/all/tool/malformed", "env/calculator/correct"} <= set(first)
    assert 0.0 <= last["test/env/all/correct"] <= 1.0
    assert "iteration   1: success" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_model_learns_to_use_the_calculator(
    recipe: ModuleType, mint_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINT_BASE_URL", raising=False)
    recipe.main([f"log_path={tmp_path / 'run'}"])
    success = [
        line["test/env/all/correct"] for line in read_metrics(tmp_path / "run" / "rl") if "test/env/all/correct" in line
    ]
    assert success[0] < 0.3
    assert success[-1] > 0.8
