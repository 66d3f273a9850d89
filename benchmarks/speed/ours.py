"""Our side of the speed rows: the stages' own datums and losses through the public API, on the embedded engine.

    python -m benchmarks.speed.ours KIND MODEL_FOLDER DATA VARIANT [--steps 3] [--warmup 1]

Axes: _P problems, _G group members, _D datums, _T tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import mint
from benchmarks.speed import workloads
from benchmarks.speed.measure import Measured, Meter
from benchmarks.speed.side_command import print_one
from benchmarks.speed.workloads import LEARNING_RATE, LORA_RANK, Pair, Sizes
from mint import types
from recipe.preference.dpo.config import LossConfig
from recipe.preference.dpo.examples import ExampleReply, Role
from recipe.preference.dpo.reply_batches import ReplyBatch
from recipe.preference.dpo.train import batch_loss
from recipe.preference.readouts import JUDGE_QUESTION, RenderedReply, Verdict
from recipe.preference.rendered_pairs import PairBatch, PairSlots
from recipe.preference.train import pair_loss
from recipe.rl.advantages import centred
from recipe.rl.datums import TrainingSequence
from recipe.supervised.data import datum_from_model_input_weights
from recipe.supervised.nll import mean_normalised

T = TypeVar("T")
VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
}
_ADAM = types.AdamParams(learning_rate=LEARNING_RATE, grad_clip_norm=1.0)
_KINDS = ("sft", "preference", "dpo", "grpo", "grpo_prefix")


@dataclass
class Side:
    """What every kind of row needs: the clients, the data, and how much to do."""

    service: mint.ServiceClient
    client: mint.TrainingClient
    model_folder: Path
    data: Path
    sizes: Sizes
    steps: int
    warmup: int

    @property
    def num_steps(self) -> int:
        """Steps in all, those that warm up included."""
        return self.steps + self.warmup

    def train(self, batches: Sequence[tuple[list[types.Datum], Callable[[], Any]]], num_pairs: int = 0) -> Measured:
        """One optimizer step per batch, each submitted as the stages do: the loss, and the step right behind it."""
        meter = Meter(self.warmup)
        for _, forward_backward in batches:
            with meter.step():
                loss = forward_backward()
                step = self.client.optim_step(_ADAM)
                with meter.phase("forward_backward"):
                    loss.result()
                with meter.phase("optim_step"):
                    step.result()
        counted = [datums_D for datums_D, _ in batches[self.warmup :]]
        tokens = sum(datum.model_input.length for datums_D in counted for datum in datums_D)
        return meter.measured(tokens=tokens, pairs=num_pairs * self.steps)


def run(kind: str, model_folder: Path, data: Path, variant: str, sizes: Sizes, steps: int, warmup: int) -> Measured:
    """Measure `steps` optimizer steps after `warmup` others."""
    with tempfile.TemporaryDirectory() as home:
        service = mint.ServiceClient(home=home, **VARIANTS[variant])
        client = service.create_lora_training_client(str(model_folder), rank=LORA_RANK, seed=0, train_unembed=False)
        side = Side(service, client, model_folder, data, sizes, steps, warmup)
        return {"sft": _sft, "preference": _preference, "dpo": _dpo}.get(kind, lambda side: _grpo(side, kind))(side)


def _sft(side: Side) -> Measured:
    tokenizer = workloads.load_tokenizer(side.model_folder)
    count = side.num_steps * side.sizes.conversations
    examples = workloads.conversations(side.data / "gsm8k_train.jsonl", tokenizer, count)
    datums = [
        datum_from_model_input_weights(types.ModelInput.from_ints(example.tokens_T), example.weights_T)
        for example in examples
    ]
    batches = [list(batch) for batch in _batched(datums, side.sizes.conversations)]
    return side.train(
        [(batch, lambda batch=batch: side.client.forward_backward(mean_normalised(batch), "cross_entropy"))
         for batch in batches]
    )  # fmt: skip


def _pairs(side: Side) -> list[Sequence[Pair]]:
    tokenizer = workloads.load_tokenizer(side.model_folder)
    count = side.num_steps * side.sizes.pairs
    pairs = workloads.pairs(side.data / "preference_pairs.jsonl", tokenizer, count)
    return _batched(pairs, side.sizes.pairs)


def _preference(side: Side) -> Measured:
    """The preference stage's default: the verdict, asked for after each reply."""
    tokenizer = workloads.load_tokenizer(side.model_folder)
    question = f"\n<|im_start|>user\n{JUDGE_QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nYes"
    question_T = tokenizer(question).input_ids
    readout = Verdict()

    def rendered(prompt_T: list[int], reply_T: list[int]) -> RenderedReply:
        tokens_T = prompt_T + reply_T + question_T
        weights_T = np.zeros(len(tokens_T), dtype=np.float32)
        weights_T[-1] = 1.0
        return RenderedReply(tokens_T, weights_T)

    batches = []
    for pairs in _pairs(side):
        replies_D = [rendered(pair.prompt_T, reply_T) for pair in pairs for reply_T in (pair.chosen_T, pair.rejected_T)]
        slots_N = [PairSlots(i, 2 * i, 2 * i + 1) for i in range(len(pairs))]
        batch = PairBatch([reply.to_datum() for reply in replies_D], replies_D, slots_N)
        batches.append(
            (
                batch.datums_D,
                lambda batch=batch: side.client.forward_backward_custom(batch.datums_D, pair_loss(batch, readout)),
            )
        )
    return side.train(batches, side.sizes.pairs)


