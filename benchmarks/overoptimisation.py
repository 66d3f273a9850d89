"""Over-optimisation on the built-in task: a preference model that likes length, and the yardstick that notices.

    python -m benchmarks.overoptimisation runs/overoptimisation docs/images/overoptimisation.svg
    python -m benchmarks.overoptimisation runs/few_pairs few_pairs.svg --labels gold --pairs 200 --members 1 4

The first command makes the picture of docs/yardstick.md. It trains SFT, a preference model on pairs of which the
longer reply is always the chosen one, whether it is the better or the worse, and GRPO against that model, which the
yardstick measures with the gold score. The second compares a single preference model with an ensemble of four, all of
them trained on few pairs with right labels: gold at the same KL. Started again, either goes on where it stopped. One
JSON line a measurement goes to stdout.

Axes: _M members of an ensemble.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import mint
from envs import advice
from recipe.pipeline_yardstick import YardstickConfig
from recipe.preference import train as preference_train
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.readouts import SequenceLogprob
from recipe.preference.scorer import RewardScale, ScorerSpec
from recipe.preference.types import PairExampleConfig, PreferencePair
from recipe.rl import train as rl_train
from recipe.rl.kl import KLReferenceConfig
from recipe.rl.yardstick import Measurement, read_best, read_measurements
from recipe.supervised import train as sft_train
from recipe.supervised.data import ListSFTDatasetBuilder
from renderers import get_text

MODEL, RENDERER = "mint-tiny", "qwen3_disable_thinking"
Labels = Literal["length", "gold"]


def labelled_pairs(num_pairs: int, labels: Labels, seed: int, split: advice.Split = "train") -> list[PreferencePair]:
    """Pairs of the task; with labels by length the longer reply is the chosen one, which is the better in half."""
    pairs = [PreferencePair(**pair) for pair in advice.pairs(num_pairs, seed, split)]
    if labels == "gold":
        return pairs
    return [pair if len(get_text(pair.chosen)) > len(get_text(pair.rejected)) else pair.swapped() for pair in pairs]


async def start_policy(folder: Path, service: mint.ServiceClient) -> sft_train.SFTResult:
    """The policy that everything starts from, as in the pipeline's preset."""
    config = sft_train.Config(
        log_path=str(folder / "sft"),
        model_name=MODEL,
        renderer_name=RENDERER,
        dataset_builder=ListSFTDatasetBuilder(conversations=advice.conversations(1024, seed=0)),
        learning_rate=2e-3,
        eval_every=0,
    )
    return await sft_train.main(config, service)


async def preference_model(
    folder: Path, service: mint.ServiceClient, labels: Labels, num_pairs: int, num_members: int, std_coef: float
) -> ScorerSpec:
    """A preference model, or an ensemble of several that differ in their adapters and the order of the pairs."""
    specs_M: list[ScorerSpec] = []
    for member in range(num_members):
        config = preference_train.Config(
            log_path=str(folder / f"preference_{member}"),
            model_name=MODEL,
            renderer_name=RENDERER,
            readout=SequenceLogprob(is_per_token=True),
            learning_rate=3e-3,
            dataset_builder=ListPreferenceDatasetBuilder(
                pairs=labelled_pairs(num_pairs, labels, seed=0),
                held_out_pairs=labelled_pairs(128, labels, seed=1, split="heldout"),
                examples=PairExampleConfig(batch_size=8),
            ),
            seed=member,
        )
        specs_M.append((await preference_train.main(config, service)).scorer)
    first = specs_M[0]
    if num_members == 1:
        return first
    return ScorerSpec(
        first.sampler_path, MODEL, RENDERER, first.readout, RewardScale(), members=tuple(specs_M), std_coef=std_coef
    )


