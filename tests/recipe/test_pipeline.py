"""The pipeline's pure parts: win rate and the table."""

from __future__ import annotations

import numpy as np
import pytest

from recipe.pipeline import summary_table
from recipe.policy_comparison import win_rate

SUMMARY = {
    "sft.nll_before": 2.0,
    "sft.nll_after": 0.5,
    "sft.state_path": "mint://a/weights/final",
    "preference.test_pair_accuracy": 0.9,
    "preference.state_path": "mint://b/weights/final",
    "rl.reward_source_prm": 1.0,
    "rl.gold_before": 0.25,
    "rl.gold_after": 0.75,
    "rl.gold_win_rate": 0.875,
    "rl.kl_to_sft": 4.0,
    "rl.state_path": "mint://c/weights/final",
    "seconds": 12.0,
}


def test_win_rate_counts_prompts_and_halves_ties() -> None:
    before = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 1.0], [0.0, 0.0]])
    after = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.1]])  # better, tie, worse, better
    assert win_rate(before, after) == pytest.approx(2.5 / 4)


def test_the_table_shows_every_stage() -> None:
    lines = summary_table(SUMMARY).splitlines()
    assert lines[1].split() == ["SFT", "held-out", "NLL", "per", "token", "2.000", "0.500", "-75%"]
    assert lines[2].split()[-1] == "0.900"
    assert lines[3].split()[-2:] == ["0.250", "0.750"]
    assert lines[4].split()[-1] == "88%"
    assert lines[-1] == "12 seconds"


def test_the_table_says_what_failed() -> None:
    failed = {
        **SUMMARY,
        "preference.test_pair_accuracy": None,
        "preference.state_path": None,
        "rl.reward_source_prm": 0.0,
    }
    lines = summary_table(failed).splitlines()
    assert lines[2].endswith("stage failed")
    assert lines[3].endswith("rule-based reward")
    assert "stage failed" not in summary_table({**SUMMARY, "preference.test_pair_accuracy": None})
