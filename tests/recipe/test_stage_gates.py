"""Each gate on worked numbers: what passes, what fails, what is not checked, and what it says."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from mint.errors import InvalidRequest
from recipe.gate_config import BeatsChance, GateConfig, KLWithinBudget, NLLFalls, RepliesEnd
from recipe.stage_gates import (
    Gate,
    beats_chance,
    beats_length,
    is_fit_as_reward,
    kl_within_budget,
    nll_falls,
    preference_gates,
    probes_pass,
    replies_end,
    score_rises,
    sft_gates,
)


def probe(share: float, passed: bool, num: int = 64) -> dict[str, Any]:
    return {"share_passed": share, "mean_margin": 1.0, "num": num, "passed": passed}


CARD: dict[str, Any] = {
    "beats_length_only": {"value": 0.8, "low": 0.7, "high": 0.87, "num_pairs": 100},
    "probes": {"empty": probe(1.0, True), "cut": probe(0.89, True)},
    "probes_passed": True,
    "min_probe_share": 0.8,
}


@pytest.mark.parametrize(
    ("before", "after", "value", "passed"),
    [
        (3.514, 0.689, 1 - 0.689 / 3.514, True),  # the demo's numbers
        (2.0, 1.98, 0.01, True),  # by exactly the share asked for
        (2.0, 1.99, 0.005, False),
        (2.0, 2.5, -0.25, False),
        (2.0, math.inf, None, False),
        (0.0, 0.0, None, False),  # a share of nothing
    ],
)
def test_the_nll_must_fall_by_a_share_of_what_it_was(before, after, value, passed):
    gate = nll_falls(before, after, NLLFalls(min_fall=0.01), "stop")
    assert gate.value == (None if value is None else pytest.approx(value, abs=1e-6))
    assert gate.passed is passed and gate.low_threshold == 0.01
    assert bool(gate.advice) is not passed


def test_without_held_out_data_a_gate_is_not_checked_and_says_why():
    gates = [
        nll_falls(None, None, NLLFalls(), "stop"),
        replies_end(0, 0, 16, RepliesEnd(), "stop"),
        beats_chance(None, None, None, 0, "rule_reward"),
        beats_length(None, "warn"),
        beats_length({"accuracy": {}}, "warn"),  # a card of a version before
        probes_pass(None, "warn"),
        probes_pass({**CARD, "probes": {}}, "warn"),
        kl_within_budget(None, KLWithinBudget(), "warn"),
        score_rises(None, 0, "gold score", "warn"),
    ]
    for gate in gates:
        assert gate.passed is None and gate.value is None and gate.advice, gate
        assert "not checked (" in gate.finding()
    assert is_fit_as_reward(gates)


@pytest.mark.parametrize(("num_ended", "passed"), [(32, True), (26, True), (25, False), (0, False)])
def test_four_of_five_replies_must_end(num_ended, passed):
    gate = replies_end(num_ended, 32, 48, RepliesEnd(min_share=0.8), "stop")  # 25 / 32 is 0.78
    assert gate.passed is passed and gate.value == pytest.approx(num_ended / 32)
    assert "within 48 tokens" in gate.finding()


@pytest.mark.parametrize(
    ("accuracy", "low", "high", "passed"),
    [
        (0.914, 0.872, 0.943, True),  # the demo's numbers
        (0.60, 0.501, 0.69, True),
        (0.60, 0.5, 0.69, False),  # the interval touches one half
        (0.30, 0.25, 0.36, False),
    ],
)
def test_the_whole_interval_of_the_accuracy_must_be_above_one_half(accuracy, low, high, passed):
    gate = beats_chance(accuracy, low, high, 256, "rule_reward")
    assert gate.passed is passed and gate.interval == (low, high)
    assert is_fit_as_reward([gate]) is passed
    assert gate.finding() == (
        f"preference beats_chance: held-out pair accuracy {accuracy:.3g} ({low:.3g} to {high:.3g}), above 0.5 asked for"
    )


@pytest.mark.parametrize(
    ("found", "passed"),
    [
        ({"value": 0.8, "low": 0.7, "high": 0.87, "num_pairs": 100}, True),
        ({"value": 0.55, "low": 0.45, "high": 0.65, "num_pairs": 100}, False),
        ({"value": None, "low": None, "high": None, "num_pairs": 0}, False),  # it never disagrees with length
    ],
)
def test_the_model_must_be_right_where_it_disagrees_with_length(found, passed):
    assert beats_length({**CARD, "beats_length_only": found}, "warn").passed is passed


def test_probes_fail_by_the_card_and_the_worst_that_failed_is_named():
    assert probes_pass(CARD, "warn").passed is True
    assert probes_pass(CARD, "warn").value == 0.89
    probes = {**CARD["probes"], "echo": probe(0.1, False), "empty": probe(0.0, True, num=1)}
    gate = probes_pass({**CARD, "probes": probes}, "warn")
    assert gate.passed is False and gate.value == 0.1 and gate.low_threshold == 0.8
    assert "kind 'echo'" in gate.finding() and "(echo)" in gate.advice


@pytest.mark.parametrize(("kl", "passed"), [(4.2, True), (25.0, True), (25.1, False), (math.nan, False)])
def test_kl_must_stay_within_its_budget(kl, passed):
    gate = kl_within_budget(kl, KLWithinBudget(), "warn")
    assert gate.passed is passed and gate.high_threshold == 25.0 and gate.low_threshold is None


@pytest.mark.parametrize(
    ("win_rate", "num_prompts", "passed"),
    [
        (0.95, 64, True),
        (0.75, 16, True),  # 0.505 to 0.898
        (0.75, 12, False),  # 0.468 to 0.911: the same share of fewer prompts
        (0.5, 1000, False),
        (0.2, 64, False),
    ],
)
def test_the_policy_must_win_by_more_than_luck(win_rate, num_prompts, passed):
    gate = score_rises(win_rate, num_prompts, "gold score", "warn")
    assert gate.passed is passed and gate.interval is not None
    assert gate.interval[0] < win_rate < gate.interval[1]


def test_all_gates_are_json_that_can_be_read_back():
    metrics = {"test/pair_accuracy": 0.9, "test/pair_accuracy_low": 0.8, "test/pair_accuracy_high": 0.95}
    endings = {"num_ended": 30, "num_replies": 32, "max_tokens": 40}
    gates = [
        *sft_gates(GateConfig(), {"nll_before": 3.0, "nll_after": 1.0}, endings),
        *preference_gates(GateConfig(), {**metrics, "test/num_pairs": 100}, CARD),
    ]
    assert [(gate.stage, gate.name) for gate in gates] == [
        ("sft", "nll_falls"),
        ("sft", "replies_end"),
        ("preference", "beats_chance"),
        ("preference", "beats_length"),
        ("preference", "probes_pass"),
    ]
    assert all(gate.passed for gate in gates)
    again = [Gate(**values) for values in json.loads(json.dumps([gate.to_json() for gate in gates], allow_nan=False))]
    assert [gate.finding() for gate in again] == [gate.finding() for gate in gates]


def test_the_defaults_stop_on_sft_replace_a_model_no_better_than_chance_and_warn_otherwise():
    config = GateConfig()
    found = {name: config.on_failed_of(name) for name in ("nll_falls", "replies_end", "beats_chance", "beats_length")}
    assert found == {
        "nll_falls": "stop", "replies_end": "stop", "beats_chance": "rule_reward", "beats_length": "warn",
    }  # fmt: skip
    strict = GateConfig(on_failed="stop", beats_chance=BeatsChance(on_failed="rule_reward"))
    assert {strict.on_failed_of(name) for name in (*found, "probes_pass", "kl_within_budget", "score_rises")} == {
        "stop"
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NLLFalls(on_failed="rule_reward"), "only the preference model has a stand-in; use 'stop' or 'warn'"),
        (lambda: KLWithinBudget(on_failed="rule_reward"), "on_failed='rule_reward' for KLWithinBudget"),
        (lambda: NLLFalls(min_fall=1.5), "gates.nll_falls.min_fall=1.5: must be between 0 and 1"),
        (lambda: RepliesEnd(min_share=-0.1), "gates.replies_end.min_share=-0.1"),
        (lambda: RepliesEnd(num_replies=-1), "num_replies=-1: must be at least 0"),
        (lambda: RepliesEnd(max_tokens=0), "max_tokens=0: must be at least 1, or None"),
        (lambda: KLWithinBudget(max_nats_per_reply=0.0), "must be above 0 and finite"),
        (lambda: KLWithinBudget(max_nats_per_reply=math.inf), "must be above 0 and finite"),
    ],
)
def test_settings_are_checked_when_they_are_made(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make()
