"""TRL's side of the training rows: SFTTrainer, RewardTrainer and DPOTrainer on the same token ids.

    pip install -c constraints.txt -e '.[peer]'
    python -m benchmarks.speed.peer_training KIND MODEL_FOLDER DATA VARIANT [--steps 3 --warmup 1]

MODEL_FOLDER is one that `models` made; DATA holds gsm8k_train.jsonl and preference_pairs.jsonl. The last line printed
is `Measured` as JSON. A variant is one way to run TRL; `BEST` names those worth a row on a processor. In all of them
the adapter's shape, the optimizer's settings, the sequences of an optimizer step and their tokens are the same, except
that packing and grouping by length choose which sequences meet in a step.

Axes: _B sequences or pairs of a batch, _T tokens.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, TrainerCallback

from benchmarks.speed.measure import Measured, Meter
from benchmarks.speed.side_command import print_one
from benchmarks.speed.workloads import (
    LEARNING_RATE,
    LORA_ALPHA,
    LORA_RANK,
    Sizes,
    conversations,
    load_tokenizer,
    pairs,
)

KINDS = ("sft", "preference", "dpo")
_PACKED_LENGTH = 1024  # above the longest conversation, so that packing cuts none
_TARGET_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Variant:
    """One configuration of TRL."""

    # Of the base model.
    weights: torch.dtype = torch.float32
    # bfloat16 matrix products through torch.autocast (bf16=True).
    has_autocast: bool = False
    # PEFT keeps the adapter in float32 unless this says otherwise.
    adapter: torch.dtype | None = None
    # Sequences of one forward pass, the rest of the step by gradient accumulation; a pair is two and never divided.
    # None: all at once.
    sequences_per_pass: int | None = None
    # Sequences one after another in one row instead of padding them (SFT).
    is_padding_free: bool = False
    # TRL's best-fit-decreasing packing, one packed row per pass (SFT).
    is_packed: bool = False
    # TRL cannot group pairs: the trainers drop the column of lengths (SFT).
    is_grouped_by_length: bool = False
    # The reference's logprobs of all pairs before training instead of in every step (DPO).
    has_precomputed_reference: bool = False
    has_gradient_checkpointing: bool = False
    # torch.compile, which takes minutes and goes on in the first steps: measure it with --warmup 2 and more.
    is_compiled: bool = False
    kinds: tuple[str, ...] = KINDS


_BF16 = torch.bfloat16
_PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"weights": _BF16},
    "bf16_autocast": {"has_autocast": True},
    "bfloat16_autocast": {"weights": _BF16, "has_autocast": True},
    "bfloat16_adapter": {"weights": _BF16, "adapter": _BF16},
}
_BATCHINGS: dict[str, dict[str, Any]] = {
    "": {},
    "_passes": {"sequences_per_pass": 4},
    "_singles": {"sequences_per_pass": 1},
    "_grouped": {"sequences_per_pass": 4, "is_grouped_by_length": True, "kinds": ("sft",)},
    "_packing": {"is_packed": True, "kinds": ("sft",)},
    "_padding_free": {"is_padding_free": True, "kinds": ("sft",)},
    "_padding_free_passes": {"sequences_per_pass": 4, "is_padding_free": True, "kinds": ("sft",)},
    "_precomputed": {"has_precomputed_reference": True, "kinds": ("dpo",)},
    "_precomputed_passes": {"sequences_per_pass": 4, "has_precomputed_reference": True, "kinds": ("dpo",)},
    "_precomputed_singles": {"sequences_per_pass": 1, "has_precomputed_reference": True, "kinds": ("dpo",)},
    "_checkpointing": {"sequences_per_pass": 4, "has_gradient_checkpointing": True},
    "_compiled_singles": {"sequences_per_pass": 1, "is_compiled": True},
}
VARIANTS: dict[str, Variant] = {
    precision + batching: Variant(**_PRECISIONS[precision], **_BATCHINGS[batching])
    for batching in _BATCHINGS
    for precision in _PRECISIONS
}

# One sequence or pair per pass wastes least on padding and attention; which precision wins depends on the model's size.
BEST: dict[str, list[str]] = {kind: ["float32_singles", "bfloat16_singles", "bf16_autocast_singles"] for kind in KINDS}


def run(kind: str, model_folder: Path, data: Path, variant: str, sizes: Sizes, steps: int, warmup: int) -> Measured:
    """Train `warmup` + `steps` optimizer steps and measure the last `steps`.

    Tokens are those of the sequences, without padding. The reference logprobs of "precomputed" variants come before the
    first step: phases["reference"] is their time for the measured pairs, on top of step_seconds.
    """
    setting = VARIANTS[variant]
    if kind not in setting.kinds:
        raise ValueError(f"variant {variant!r} is one of {', '.join(setting.kinds)}, not of {kind}.")
    batch_size = sizes.conversations if kind == "sft" else sizes.pairs
    num_steps = steps + warmup
    # Packed rows do not divide evenly among the steps; one more batch keeps the last step full.
    rows = _rows(kind, model_folder, data, (num_steps + setting.is_packed) * batch_size)
    with tempfile.TemporaryDirectory() as output:
        arguments = _arguments(kind, setting, output, rows, batch_size, num_steps)
        trainer, reference_seconds = _trainer(kind, setting, model_folder, arguments, rows)
        collator = _Counter(trainer.data_collator)
        trainer.data_collator = collator
        meter = Meter(warmup)
        clock = _StepClock(meter)
        trainer.add_callback(clock)
        trainer.compute_loss = _timed(meter, "forward", trainer.compute_loss)
        trainer.accelerator.backward = _timed(meter, "backward", trainer.accelerator.backward)
        loss = trainer.train().training_loss
    skipped = warmup * arguments["gradient_accumulation_steps"]
    used = slice(skipped, num_steps * arguments["gradient_accumulation_steps"])
    measured = meter.measured(tokens=sum(collator.tokens_B[used]), pairs=0 if kind == "sft" else steps * batch_size)
    if setting.has_precomputed_reference:
        measured.phases["reference"] = reference_seconds * steps / num_steps
    measured.notes = {
        "variant": variant,
        "mean_loss": loss,
        "positions": sum(collator.positions_B[used]),
        "passes_per_step": arguments["gradient_accumulation_steps"],
        "threads": torch.get_num_threads(),
        "cpu_seconds": clock.cpu_seconds[warmup:],
    }
    return measured


def _rows(kind: str, model_folder: Path, data: Path, count: int) -> list[dict[str, Any]]:
    """The examples in the columns that a trainer takes as already tokenized."""
    tokenizer = load_tokenizer(model_folder)
    if kind == "sft":
        return [
            {
                "input_ids": example.tokens_T,
                "labels": [
                    token if weight else -100 for token, weight in zip(example.tokens_T, example.weights_T, strict=True)
                ],
                "length": len(example.tokens_T),
            }
            for example in conversations(data / "gsm8k_train.jsonl", tokenizer, count)
        ]
    rows = []
    for pair in pairs(data / "preference_pairs.jsonl", tokenizer, count):
        chosen_T, rejected_T = pair.prompt_T + pair.chosen_T, pair.prompt_T + pair.rejected_T
        length = max(len(chosen_T), len(rejected_T))
        if kind == "preference":
            rows.append({"chosen_ids": chosen_T, "rejected_ids": rejected_T, "length": length})
        else:
            columns = {"prompt_ids": pair.prompt_T, "chosen_ids": pair.chosen_T, "rejected_ids": pair.rejected_T}
            rows.append({**columns, "length": length})
    if len(rows) < count:
        raise ValueError(f"{data} has {len(rows)} pairs that fit, {count} are needed: run fewer steps.")
    return rows


def _arguments(
    kind: str, setting: Variant, output: str, rows: list[dict[str, Any]], batch_size: int, num_steps: int
) -> dict[str, Any]:
    """The fields of TRL's config for this row."""
    if setting.is_packed:
        per_pass = 1
        num_tokens = sum(row["length"] for row in rows) * batch_size / len(rows)
        passes = max(round(num_tokens / _PACKED_LENGTH), 1)
    else:
        sequences = setting.sequences_per_pass
        items = None if sequences is None else sequences if kind == "sft" else max(sequences // 2, 1)
        per_pass = batch_size if items is None else min(items, batch_size)
        passes, rest = divmod(batch_size, per_pass)
        if rest:
            raise ValueError(f"a step of {batch_size} does not divide into passes of {per_pass}.")
    arguments: dict[str, Any] = {
        "output_dir": output,
        "max_steps": num_steps,
        "per_device_train_batch_size": per_pass,
        "gradient_accumulation_steps": passes,
        "train_sampling_strategy": "group_by_length" if setting.is_grouped_by_length else "sequential",
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "max_length": _PACKED_LENGTH if setting.is_packed else None,
        "gradient_checkpointing": setting.has_gradient_checkpointing,
        "bf16": setting.has_autocast,
        "torch_compile": setting.is_compiled,
        "use_cpu": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
    }
    if kind == "sft":
        arguments |= {"packing": setting.is_packed, "padding_free": setting.is_padding_free}
    if kind == "dpo":
        arguments |= {"beta": 0.1, "precompute_ref_log_probs": setting.has_precomputed_reference}
    return arguments


def _trainer(
    kind: str, setting: Variant, model_folder: Path, arguments: dict[str, Any], rows: list[dict[str, Any]]
) -> tuple[Any, float]:
    """TRL's trainer of the stage, and the seconds that precomputing the reference took."""
    from trl.trainer.dpo_config import DPOConfig  # pyright: ignore[reportMissingImports]
    from trl.trainer.reward_config import RewardConfig  # pyright: ignore[reportMissingImports]
    from trl.trainer.reward_trainer import RewardTrainer  # pyright: ignore[reportMissingImports]
    from trl.trainer.sft_config import SFTConfig  # pyright: ignore[reportMissingImports]
    from trl.trainer.sft_trainer import SFTTrainer  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    is_preference = kind == "preference"
    if is_preference:
        model = AutoModelForSequenceClassification.from_pretrained(model_folder, num_labels=1, dtype=setting.weights)
    else:
        model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=setting.weights)
    adapter = LoraConfig(
        r=LORA_RANK,
        lora_alpha=LORA_ALPHA,
        lora_dropout=0.0,
        target_modules=_TARGET_MODULES,
        task_type="SEQ_CLS" if is_preference else "CAUSAL_LM",
        modules_to_save=["score"] if is_preference else None,
    )
    trainers = {"sft": (SFTTrainer, SFTConfig), "preference": (RewardTrainer, RewardConfig)}
    trainer_class, config_class = trainers[kind] if kind != "dpo" else (_tokenized_dpo_trainer(), DPOConfig)
    trainer = trainer_class(
        model=model,
        args=config_class(**arguments),
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer(model_folder),
        peft_config=adapter,
    )
    if setting.adapter is not None:
        # The effect of get_peft_model(autocast_adapter_dtype=False). A model that already has its adapter would give
        # DPOTrainer a second one as the reference, which is slower than the base model.
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(setting.adapter)
    return trainer, getattr(trainer, "reference_seconds", 0.0)