def _dpo(side: Side) -> Measured:
    """DPO with the reference's logprobs computed in the step, so that both sides do the same work in it."""
    base = side.service.create_sampling_client(base_model=str(side.model_folder))
    config = LossConfig(name="dpo", beta=0.1)
    meter = Meter(side.warmup)
    tokens = 0
    for pairs in _pairs(side):
        rendered_D = [
            RenderedReply(pair.prompt_T + reply_T, _reply_weights(pair.prompt_T, reply_T))
            for pair in pairs
            for reply_T in (pair.chosen_T, pair.rejected_T)
        ]
        if meter.is_warm:
            tokens += sum(len(reply.tokens) - 1 for reply in rendered_D)
        with meter.step():
            with meter.phase("reference"):
                futures = [base.compute_logprobs(reply.model_input(), reply.num_scored) for reply in rendered_D]
                reference_D = [
                    float(np.sum(np.asarray(future.result()[-reply.num_scored :], dtype=np.float64)))
                    for future, reply in zip(futures, rendered_D, strict=True)
                ]
            roles = (Role.CHOSEN, Role.REJECTED) * len(pairs)
            replies_D = [
                ExampleReply(role, reply, reference)
                for role, reply, reference in zip(roles, rendered_D, reference_D, strict=True)
            ]
            batch = ReplyBatch([reply.rendered.to_datum() for reply in replies_D], replies_D, len(pairs))
            loss = side.client.forward_backward_custom(batch.datums_D, batch_loss(batch, config))
            step = side.client.optim_step(_ADAM)
            with meter.phase("forward_backward"):
                loss.result()
            with meter.phase("optim_step"):
                step.result()
    return meter.measured(tokens=tokens, pairs=side.sizes.pairs * side.steps)


def _batched(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _reply_weights(prompt_T: list[int], reply_T: list[int]) -> np.ndarray:
    return np.asarray([0.0] * len(prompt_T) + [1.0] * len(reply_T), dtype=np.float32)


def _grpo(side: Side, kind: str) -> Measured:
    """One on-policy iteration per step: sample every group member by a request of its own, score, train."""
    tokenizer = workloads.load_tokenizer(side.model_folder)
    sizes = side.sizes
    texts = workloads.prompts(
        side.data / "gsm8k_train.jsonl",
        tokenizer,
        side.num_steps * sizes.problems,
        shared_prefix=512 if kind == "grpo_prefix" else 0,
    )
    params = types.SamplingParams(max_tokens=sizes.new_tokens, temperature=1.0, stop=[])
    meter = Meter(side.warmup)
    sampled, trained, rewards = 0, 0, []
    for texts_P in _batched(texts, sizes.problems):
        prompts_P = [tokenizer(text).input_ids for text in texts_P]
        with meter.step():
            with meter.phase("sample"):
                sampler = side.client.save_weights_and_get_sampling_client()
                futures = [
                    [sampler.sample(types.ModelInput.from_ints(prompt_T), 1, params) for _ in range(sizes.group_size)]
                    for prompt_T in prompts_P
                ]
                replies_PG = [[future.result().sequences[0] for future in futures_G] for futures_G in futures]
            sequences_D = []
            for prompt_T, replies_G in zip(prompts_P, replies_PG, strict=True):
                rewards_G = [workloads.even_token_share(list(reply.tokens)) for reply in replies_G]
                rewards.append(rewards_G)
                for reply, advantage in zip(replies_G, centred(rewards_G).advantages(rewards_G), strict=True):
                    sequences_D.append(_training_sequence(prompt_T, reply, advantage))
            with meter.phase("train"):
                datums_D = [sequence.to_datum() for sequence in sequences_D]
                loss = side.client.forward_backward(datums_D, "importance_sampling")
                step = side.client.optim_step(_ADAM)
                loss.result()
                step.result()
            del sampler
            if meter.is_warm:
                sampled += sum(len(reply.tokens) for replies_G in replies_PG for reply in replies_G)
                trained += sum(len(sequence.tokens) - 1 for sequence in sequences_D)
    return meter.measured(tokens=trained, sampled_tokens=sampled, notes={"mean_reward": float(np.mean(rewards))})


def _training_sequence(prompt_T: list[int], reply: types.SampledSequence, advantage: float) -> TrainingSequence:
    num_given, num_sampled = len(prompt_T) - 1, len(reply.tokens)
    assert reply.logprobs is not None
    zeros_T = np.zeros(num_given, dtype=np.float32)
    return TrainingSequence(
        tokens=[*prompt_T, *reply.tokens],
        is_sampled_T=np.asarray([False] * num_given + [True] * num_sampled),
        sampler_logprobs_T=np.concatenate([zeros_T, np.asarray(reply.logprobs, dtype=np.float32)]),
        advantages_T=np.concatenate([zeros_T, np.full(num_sampled, advantage, dtype=np.float32)]),
    )


if __name__ == "__main__":
    print_one(__doc__, _KINDS, VARIANTS, run)
