"""DPO and its family side by side on the demo task.

    python -m benchmarks.dpo_variants [OUT_FOLDER] [--variants dpo simpo ...] [--seeds 0 1 2] [--steps 64]

One JSON line per run: the gold score of replies to held-out prompts before and after, how often the policy after is
preferred by gold, its KL to the one before, and the accuracy on held-out pairs. All runs start from one supervised
policy, take the same number of steps over the same pairs, and share the reference's logprobs. "kto, unpaired" gets the
replies of these pairs one by one, in random order, each with its thumb alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import mint
from envs import advice
from mint.seeds import derive_seed
from recipe.policy_comparison import compare_policies
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.dpo import train as dpo_train
from recipe.preference.dpo.config import Config, LossConfig
from recipe.preference.dpo.labelled_replies import ListLabelledReplyDatasetBuilder
from recipe.preference.types import PairExampleConfig
from recipe.run_log import read_metrics
from recipe.supervised import train as sft_train
from recipe.supervised.data import ListSFTDatasetBuilder
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, get_renderer

MODEL, RENDERER = "mint-tiny", "qwen3_disable_thinking"
PAIRS_PER_STEP = 8
UNPAIRED = "kto, unpaired"

VARIANTS: dict[str, LossConfig] = {
    "dpo": LossConfig(),
    "dpo, beta 0.05": LossConfig(beta=0.05),
    "dpo, beta 0.3": LossConfig(beta=0.3),
    "cdpo": LossConfig(label_smoothing=0.1),
    "dpo + nll": LossConfig(nll_coef=1.0),
    "ipo": LossConfig(name="ipo"),
    "hinge": LossConfig(name="hinge"),
    "slic": LossConfig(name="slic"),
    "simpo": LossConfig(name="simpo"),
    "orpo": LossConfig(name="orpo"),
    "kto": LossConfig(name="kto"),
    UNPAIRED: LossConfig(name="kto"),
}


async def supervised_start(folder: Path, service: mint.ServiceClient) -> sft_train.SFTResult:
    """The policy that all runs start from; trained once per folder."""
    config = sft_train.Config(
        log_path=str(folder / "sft"),
        model_name=MODEL,
        renderer_name=RENDERER,
        dataset_builder=ListSFTDatasetBuilder(conversations=advice.conversations(1024, seed=0)),
        learning_rate=2e-3,
        eval_every=0,
        save_every=0,
    )
    return await sft_train.main(config, service)


def pairs(num_steps: int) -> ListPreferenceDatasetBuilder:
    """The pairs of a run, and others on topics of their own."""
    return ListPreferenceDatasetBuilder(
        pairs=[dict(pair) for pair in advice.pairs(num_steps * PAIRS_PER_STEP, seed=0)],
        held_out_pairs=[dict(pair) for pair in advice.pairs(128, seed=1, split="heldout")],
        examples=PairExampleConfig(batch_size=PAIRS_PER_STEP),
    )


def single_replies(num_steps: int) -> ListLabelledReplyDatasetBuilder:
    """The replies of the same pairs, one by one."""

    def rows(from_pairs: list[Any], seed: int) -> list[dict[str, Any]]:
        replies = [
            {"prompt": pair["prompt"], "completion": pair[side], "label": side == "chosen"}
            for pair in from_pairs
            for side in ("chosen", "rejected")
        ]
        random.Random(seed).shuffle(replies)
        return replies

    builder = pairs(num_steps)
    assert builder.held_out_pairs is not None
    return ListLabelledReplyDatasetBuilder(
        replies=rows(builder.pairs, 0),
        held_out_replies=rows(builder.held_out_pairs, 1),
        examples=PairExampleConfig(batch_size=2 * PAIRS_PER_STEP),
    )


async def measure(
    name: str, seed: int, folder: Path, options: argparse.Namespace, start: sft_train.SFTResult
) -> dict[str, Any]:
    """One run, as a row."""
    service = mint.ServiceClient(home=str(folder / "mint_home"))
    loss = VARIANTS[name]
    config = Config(
        log_path=str(folder / f"{list(VARIANTS).index(name):02d}_{seed}_{options.learning_rate:g}"),
        model_name=MODEL,
        renderer_name=RENDERER,
        dataset_builder=single_replies(options.steps) if name == UNPAIRED else pairs(options.steps),
        loss=loss,
        load_checkpoint_path=start.state_path,
        reference_cache_path=str(folder / "reference_logprobs") if loss.row.uses_reference else None,
        learning_rate=options.learning_rate,
        seed=seed,
    )
    started = time.perf_counter()
    result = await dpo_train.main(config, service)
    seconds = time.perf_counter() - started

    async def gold(conversation: list[Message]) -> float:
        return advice.gold_of_conversation(conversation)

    compared = await compare_policies(
        await service.create_sampling_client_async(model_path=start.sampler_path),
        await service.create_sampling_client_async(model_path=result.sampler_path),
        advice.prompts("rl_heldout"),
        get_renderer(RENDERER, get_tokenizer(MODEL)),
        gold,
        replies_per_prompt=options.replies,
        max_tokens=48,
        seed=derive_seed(seed, "comparison"),
    )
    tested = [line for line in read_metrics(config.log_path) if "test/loss" in line]
    accuracy = "test/label_accuracy" if name == UNPAIRED else "test/pair_accuracy"
    return {
        "variant": name,
        "seed": seed,
        "steps": options.steps,
        "gold_before": compared.before,
        "gold_after": compared.after,
        "win_rate": compared.win_rate,
        "kl_per_reply": compared.kl_per_reply,
        "accuracy": tested[-1][accuracy],
        "chosen_logprob_before": tested[0]["test/chosen_logprob_per_token"],
        "chosen_logprob_after": tested[-1]["test/chosen_logprob_per_token"],
        "seconds": seconds,
    }


async def run(options: argparse.Namespace) -> None:
    """All runs, seeds outermost."""
    folder = Path(options.out or tempfile.mkdtemp(prefix="dpo_variants_"))
    start = await supervised_start(folder, mint.ServiceClient(home=str(folder / "mint_home")))
    for seed in options.seeds:
        for name in options.variants:
            print(json.dumps(await measure(name, seed, folder, options, start)), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", help="folder of the runs; a run that is there is not repeated")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--replies", type=int, default=1, help="to each held-out prompt, for the comparison")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