def _tokenized_dpo_trainer() -> type[Any]:
    """DPOTrainer for pairs that are token ids already: TRL 1.16 only takes text, whose ids could differ."""
    from trl.trainer.dpo_trainer import DPOTrainer  # pyright: ignore[reportMissingImports]

    class TokenizedDPOTrainer(DPOTrainer):
        reference_seconds = 0.0

        def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
            return dataset

        def _precompute_ref_logps(self, *arguments: Any, **named: Any) -> Dataset:
            started = time.perf_counter()
            dataset = super()._precompute_ref_logps(*arguments, **named)
            self.reference_seconds += time.perf_counter() - started
            return dataset

    return TokenizedDPOTrainer


class _StepClock(TrainerCallback):
    """A meter's steps from the end of one optimizer step to the end of the next, batches included.

    cpu_seconds: processor time of every step, all threads together; on a shared machine it says more than the clock.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.cpu_seconds: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._begin_step()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._step.__exit__(None, None, None)
        self.cpu_seconds.append(time.process_time() - self._cpu_started)
        self._begin_step()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizer = self._meter.phase("optimizer")
        self._optimizer.__enter__()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizer.__exit__(None, None, None)

    def _begin_step(self) -> None:
        self._cpu_started = time.process_time()
        self._step = self._meter.step()
        self._step.__enter__()


@dataclass
class _Counter:
    """A data collator that counts the real tokens and the positions, padding included, of every batch it makes."""

    collate: Callable[[list[dict[str, Any]]], dict[str, Any]]
    tokens_B: list[int] = field(default_factory=list)
    positions_B: list[int] = field(default_factory=list)

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = self.collate(examples)
        is_token = batch.get("attention_mask", batch["input_ids"].new_ones(batch["input_ids"].shape))
        self.tokens_B.append(int(is_token.sum()))
        self.positions_B.append(batch["input_ids"].numel())
        return batch


def _timed(meter: Meter, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call as a phase of the meter."""

    def timed(*arguments: Any, **named: Any) -> Any:
        with meter.phase(name):
            return call(*arguments, **named)

    return timed


if __name__ == "__main__":
    print_one(__doc__, KINDS, VARIANTS, run)