async def optimise(
    log_path: Path, service: mint.ServiceClient, start: sft_train.SFTResult, scorer: ScorerSpec, options: Any
) -> list[Measurement]:
    """GRPO against the scorer, with no penalty for KL; what its yardstick measured."""
    config = rl_train.Config(
        log_path=str(log_path),
        model_name=MODEL,
        load_checkpoint_path=start.state_path,
        dataset_builder=advice.AdviceDatasetBuilder(
            model_name=MODEL,
            renderer_name=RENDERER,
            group_size=8,
            groups_per_batch=8,
            num_epochs=8,
            scorer=scorer.build(service),
        ),
        learning_rate=options.learning_rate,
        max_tokens=64,
        max_steps=options.iterations,
        kl_reference_config=KLReferenceConfig(base_model=MODEL, load_checkpoint_path=start.sampler_path),
        eval_every=0,
        save_every=5,
        ttl_seconds=24 * 3600,
        num_groups_to_log=0,
        seed=options.seed,
    )
    yardstick = YardstickConfig(every=5, num_prompts=None)
    yardsticks = await yardstick.open(None, config, service, start.sampler_path)
    await rl_train.main(config, service, yardsticks)
    return read_measurements(log_path)


def plot(output: Path, runs: dict[str, Path]) -> None:
    """Reward and gold of the first run by iteration, with its alarms; gold of every run by KL."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    settings: Any = {
        "svg.hashsalt": "overoptimisation",
        "svg.fonttype": "none",
        "axes.spines.top": False,
    }
    with plt.rc_context(settings):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
        path = next(iter(runs.values()))
        measurements, best = read_measurements(path), read_best(path)
        assert best is not None, f"{path} has no measurement"
        iterations = [measured.iteration for measured in measurements]
        gold_axes = left.twinx()
        rewards = left.plot(
            iterations, _metric(measurements, "reward"), "o-", color="C0", markersize=3, label="reward (left)"
        )
        golds = gold_axes.plot(
            iterations, _metric(measurements, "independent"), "s-", color="C1", markersize=3, label="gold (right)"
        )
        alarms = [measured.iteration for measured in measurements if measured.metrics["yardstick/alarm"]]
        marks = gold_axes.plot(
            alarms,
            [measured.value for measured in measurements if measured.iteration in alarms],
            "v",
            color="C3",
            markersize=8,
            label="alarm",
        )
        kept = left.axvline(best.iteration, color="C2", linestyle="--", label="best by gold")
        left.set_xlabel("iteration")
        left.set_ylabel("reward on held-out prompts")
        gold_axes.set_ylabel("gold on held-out prompts")
        handles = [*rewards, *golds, *marks, kept]
        left.legend(handles=handles, frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
        for label, log_path in runs.items():
            run = read_measurements(log_path)
            right.plot(_metric(run, "kl_per_reply"), _metric(run, "independent"), "o-", markersize=3, label=label)
        right.spines["right"].set_visible(False)
        right.set_xlabel("KL to the start, nats per reply")
        right.set_ylabel("gold on held-out prompts")
        right.legend(frameon=False, fontsize=8)
        for axes in (left, right):
            axes.grid(alpha=0.3)
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None)
        plt.close(figure)


def _metric(measurements: Sequence[Measurement], name: str) -> list[float]:
    return [measured.metrics[f"yardstick/{name}"] for measured in measurements]


async def run(options: argparse.Namespace) -> None:
    """Train what is not trained yet, print the measurements, draw the picture."""
    service = mint.ServiceClient()
    start = await start_policy(options.folder, service)
    runs: dict[str, Path] = {}
    for num_members in options.members:
        label = "one preference model" if num_members == 1 else f"ensemble of {num_members}"
        scorer = await preference_model(
            options.folder, service, options.labels, options.pairs, num_members, options.std_coef
        )
        runs[label] = options.folder / f"rl_{num_members}"
        for measured in await optimise(runs[label], service, start, scorer, options):
            print(json.dumps({"run": label, "iteration": measured.iteration, **measured.metrics}), flush=True)
    plot(options.output, runs)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command of the module's docstring."""
    about = "Over-optimisation on the built-in task."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overoptimisation", description=about)
    parser.add_argument("folder", type=Path, help="where the runs go")
    parser.add_argument("output", type=Path, help="an .svg or .png file")
    parser.add_argument("--labels", choices=("length", "gold"), default="length", help="which reply is the chosen one")
    parser.add_argument("--pairs", type=int, default=1000, help="training pairs")
    parser.add_argument(
        "--members", type=int, nargs="+", default=[1], help="preference models, one run for each number"
    )
    parser.add_argument("--std-coef", type=float, default=1.0, help="of an ensemble: reward = mean - coef * std")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
