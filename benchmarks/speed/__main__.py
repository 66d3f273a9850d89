"""Ours and TRL side by side: one row, one JSON line.

    pip install -c constraints.txt -e '.[peer]'
    python -m benchmarks.speed KIND MODEL --data FOLDER [--rounds 2] [--steps 3] [--ours ...] [--peer ...]

KIND is sft, preference, dpo, grpo or grpo_prefix; MODEL is tiny, small or qwen3-0.6b, made on first use in --models.
FOLDER holds gsm8k_train.jsonl and preference_pairs.jsonl. Every variant of either side runs in a process of its own,
and the processes alternate, ours and the peer's, --rounds times: what the machine does meanwhile falls on both sides.

The line has, for every variant, the median seconds of an optimizer step, the throughput in the row's unit (real tokens,
pairs, or sampled tokens per second), the share of each phase, and the peak memory: of the process, and of that what
came on top of the loaded model. `ratios` compares the fastest variant of each side; where rounds differ, each variant
counts with its best round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed import ours, peer_grpo, peer_training
from benchmarks.speed.measure import Measured
from benchmarks.speed.models import SHAPES, make_model

_UNITS = {
    "sft": "tokens",
    "preference": "pairs",
    "dpo": "pairs",
    "grpo": "sampled_tokens",
    "grpo_prefix": "sampled_tokens",
}
_OURS = ["float32", "bfloat16"]


def measure(module: str, kind: str, model: Path, options: argparse.Namespace, variant: str) -> Measured:
    """One variant in a fresh process. Raises RuntimeError with the end of its output where it fails."""
    arguments = [kind, str(model), str(options.data), variant, "--steps", str(options.steps), "--warmup", "1"]
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.speed.{module}", *arguments], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} {variant}: {done.stderr[-600:]}")
    return Measured(**json.loads(done.stdout.strip().splitlines()[-1]))


def summary(measured: Measured, unit: str) -> dict[str, Any]:
    """The figures of one process."""
    seconds = sum(measured.step_seconds)
    figures = {
        "step_seconds": round(statistics.median(measured.step_seconds), 4),
        f"{unit}_per_second": round(getattr(measured, unit) / seconds, 2),
        "phases": {name: round(value / seconds, 3) for name, value in measured.phases.items()},
        "memory_mib": measured.memory_mib,
        "above_model_mib": measured.above_model_mib,
    }
    if "sample" in measured.phases:
        figures["sampling_tokens_per_second"] = round(measured.sampled_tokens / measured.phases["sample"], 1)
    return figures


def ratios(best_ours: dict[str, Any], best_peer: dict[str, Any], unit: str) -> dict[str, float]:
    """Ours to the peer's: above 1 is faster, and below 1 is less memory."""
    compared = {
        unit: best_ours[f"{unit}_per_second"] / best_peer[f"{unit}_per_second"],
        "memory": best_ours["memory_mib"] / best_peer["memory_mib"],
        "memory_above_model": best_ours["above_model_mib"] / best_peer["above_model_mib"],
    }
    if "sampling_tokens_per_second" in best_ours:
        name = "sampling_tokens_per_second"
        compared["sampling"] = best_ours[name] / best_peer[name]
    return {name: round(value, 2) for name, value in compared.items()}


def run_row(options: argparse.Namespace) -> dict[str, Any]:
    """All processes of one row."""
    kind, unit = options.kind, _UNITS[options.kind]
    is_grpo = kind in peer_grpo.SHARED_PREFIX
    module = "peer_grpo" if is_grpo else "peer_training"
    peers = options.peer or (peer_grpo.BEST if is_grpo else peer_training.BEST[kind])
    model = make_model(options.model, options.models)
    sides = [
        side
        for pair in zip_longest([("ours", v) for v in options.ours], [(module, v) for v in peers])
        for side in pair
        if side is not None
    ]
    found: dict[str, dict[str, dict[str, Any]]] = {"ours": {}, module: {}}
    for _ in range(options.rounds):
        for side, variant in sides:
            try:
                figures = summary(measure(side, kind, model, options, variant), unit)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                continue
            known = found[side].get(variant)
            if known is None or known[f"{unit}_per_second"] < figures[f"{unit}_per_second"]:
                found[side][variant] = figures
            print(side, variant, figures, file=sys.stderr, flush=True)
    best = {
        side: max(variants, key=lambda v: variants[v][f"{unit}_per_second"])
        for side, variants in found.items()
        if variants
    }
    row: dict[str, Any] = {"row": kind, "model": options.model, "threads": torch.get_num_threads()}
    if len(best) == 2:
        row |= {"best_ours": best["ours"], "best_peer": best[module]}
        row["ratios"] = ratios(found["ours"][best["ours"]], found[module][best[module]], unit)
    return row | {"ours": found["ours"], "trl": found[module]}


def main(argv: list[str] | None = None) -> None:
    """Print the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(_UNITS))
    parser.add_argument("model", choices=list(SHAPES))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "mint_speed_models")
    parser.add_argument("--ours", nargs="*", default=_OURS, choices=list(ours.VARIANTS))
    parser.add_argument("--peer", nargs="*", default=None)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    print(json.dumps(run_row(parser.parse_args(argv))), flush=True)


if __name__ == "__main__":
    main()
