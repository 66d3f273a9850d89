"""What the pipeline says at its end: summary.json, and the same as a table for a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mint.atomic_files import write_atomically
from recipe.stage_gates import Gate

SUMMARY_FILE = "summary.json"
Summary = dict[str, Any]


def write_summary(root: Path, summary: Summary) -> None:
    """Write summary.json to the pipeline's folder."""
    write_atomically(root / SUMMARY_FILE, (json.dumps(summary, indent=2) + "\n").encode())


def kept_of_stage_3(root: Path, summary: Summary) -> tuple[Summary, list[Gate]]:
    """What summary.json says of an earlier stage 3, and its gates; nothing where that had another policy to start from
    or another preference model than `summary` has."""
    file = root / SUMMARY_FILE
    if not file.is_file():
        return {}, []
    earlier: Summary = json.loads(file.read_bytes())
    if any(earlier.get(key) != summary[key] for key in ("sft.state_path", "preference.state_path")):
        return {}, []
    gates = [Gate(**gate) for gate in earlier.get("gates", []) if gate["stage"] == "rl"]
    return {key: value for key, value in earlier.items() if key.startswith(("rl.", "best_of_n."))}, gates


def summary_table(summary: Summary) -> str:
    """The summary as a table for a terminal."""
    name = "gold" if "rl.gold_before" in summary else "reward"
    nll_before, nll_after = summary["sft.nll_before"], summary["sft.nll_after"]
    change = f"{nll_after / nll_before - 1:+.0%}" if nll_before and nll_after else ""
    accuracy = summary["preference.test_pair_accuracy"]
    is_failed = summary["rl.reward_source_prm"] == 0.0 or any(
        gate["stage"] == "preference" for gate in summary.get("gates", [])
    )
    stage_2_note = "" if summary["preference.state_path"] else "stage failed" if is_failed else "not run"
    stage_3_note = "rule-based reward" if summary["rl.reward_source_prm"] == 0.0 else ""
    if summary["rl.state_path"] is None:
        stage_3_note = "not run"
    rows = [
        ("SFT", "held-out NLL per token", _number(nll_before), _number(nll_after), change),
        ("preference", "held-out pair accuracy", "", _number(accuracy), stage_2_note),
        ("RL", f"{name} on held-out prompts", _number(summary.get(f"rl.{name}_before")),
         _number(summary.get(f"rl.{name}_after")), stage_3_note),
        ("", f"preferred to SFT by {name}", "", _percent(summary.get(f"rl.{name}_win_rate")), ""),
        ("", "KL to SFT, nats per reply", "", _number(summary.get("rl.kl_to_sft")), ""),
    ]  # fmt: skip
    if "best_of_n.n" in summary:
        best = f"best of {summary['best_of_n.n']}"
        rows.append((best, f"{name} on held-out prompts", "", _number(summary[f"best_of_n.{name}"]), "no training"))
    lines = [f"{'stage':<12}{'measure':<28}{'before':>8}{'after':>8}  "]
    lines += [
        f"{stage:<12}{what:<28}{before:>8}{after:>8}  {note}".rstrip() for stage, what, before, after, note in rows
    ]
    lines += gate_lines(summary.get("gates", []))
    paths = {stage: summary[f"{stage}.state_path"] for stage in ("sft", "preference", "rl")}
    lines += [f"{stage}: {path}" for stage, path in paths.items() if path is not None]
    return "\n".join([*lines, f"{summary['seconds']:.0f} seconds"])


def gate_lines(gates: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many gates passed, in one line, and a line for each that failed."""
    if not gates:
        return []
    counts = {
        "passed": sum(gate["passed"] is True for gate in gates),
        "failed": sum(gate["passed"] is False for gate in gates),
        "not checked": sum(gate["passed"] is None for gate in gates),
    }
    failed = [f"  failed: {Gate(**gate).finding()}" for gate in gates if gate["passed"] is False]
    return [f"gates: {', '.join(f'{number} {what}' for what, number in counts.items() if number)}", *failed]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
