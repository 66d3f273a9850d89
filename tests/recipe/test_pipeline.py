"""The pipeline's pure parts: win rate and the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recipe.pipeline import summary_table
from recipe.pipeline_summary import kept_of_stage_3, write_summary
from recipe.policy_comparison import win_rate
from recipe.stage_gates import Gate

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


def gate(passed: bool | None) -> dict:
    value = 0.5 if passed is not None else None
    return Gate("sft", "nll_falls", "fall", value, None, 0.6, None, passed, "stop", "train longer").to_json()


def test_the_table_counts_gates_and_shows_those_that_failed():
    assert "gates" not in summary_table(SUMMARY)
    assert "gates: 2 passed" in summary_table({**SUMMARY, "gates": [gate(True)] * 2}).splitlines()
    lines = summary_table({**SUMMARY, "gates": [gate(True), gate(False), gate(None), gate(None)]}).splitlines()
    start = lines.index("gates: 1 passed, 1 failed, 2 not checked")
    assert lines[start + 1] == "  failed: sft nll_falls: fall 0.5, at least 0.6 asked for"
    assert lines[start + 2].startswith("sft: mint://")


def test_the_table_says_which_stages_were_not_run():
    nothing = {name: None for name in SUMMARY if name.startswith("rl.")}
    lines = summary_table({**SUMMARY, **nothing}).splitlines()
    assert not any(line.startswith("rl: ") or "rule-based" in line for line in lines)
    assert lines[3].endswith("not run")
    neither = {**SUMMARY, **nothing, "preference.test_pair_accuracy": None, "preference.state_path": None}
    assert summary_table(neither).splitlines()[2].endswith("not run")
    failed = {**gate(False), "stage": "preference"}
    assert summary_table({**neither, "gates": [failed]}).splitlines()[2].endswith("stage failed")


def test_what_is_known_of_stage_3_is_kept_for_the_same_stages_before_it(tmp_path: Path):
    assert kept_of_stage_3(tmp_path, SUMMARY) == ({}, [])
    rl_gate = {**gate(True), "stage": "rl"}
    write_summary(tmp_path, {**SUMMARY, "gates": [gate(True), rl_gate], "best_of_n.n": 8})
    kept, gates = kept_of_stage_3(tmp_path, {**SUMMARY, "rl.state_path": None})
    assert kept == {name: value for name, value in SUMMARY.items() if name.startswith("rl.")} | {"best_of_n.n": 8}
    assert [one.stage for one in gates] == ["rl"]
    for other in ("sft.state_path", "preference.state_path"):
        assert kept_of_stage_3(tmp_path, {**SUMMARY, other: "mint://d/weights/final"}) == ({}, [])
