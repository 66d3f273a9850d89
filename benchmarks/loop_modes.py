"""The loop modes side by side: additions whose environment takes its time to answer.

    python -m benchmarks.loop_modes [OUT_FOLDER] [--seeds 0 1 2] [--delay 0.1] [--steps 100]

One JSON line per run: held-out accuracy before and after, time per sampled answer, and what the seconds went to. All
runs start from one short warm start and take the same number of optimizer steps on the same additions. Then one line
per mode with the means over the seeds and their ratio to on-policy.
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

import chz

import mint
from benchmarks.addition_task import GROUP_SIZE, GROUPS_PER_BATCH, addition_rl_config, held_out_accuracies, warm_start
from envs.arithmetic import AdditionDatasetBuilder, AdditionEnv
from envs.message_env import MessageStepResult
from recipe.rl import train as rl_train
from recipe.rl.loop_modes import AsyncConfig, StreamMinibatchConfig
from recipe.run_log import read_metrics
from renderers import Message

MODES: dict[str, dict[str, Any]] = {
    "on_policy": {},
    "streaming": {"stream_minibatch_config": StreamMinibatchConfig(num_minibatches=4)},
    "asynchronous": {"async_config": AsyncConfig(max_steps_off_policy=2)},
}


class SlowAdditionEnv(AdditionEnv):
    """An addition whose environment needs `delay` seconds to judge the reply, as a compiler or a judge would."""

    def __init__(self, left: int, right: int, question: str, delay: float) -> None:
        super().__init__(left, right, question)
        self.delay = delay

    async def step(self, message: Message) -> MessageStepResult:
        """See MessageEnv."""
        await asyncio.sleep(self.delay)
        return await super().step(message)


@chz.chz(typecheck=True)
class SlowAdditionDatasetBuilder(AdditionDatasetBuilder):
    """Additions of slow environments."""

    delay: float = 0.1

    def make_env(self, left: int, right: int) -> AdditionEnv:
        """See AdditionDatasetBuilder."""
        return SlowAdditionEnv(left, right, self.question, self.delay)


async def measure(mode: str, seed: int, folder: Path, options: argparse.Namespace, start_path: str) -> dict[str, Any]:
    """One run, as a row."""
    log_path = folder / f"{mode}_{seed}"
    config = addition_rl_config(
        log_path,
        start_path,
        seed,
        options.steps,
        dataset_builder=SlowAdditionDatasetBuilder,
        builder_settings={"delay": options.delay},
        **MODES[mode],
    )
    started = time.perf_counter()
    await rl_train.main(config, mint.ServiceClient(home=str(folder / "mint_home")))
    seconds = time.perf_counter() - started
    lines = [line for line in read_metrics(log_path) if "time/step" in line]
    num_answers = options.steps * GROUPS_PER_BATCH * GROUP_SIZE
    before, after = held_out_accuracies(log_path)
    return {
        "mode": mode,
        "seed": seed,
        "delay_s": options.delay,
        "accuracy_before": before,
        "accuracy_after": after,
        "ms_per_answer": 1e3 * sum(line["time/step"] for line in lines) / num_answers,
        "s_sampling": sum(line["time/sampling"] for line in lines),
        "s_training": sum(line.get("time/training", 0.0) for line in lines),
        "s_whole_run": seconds,
        "kl_sample_train_v1": statistics.fmean(
            line["kl_sample_train_v1"] for line in lines if "kl_sample_train_v1" in line
        ),
    }


async def run(options: argparse.Namespace) -> None:
    """All runs, seeds outermost, so that modes are compared under the same conditions; then the means."""
    folder = Path(options.out or tempfile.mkdtemp(prefix="loop_modes_"))
    start_path = await warm_start(folder, mint.ServiceClient(home=str(folder / "mint_home")))
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        for mode in MODES:
            rows.append(await measure(mode, seed, folder, options, start_path))
            print(json.dumps(rows[-1]), flush=True)
    cost = {mode: statistics.fmean(r["ms_per_answer"] for r in rows if r["mode"] == mode) for mode in MODES}
    for mode in MODES:
        after = [row["accuracy_after"] for row in rows if row["mode"] == mode]
        summary = {"mode": mode, "mean_accuracy_after": statistics.fmean(after), "all_accuracies_after": after}
        speed = {"ms_per_answer": cost[mode], "times_faster_than_on_policy": cost["on_policy"] / cost[mode]}
        print(json.dumps(summary | speed), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", help="folder of the runs; a run that is there is not repeated")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--delay", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=100)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
