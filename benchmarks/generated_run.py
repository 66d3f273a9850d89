"""A pipeline's folder made up from a seed, without any model: what report.html is measured and looked at with.

    python -m benchmarks.generated_run FOLDER [--steps 200] [--groups 10] [--members 5] [--reply-tokens 60]

The numbers move as those of a run that is over-optimised in its second half.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.generated_rollouts import QUESTIONS, WORDS, RunShape, write_rollouts


def write_run(folder: Path, shape: RunShape) -> None:
    """Write the folder of a pipeline: three stages, gates, report card, yardstick and rollouts."""
    rng = random.Random(shape.seed)
    _write_sft(folder / "sft", rng)
    _write_preference(folder / "preference", rng)
    _write_rl(folder / "rl", rng, shape)
    _write_json(
        folder / "summary.json",
        {
            "sft.nll_before": 3.514,
            "sft.nll_after": 0.689,
            "sft.state_path": "mint://0f3a/weights/final",
            "preference.test_pair_accuracy": 0.914,
            "preference.state_path": "mint://77be/weights/final",
            "rl.reward_source_prm": 1.0,
            "rl.state_path": "mint://c41d/weights/final",
            "rl.gold_before": 0.307,
            "rl.gold_after": 0.636,
            "rl.gold_win_rate": 0.951,
            "rl.kl_to_sft": 4.2,
            "rl.kl_to_sft_per_token": 0.11,
            "seconds": 161.0,
        },
    )
    gates = [
        ("sft", "held_out_nll_fell", 0.689, None, 3.514, True),
        ("sft", "replies_end_properly", 0.992, 0.9, None, True),
        ("preference", "accuracy_above_chance", 0.874, 0.5, None, True),
        ("preference", "accuracy_above_length_only", 0.874, 0.508, None, True),
        ("preference", "probes_passed", 1.0, 1.0, None, True),
        ("rl", "kl_within_budget", 11.8, None, 10.0, False),
        ("rl", "independent_score_rose", 0.21, 0.0, None, True),
    ]
    advice = "raise rl.kl_penalty_coef, or stop earlier: the yardstick's best checkpoint is at iteration 100"
    _write_json(
        folder / "gates.json",
        [
            {
                "stage": stage,
                "name": name,
                "value": value,
                "low_threshold": low,
                "high_threshold": high,
                "passed": passed,
                "advice": "" if passed else advice,
            }
            for stage, name, value, low, high, passed in gates
        ],
    )


def _write_sft(folder: Path, rng: random.Random) -> None:
    lines = []
    for step in range(96):
        nll = 0.66 + 2.7 * math.exp(-step / 9) + rng.gauss(0, 0.03)
        rate = 2e-3 * min(1, (step + 1) / 5) * (1 - step / 96)
        line = {
            "step": step,
            "train_mean_nll": nll,
            "learning_rate": rate,
            "optim/grad_norm": 0.3 + rng.random() * 0.2,
            "num_tokens": 1900 + rng.randrange(200),
            "time/step": 0.31,
            "progress/done_frac": (step + 1) / 96,
        }
        lines.append(line | ({"test/nll": nll + 0.03} if step % 16 == 0 else {}))
    _write_stage(folder, "recipe.supervised.train:Config", "2e-3", [*lines, {"step": 96, "test/nll": 0.689}], "0f3a")


def _write_preference(folder: Path, rng: random.Random) -> None:
    lines = []
    for step in range(200):
        done = 1 - math.exp(-step / 40)
        line = {
            "step": step,
            "loss": 0.693 - 0.45 * done + rng.gauss(0, 0.05),
            "learning_rate": 3e-3 * (1 - step / 200),
            "pair_accuracy": min(1.0, 0.5 + 0.44 * done + rng.gauss(0, 0.06)),
            "mean_margin": 2.1 * done,
            "time/step": 0.2,
        }
        if step % 40 == 0:
            accuracy = 0.5 + 0.41 * done
            line |= {
                "test/pair_accuracy": accuracy,
                "test/pair_accuracy_low": accuracy - 0.05,
                "test/pair_accuracy_high": accuracy + 0.04,
                "test/loss": 0.7 - 0.43 * done,
                "test/mean_margin": 1.9 * done,
                "test/length_only_accuracy": 0.508,
            }
        lines.append(line)
    _write_stage(folder, "recipe.preference.train:Config", "3e-3", lines, "77be")
    _write_json(folder / "report_card.json", report_card())


def report_card() -> dict[str, Any]:
    """A report card as the preference stage writes it."""

    def share(value: float, num_pairs: int) -> dict[str, float]:
        half = 1.96 * math.sqrt(value * (1 - value) / num_pairs)
        return {"value": value, "low": round(value - half, 4), "high": round(value + half, 4), "num_pairs": num_pairs}

    bins = [
        (0.5, 0.55, 0.54, 31),
        (0.6, 0.66, 0.63, 36),
        (0.7, 0.75, 0.71, 41),
        (0.8, 0.86, 0.86, 58),
        (0.9, 0.96, 0.98, 90),
    ]
    probes = {
        "empty": (1.0, 4.1),
        "repeated": (0.95, 2.2),
        "cut": (0.89, 1.4),
        "refusal": (0.98, 3.3),
        "prompt_echo": (0.73, 0.6),
    }
    return {
        "step": 200,
        "accuracy": share(0.914, 256),
        "length_only_accuracy": share(0.508, 256),
        "length_balanced": share(0.902, 244),
        "by_source": {"advice": share(0.931, 160), "everyday": share(0.885, 96)},
        "brier": 0.071,
        "ece": 0.024,
        "temperature": 1.31,
        "reliability": [
            {
                "low": low,
                "high": round(low + 0.1, 1),
                "mean_predicted": predicted,
                "share_right": right,
                "num_pairs": num,
            }
            for low, predicted, right, num in bins
        ],
        "correlations": {
            "num_characters": 0.31,
            "num_sentences": -0.08,
            "share_punctuation": 0.12,
            "num_digits": 0.02,
            "prompt_overlap": -0.27,
        },
        "paraphrase": {"applicable": False, "reason": "the readout asks no question"},
        "probes": {
            name: {"share_passed": passed, "mean_margin": margin, "num": 64, "passed": passed >= 0.8}
            for name, (passed, margin) in probes.items()
        },
        "min_probe_share": 0.8,
        "probes_passed": False,
    }


def _write_rl(folder: Path, rng: random.Random, shape: RunShape) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for step in range(shape.num_steps):
        done = step / max(shape.num_steps - 1, 1)
        reward, gold = 2.4 * done - 0.4 + rng.gauss(0, 0.1), 0.31 + 0.9 * done - 0.8 * done**2 + rng.gauss(0, 0.015)
        line = _rl_line(rng, step, done, reward, gold)
        if step % max(1, shape.num_steps // 20) == 0:
            line |= {
                "test/env/all/reward/total": reward - 0.1,
                "test/env/all/gold": gold - 0.02,
                "time/evaluation": 1.4,
                "yardstick/reward": reward,
                "yardstick/independent": gold + 0.05,
                "yardstick/kl_per_reply": 0.2 + 11 * done,
                "yardstick/reply_tokens": 31 + 20 * done,
                "yardstick/repetition": 0.02 + 0.2 * done**3,
                "yardstick/entropy": 1.2 - done,
                "yardstick/cut_share": 0.05 * done,
                "yardstick/alarm": float(done > 0.75),
            }
        lines.append(line)
        write_rollouts(folder / "rollouts", step, done, rng, shape)
    _write_stage(folder, "recipe.rl.config:Config", "1e-3", lines, "c41d")
    _write_json(
        folder / "yardstick_best.json",
        {
            "iteration": shape.num_steps // 2,
            "value": 0.62,
            "state_path": "mint://c41d/weights/yardstick",
            "sampler_path": "mint://c41d/sampler_weights/yardstick",
        },
    )
    records = [
        {
            "iteration": shape.num_steps - 6 + i,
            "i_prompt": i,
            "i_reply": 0,
            "prompt": [{"role": "user", "content": QUESTIONS[i]}],
            "reply": " ".join(rng.choices(WORDS, k=14)),
            "reward": 1.9 - 0.1 * i,
            "independent": 0.1 + 0.02 * i,
            "reward_place": 0.97,
            "independent_place": 0.08,
        }
        for i in range(6)
    ]
    _write_lines(folder / "disagreements.jsonl", records)


def _rl_line(rng: random.Random, step: int, done: float, reward: float, gold: float) -> dict[str, Any]:
    return {
        "step": step,
        "learning_rate": 1e-3 * (1 - done),
        "loss": rng.gauss(0, 0.1),
        "env/all/reward/total": reward,
        "env/all/gold": gold,
        "kl_policy_base_per_episode": 12 * done + rng.random() * 0.4,
        "kl_policy_base": 0.3 * done,
        "entropy": 1.25 - done + rng.gauss(0, 0.03),
        "ac_tokens_per_turn": 30 + 22 * done,
        "env/all/frac_cut_off": 0.06 * done,
        "env/all/by_group/frac_mixed": 0.9 - 0.3 * done,
        "env/all/by_group/frac_all_good": 0.05 + 0.3 * done,
        "env/all/by_group/frac_all_bad": 0.05,
        "env/all/faults/raised": float(step % 50 == 25),
        "env/all/faults/hung": 0.0,
        "kl_sample_train_v1": rng.gauss(0, 1e-5),
        "kl_sample_train_v2": abs(rng.gauss(0, 1e-9)),
        "optim/grad_norm": 20 + rng.random() * 15,
        "time/step": 1.7,
        "time/sampling": 0.9,
        "time/training": 0.7,
    }


def _write_stage(folder: Path, config_class: str, rate: str, lines: Sequence[dict[str, Any]], run: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "model_name": "mint-tiny",
        "renderer_name": "qwen3_disable_thinking",
        "lora_rank": 32,
        "learning_rate": rate,
        "seed": 0,
        "log_path": folder.name,
        "max_steps": len(lines),
    }
    _write_json(folder / "config.json", {"config_class": {"$import": config_class}, "values": values})
    _write_lines(folder / "metrics.jsonl", lines)
    checkpoints = [
        {
            "name": name,
            "step": step,
            "state_path": f"mint://{run}/weights/{name}",
            "sampler_path": f"mint://{run}/sampler_weights/{name}",
        }
        for name, step in ((f"{len(lines) // 2:06d}", len(lines) // 2), ("final", len(lines)))
    ]
    _write_lines(folder / "checkpoints.jsonl", checkpoints)
    _write_json(
        folder / "stage_manifest.json",
        {
            "stage": folder.name,
            "data_sha256": "9f2c7e0b41d8",
            "base_model": "mint-tiny",
            "renderer": "qwen3_disable_thinking",
            "stop_token_ids": [4089],
            "seed": 0,
            "parent": None,
            "state_path": f"mint://{run}/weights/final",
        },
    )


def _write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Write the run that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in (("steps", 200), ("groups", 10), ("members", 5), ("reply-tokens", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    shape = RunShape(options.steps, options.groups, options.members, options.reply_tokens)
    options.folder.mkdir(parents=True, exist_ok=True)
    write_run(options.folder, shape)


if __name__ == "__main__":
    main()
