"""Losses, advantages and KL penalties side by side on one-digit additions.

    python -m benchmarks.rl_variants [OUT_FOLDER] [--variants default gspo ...] [--seeds 0 1 2] [--steps 100]

One JSON line per run: held-out accuracy before and after. All runs start from one warm start and take the same number
of iterations on the same additions, at a step size at which the default's training reward rises steadily. Then one line
per variant with the mean over the seeds and its difference to the mean of the default. "2 substeps" takes two optimizer
steps an iteration, so that ratios and clips have an effect.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import mint
from benchmarks.addition_task import MODEL, addition_rl_config, held_out_accuracies, warm_start
from recipe.rl import train as rl_train
from recipe.rl.credit import AdvantageConfig
from recipe.rl.kl import KLReferenceConfig
from recipe.rl.kl_coefficient import AdaptiveKLConfig, KLPenaltyConfig

_PER_SEQUENCE, _PER_TOKEN = (
    AdvantageConfig(length_norm="sequence_mean"),
    AdvantageConfig(length_norm="group_token_mean"),
)
_CLIP_HIGHER = {"clip_high_threshold": 1.28}

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "ppo": {"loss_fn": "ppo"},
    "cispo": {"loss_fn": "cispo"},
    "dro": {"loss_fn": "dro"},
    "gspo": {"loss_fn": "gspo"},
    "default, 2 substeps": {"num_substeps": 2},
    "ppo, 2 substeps": {"loss_fn": "ppo", "num_substeps": 2},
    "ppo clip-higher, 2 substeps": {"loss_fn": "ppo", "loss_fn_config": _CLIP_HIGHER, "num_substeps": 2},
    "cispo, 2 substeps": {"loss_fn": "cispo", "num_substeps": 2},
    "dro, 2 substeps": {"loss_fn": "dro", "num_substeps": 2},
    "gspo, 2 substeps": {"loss_fn": "gspo", "num_substeps": 2},
    "standardised": {"advantage": "standardised"},
    "leave_one_out": {"advantage": "leave_one_out"},
    "Dr. GRPO": {"advantage_config": AdvantageConfig(length_norm="constant")},
    "sequence_mean": {"advantage_config": _PER_SEQUENCE},
    "group_token_mean": {"advantage_config": _PER_TOKEN},
    "GRPO": {"advantage": "standardised", "advantage_config": _PER_SEQUENCE, "loss_fn": "ppo"},
    "DAPO": {
        "advantage": "standardised",
        "advantage_config": _PER_TOKEN,
        "loss_fn": "ppo",
        "loss_fn_config": _CLIP_HIGHER,
        "remove_constant_reward_groups": True,
    },
    "credit by turn": {"advantage_config": AdvantageConfig(credit="turn")},
    "credit by token, discount 0.95": {"advantage_config": AdvantageConfig(credit="token", discount=0.95)},
    "KL in the advantages": {"kl_penalty_coef": 0.02},
    "KL in the advantages, discount 1": {
        "kl_penalty_coef": 0.02,
        "kl_penalty_config": KLPenaltyConfig(discount=1.0),
    },
    "KL in the loss, k2": {"kl_penalty_coef": 0.02, "kl_penalty_config": KLPenaltyConfig(form="loss_k2")},
    "KL in the loss, k3": {"kl_penalty_coef": 0.02, "kl_penalty_config": KLPenaltyConfig(form="loss_k3")},
    "KL adaptive to 2 nats": {
        "kl_penalty_coef": 0.02,
        "kl_penalty_config": KLPenaltyConfig(adaptive=AdaptiveKLConfig(target=2.0)),
    },
}


async def measure(name: str, seed: int, folder: Path, options: argparse.Namespace, start_path: str) -> dict[str, Any]:
    """One run, as a row."""
    changes: dict[str, Any] = {"learning_rate": options.learning_rate, **VARIANTS[name]}
    if "kl_penalty_coef" in changes:
        changes["kl_reference_config"] = KLReferenceConfig(base_model=MODEL, load_checkpoint_path=start_path)
    log_path = folder / f"{list(VARIANTS).index(name):02d}_{seed}"
    started = time.perf_counter()
    result = await rl_train.main(
        addition_rl_config(log_path, start_path, seed, options.steps, **changes),
        mint.ServiceClient(home=str(folder / "mint_home")),
    )
    before, after = held_out_accuracies(log_path)
    row = {"variant": name, "seed": seed, "steps": options.steps, "accuracy_before": before, "accuracy_after": after}
    kl = {
        key: result.metrics[key] for key in ("kl_policy_base_per_episode", "kl_penalty_coef") if key in result.metrics
    }
    return row | kl | {"seconds": time.perf_counter() - started}


async def run(options: argparse.Namespace) -> None:
    """All runs, seeds outermost; then the mean of each variant against that of the default."""
    folder = Path(options.out or tempfile.mkdtemp(prefix="rl_variants_"))
    service = mint.ServiceClient(home=str(folder / "mint_home"))
    start_path = await warm_start(folder, service, options.warm_start_steps)
    names = list(dict.fromkeys(["default", *options.variants]))
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        for name in names:
            rows.append(await measure(name, seed, folder, options, start_path))
            print(json.dumps(rows[-1]), flush=True)
    after = {name: [row["accuracy_after"] for row in rows if row["variant"] == name] for name in names}
    default = statistics.fmean(after["default"])
    for name, accuracies in after.items():
        mean = statistics.fmean(accuracies)
        row = {"variant": name, "mean_accuracy_after": mean, "difference_to_default": mean - default}
        print(json.dumps(row | {"all_accuracies_after": accuracies}), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", help="folder of the runs; a run that is there is not repeated")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--warm-start-steps", type=int, default=110)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
