"""The pipeline with a yardstick: the gold rule, a second preference model, the best checkpoint as the result."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from recipe.rl.yardstick import read_best, read_measurements
from recipe.run_log import read_metrics
from tests.recipes.loading import load_recipe

SMALL = [
    "sft.max_steps=1",
    "preference.max_steps=1",
    "rl.max_steps=2",
    "sft.dataset_builder.num_train=16",
    "sft.dataset_builder.num_test=8",
    "preference.dataset_builder.num_train=32",
    "preference.dataset_builder.num_test=160",
    "rl.dataset_builder.num_test=4",
    "rl.dataset_builder.group_size=4",
    "rl.dataset_builder.groups_per_batch=4",
    "comparison.replies_per_prompt=1",
    "comparison.best_of_n=3",
    "gates.on_failed=warn",
]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load_recipe("rlhf_pipeline")


def run(recipe: ModuleType, folder: Path, *changes: str) -> dict:
    recipe.main([f"log_path={folder}", *SMALL, *changes])
    return json.loads((folder / "summary.json").read_text())


def test_the_preset_measures_with_gold_and_keeps_the_last_checkpoint(
    recipe: ModuleType, tmp_path: Path, mint_home: Path
) -> None:
    summary = run(recipe, tmp_path / "run")
    assert [measured.iteration for measured in read_measurements(tmp_path / "run" / "rl")] == [0, 2]
    lines = read_metrics(tmp_path / "run" / "rl")
    gold = [line["yardstick/independent"] for line in lines if "yardstick/independent" in line]
    assert len(gold) == 2 and all(0 <= score <= 1 for score in gold)
    best = read_best(tmp_path / "run" / "rl")
    assert best is not None and summary["rl.best_state_path"] == best.state_path
    assert summary["rl.state_path"].endswith("/final") and summary["rl.yardstick_alarms"] == 0
    # Best-of-n is compared with the same replies of stage 1 as RL.
    assert summary["best_of_n.n"] == 3 and 0 <= summary["best_of_n.gold_reply_win_rate"] <= 1
    sampled = sum(line["env/all/total_ac_tokens"] for line in lines if "loss" in line)
    assert summary["best_of_n.rl_tokens"] == sampled


def test_a_second_model_on_the_other_half_chooses_the_result(
    recipe: ModuleType, tmp_path: Path, mint_home: Path
) -> None:
    changes = [
        "yardstick.independent=recipe.pipeline_yardstick:OtherHalf",
        "yardstick.result=best",
        "yardstick.num_prompts=2",
        "comparison.best_of_n=0",
    ]
    summary = run(recipe, tmp_path / "run", *changes)
    best = read_best(tmp_path / "run" / "rl")
    assert best is not None and summary["rl.state_path"] == best.state_path == summary["rl.best_state_path"]
    assert "best_of_n.n" not in summary
    halves = [
        json.loads((tmp_path / "run" / folder / "config.json").read_text())["values"]["dataset_builder.half"]
        for folder in ("preference", "yardstick_preference")
    ]
    assert halves == [0, 1]
    assert read_measurements(tmp_path / "run" / "rl")[0].independent_PR.shape == (2, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["yardstick.result=best", "yardstick.every=0"], "nothing is measured; set every"),
        (["comparison.best_of_n=-1"], "comparison.best_of_n=-1: must be at least 0"),
    ],
)
def test_wrong_settings_are_one_clear_error(
    changes: list[str], message: str, recipe: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(recipe, tmp_path / "run", *changes)
    assert message in capfd.readouterr().err
    assert not (tmp_path / "run" / "sft").exists()
