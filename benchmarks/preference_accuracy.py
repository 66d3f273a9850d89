"""Preference models on real pairs: each readout, the longer reply, and TRL's RewardTrainer, on the same held-out pairs.

    pip install -c constraints.txt -e '.[peer]'
    python -m benchmarks.preference_accuracy PAIRS.jsonl [--rows verdict trl ...] [--learning-rates 1e-3 3e-3]

One JSON line per row and learning rate: the accuracy on held-out prompts with its 95 % interval (Wilson), the same on
the held-out pairs whose chosen reply is not the longer one, and the seconds of training. Both sides get the same base
model, split, batch size, number of epochs, LoRA rank, linear schedule and pairs, in an order of their own; pairs above
--max-length tokens are left out for both. The row "longer" is the accuracy of preferring the longer reply.

Axes: _N preference pair.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import mint
from mint import builtin
from recipe.model_info import resolve_renderer_name
from recipe.optimizer_config import AdamConfig
from recipe.preference import train as preference_train
from recipe.preference.data import ListPreferenceDatasetBuilder, read_pairs, split_by_prompt
from recipe.preference.losses import wilson_interval
from recipe.preference.readouts import Readout, SequenceLogprob, Verdict, VerdictAndLikelihood
from recipe.preference.types import PairExampleConfig, PreferencePair, PreferenceSplit
from recipe.tokenizer_utils import get_tokenizer
from renderers import Renderer, get_renderer, get_text

READOUTS: dict[str, Readout] = {
    "verdict": Verdict(),
    "verdict_and_likelihood": VerdictAndLikelihood(),
    "sequence_logprob": SequenceLogprob(),
    "sequence_logprob_per_token": SequenceLogprob(is_per_token=True),
}
_TRL = "trl"


@dataclass(frozen=True)
class Rewards:
    """What a model says of the N held-out pairs, and how long its training took."""

    chosen_N: Sequence[float]
    rejected_N: Sequence[float]
    train_seconds: float


def split_pairs(path: str, model_name: str, max_length: int, held_out_share: float) -> PreferenceSplit:
    """The pairs of the file that fit, split by prompt, those of training in a random order."""
    renderer = _renderer(model_name)
    pairs = [pair for pair in read_pairs(path) if _longest(pair, renderer) <= max_length]
    split = split_by_prompt(pairs, held_out_share)
    return PreferenceSplit(random.Random(0).sample(split.train, len(split.train)), split.held_out)


def train_ours(split: PreferenceSplit, readout: Readout, learning_rate: float, options: argparse.Namespace) -> Rewards:
    """The preference stage, and its scorer on the held-out pairs."""

    async def run(folder: str) -> Rewards:
        service = mint.ServiceClient(home=folder)
        builder = ListPreferenceDatasetBuilder(
            pairs=list(split.train),
            held_out_pairs=list(split.held_out),
            examples=PairExampleConfig(batch_size=options.batch_size),
        )
        config = preference_train.Config(
            log_path=f"{folder}/run",
            dataset_builder=builder,
            model_name=options.model,
            readout=readout,
            learning_rate=learning_rate,
            lora_rank=options.rank,
            num_epochs=options.epochs,
            optimizer=AdamConfig(grad_clip_norm=1.0),
            seed=options.seed,
        )
        started = time.monotonic()
        scorer = (await preference_train.main(config, service)).scorer.build(service)
        seconds = time.monotonic() - started
        chosen_N = await scorer.score_many([pair.chosen_conversation for pair in split.held_out])
        rejected_N = await scorer.score_many([pair.rejected_conversation for pair in split.held_out])
        return Rewards(chosen_N, rejected_N, seconds)

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(folder))


def train_trl(split: PreferenceSplit, learning_rate: float, options: argparse.Namespace) -> Rewards:
    """TRL's RewardTrainer with a LoRA adapter on every linear layer and a new score head."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from trl.trainer.reward_config import RewardConfig  # pyright: ignore[reportMissingImports]
    from trl.trainer.reward_trainer import RewardTrainer  # pyright: ignore[reportMissingImports]

    def rows(pairs: Sequence[PreferencePair]) -> Dataset:
        columns = ("prompt", "chosen", "rejected")
        return Dataset.from_list(
            [dict(zip(columns, (pair.prompt, [pair.chosen], [pair.rejected]), strict=True)) for pair in pairs]
        )

    torch.manual_seed(options.seed)
    folder = str(builtin.model_dir()) if options.model == builtin.NAME else options.model
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model.config.pad_token_id = tokenizer.pad_token_id
    with tempfile.TemporaryDirectory() as output:
        arguments = RewardConfig(
            output_dir=output,
            learning_rate=learning_rate,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            max_length=None,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            seed=options.seed,
        )
        peft_config = LoraConfig(
            r=options.rank, task_type="SEQ_CLS", target_modules="all-linear", modules_to_save=["score"]
        )
        trainer = RewardTrainer(
            model=model,
            args=arguments,
            train_dataset=rows(split.train),
            processing_class=tokenizer,
            peft_config=peft_config,
        )
        started = time.monotonic()
        trainer.train()
        seconds = time.monotonic() - started
    trained = trainer.model
    assert isinstance(trained, torch.nn.Module)
    trained.eval()

    def score(conversation: Any) -> float:
        text = tokenizer.apply_chat_template(conversation, tokenize=False)
        with torch.no_grad():
            return trained(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits.item()

    return Rewards(
        [score(pair.chosen_conversation) for pair in split.held_out],
        [score(pair.rejected_conversation) for pair in split.held_out],
        seconds,
    )


def longer_reply(split: PreferenceSplit) -> Rewards:
    """The number of characters as the reward."""
    held_out = split.held_out
    return Rewards([len(get_text(p.chosen)) for p in held_out], [len(get_text(p.rejected)) for p in held_out], 0.0)


def row(name: str, split: PreferenceSplit, rewards: Rewards, **settings: Any) -> dict[str, Any]:
    """The figures of one model; a margin of exactly zero counts half."""
    margins_N = np.asarray(rewards.chosen_N) - np.asarray(rewards.rejected_N)
    lengths = longer_reply(split)
    is_not_longer_N = np.asarray(lengths.chosen_N) <= np.asarray(lengths.rejected_N)
    accuracy = _accuracy(margins_N)
    low, high = wilson_interval(accuracy, len(margins_N))
    return {
        "row": name,
        **settings,
        "accuracy": round(accuracy, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "accuracy_where_chosen_is_not_longer": round(_accuracy(margins_N[is_not_longer_N]), 4),
        "num_pairs": len(margins_N),
        "train_seconds": round(rewards.train_seconds, 1),
    }


def _accuracy(margins_N: np.ndarray) -> float:
    return float(((margins_N > 0) + 0.5 * (margins_N == 0)).mean())


def _renderer(model_name: str) -> Renderer:
    return get_renderer(resolve_renderer_name(None, model_name), get_tokenizer(model_name))


def _longest(pair: PreferencePair, renderer: Renderer) -> int:
    conversations = (pair.chosen_conversation, pair.rejected_conversation)
    return max(len(Verdict().render(conversation, renderer).tokens) for conversation in conversations)


def main(argv: list[str] | None = None) -> None:
    """Print one JSON line per row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", metavar="PAIRS")
    parser.add_argument("--rows", nargs="*", default=["longer", *READOUTS, _TRL], choices=["longer", *READOUTS, _TRL])
    parser.add_argument("--learning-rates", nargs="*", type=float, default=[1e-3, 3e-3])
    parser.add_argument("--model", default=builtin.NAME)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=640)
    parser.add_argument("--held-out-share", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    split = split_pairs(options.path, options.model, options.max_length, options.held_out_share)
    for name in options.rows:
        if name == "longer":
            print(json.dumps(row(name, split, longer_reply(split))), flush=True)
            continue
        train: Callable[[float], Rewards] = (
            (lambda rate: train_trl(split, rate, options))
            if name == _TRL
            else (lambda rate, readout=READOUTS[name]: train_ours(split, readout, rate, options))
        )
        for rate in options.learning_rates:
            print(json.dumps(row(name, split, train(rate), learning_rate=rate, epochs=options.epochs)), flush=True)


if __name__ == "__main__":
    main()
