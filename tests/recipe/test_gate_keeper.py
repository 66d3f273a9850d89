"""The gates at work without a model: which numbers the RL gates take, what is written, warned of and stopped at."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from envs.rlhf import ListRLHFDatasetBuilder
from recipe import journal
from recipe.gate_config import GateConfig
from recipe.pipeline_gates import GateKeeper, gate_of_failed_stage, gates_of_rl
from recipe.rl import train as rl_train
from recipe.rl.yardstick_record import MEASUREMENTS_FILE, Measurement
from recipe.stage_gates import Gate, OnFailed, StageGateFailed

BEFORE_PR = np.zeros((20, 2))


def rl_config(folder: Path) -> rl_train.Config:
    builder = ListRLHFDatasetBuilder(
        model_name="mint-tiny",
        renderer_name="role_colon",
        group_size=2,
        groups_per_batch=1,
        prompts=[[{"role": "user", "content": "Hello"}]],
        test_prompts=[[{"role": "user", "content": f"Hello {i}"}] for i in range(16)],
    )
    return rl_train.Config(
        model_name="mint-tiny", dataset_builder=builder, log_path=str(folder), learning_rate=1e-4, max_tokens=8
    )


def measure(folder: Path, iteration: int, independent_PR: np.ndarray) -> None:
    line = Measurement(iteration, {}, np.zeros_like(independent_PR), independent_PR).to_json()
    journal.append_line(folder / MEASUREMENTS_FILE, line)


def test_gold_decides_where_there_is_gold(tmp_path: Path) -> None:
    kl, score = gates_of_rl(GateConfig(), rl_config(tmp_path), {"rl.gold_win_rate": 0.75, "rl.kl_to_sft": 4.2})
    assert (kl.name, kl.value, kl.passed) == ("kl_within_budget", 4.2, True)
    assert (score.value, score.passed) == (0.75, True) and "16 held-out prompts won by gold score" in score.measure


def test_the_reward_itself_decides_nothing(tmp_path: Path) -> None:
    kl, score = gates_of_rl(GateConfig(), rl_config(tmp_path), {"rl.reward_win_rate": 1.0, "rl.kl_to_sft": 26.0})
    assert kl.passed is False
    assert score.passed is None and "yardstick.independent" in score.advice


def test_without_gold_the_yardstick_decides_by_the_checkpoint_that_is_the_result(tmp_path: Path) -> None:
    measure(tmp_path, 0, BEFORE_PR)
    better_PR, worse_PR = BEFORE_PR + 1, BEFORE_PR - 1
    measure(tmp_path, 10, better_PR)
    measure(tmp_path, 20, worse_PR)
    best = {"rl.best_iteration": 10, "rl.best_state_path": "mint://r/weights/yardstick_000010"}
    for state_path, rate, passed in ((best["rl.best_state_path"], 1.0, True), ("mint://r/weights/final", 0.0, False)):
        _, score = gates_of_rl(GateConfig(), rl_config(tmp_path), {**best, "rl.state_path": state_path})
        assert (score.value, score.passed) == (rate, passed) and "20 held-out prompts won by yardstick" in score.measure


@pytest.mark.parametrize("iterations", [[], [0], [5, 10]])
def test_a_yardstick_that_did_not_see_the_policy_before_decides_nothing(tmp_path: Path, iterations: list[int]) -> None:
    for iteration in iterations:
        measure(tmp_path, iteration, BEFORE_PR)
    _, score = gates_of_rl(GateConfig(), rl_config(tmp_path), {"rl.state_path": "mint://r/weights/final"})
    assert score.passed is None


def gate(name: str, passed: bool | None, on_failed: OnFailed = "stop") -> Gate:
    return Gate("sft", name, "fall", 0.5, None, 0.6, None, passed, on_failed, "" if passed else f"mend {name}")


def test_gates_are_on_file_before_the_stop_and_all_failures_are_in_one_message(tmp_path: Path) -> None:
    keeper = GateKeeper(tmp_path)
    keeper.record([gate("a", True), gate("b", None)])
    keeper.enforce()
    keeper.record([gate("nll_falls", False), gate("replies_end", False)])
    assert [one["name"] for one in json.loads((tmp_path / "gates.json").read_text())] == [
        "a", "b", "nll_falls", "replies_end",
    ]  # fmt: skip
    with pytest.raises(StageGateFailed) as stopped:
        keeper.enforce()
    message = str(stopped.value)
    assert "sft nll_falls: fall 0.5, at least 0.6 asked for; sft replies_end: fall 0.5" in message
    assert "mend nll_falls; mend replies_end" in message
    assert "gates.nll_falls.on_failed=warn gates.replies_end.on_failed=warn" in message


def test_only_gates_that_failed_and_do_not_stop_are_warned_of(tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        keeper = GateKeeper(tmp_path)
        keeper.record([gate("a", True, "warn"), gate("b", None, "warn"), gate("c", False)])
        assert caplog.text == ""
        keeper.record([gate("d", False, "warn")], is_told=True)
        assert caplog.text == ""
        keeper.record([gate("e", False, "rule_reward")])
    assert "stage 3 uses the rule-based reward. Try: mend e" in caplog.text


def test_a_stage_that_ended_with_an_error_fails_its_first_gate() -> None:
    found = gate_of_failed_stage(GateConfig(), ValueError("no pairs"))
    assert (found.passed, found.value, found.on_failed) == (False, None, "rule_reward")
    assert found.finding() == "preference beats_chance: held-out pair accuracy no number, at least 0.5 asked for"
    assert found.advice == "the stage failed: no pairs"
