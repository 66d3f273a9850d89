"""TRL's GRPOTrainer on the rows grpo and grpo_prefix.

    python -m benchmarks.speed.peer_grpo KIND MODEL_FOLDER DATA VARIANT [--steps 3] [--warmup 1]

KIND is grpo (the questions as they are) or grpo_prefix (512 tokens of worked examples before every question). Every
step samples for prompts of its own and takes one gradient step on them: no reference model, no second epoch. No token
ends a reply (the end-of-sequence id given to the generator lies beyond the vocabulary), so every sample has exactly the
tokens that were asked for, without a logits processor that forbids the end.

Phases: "sample" is GRPOTrainer._generate_single_turn, which takes the prompts' token ids, pads them where its generator
wants that, and returns the token ids of the samples. "train" is the rest of the step: tokenizing, reward, advantages,
loss, backward and the optimizer. Tokens are prompt and completion of every sample in full, which is what TRL trains on.

The name of a variant: precision ("float32", "bfloat16" weights, "bf16_autocast" over float32 weights, or
"bfloat16_autocast" over bfloat16 weights, where autocast concerns the float32 adapters), then how it samples (nothing:
`generate` with a cache that grows; "static": a cache of fixed size; "continuous": transformers' continuous batching,
"continuous_N" with at most N requests in a batch), then "parts_N" where the batch is trained in N parts whose gradients
add up.

Axes: _N samples of one step, _T tokens of one sequence.
"""

from __future__ import annotations

import math
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase, TrainerCallback

from benchmarks.speed import workloads
from benchmarks.speed.measure import Measured, Meter
from benchmarks.speed.side_command import print_one
from benchmarks.speed.workloads import Sizes

SHARED_PREFIX = {"grpo": 0, "grpo_prefix": 512}
_PAGE_TOKENS = 64


@dataclass(frozen=True)
class Variant:
    """One configuration of GRPOTrainer.

    cache: transformers' cache implementation for `generate`; None for its default. max_requests: requests that one
    batch of continuous batching holds; None where `generate` samples. max_batch_tokens: tokens that such a batch reads
    at once. num_parts: pieces of the batch that are trained one after the other.
    """

    dtype: torch.dtype = torch.float32
    is_autocast: bool = False
    cache: str | None = None
    max_requests: int | None = None
    max_batch_tokens: int = 1024
    num_parts: int = 1


VARIANTS: dict[str, Variant] = {
    "float32": Variant(),
    "float32_static": Variant(cache="static"),
    "float32_continuous": Variant(max_requests=64),
    "float32_continuous_8": Variant(max_requests=8),
    "float32_parts_8": Variant(num_parts=8),
    "bfloat16": Variant(torch.bfloat16),
    "bfloat16_static": Variant(torch.bfloat16, cache="static"),
    "bfloat16_continuous": Variant(torch.bfloat16, max_requests=64),
    "bfloat16_continuous_8": Variant(torch.bfloat16, max_requests=8),
    "bfloat16_parts_4": Variant(torch.bfloat16, num_parts=4),
    "bfloat16_parts_8": Variant(torch.bfloat16, num_parts=8),
    "bfloat16_autocast": Variant(torch.bfloat16, is_autocast=True),
    "bfloat16_autocast_parts_8": Variant(torch.bfloat16, is_autocast=True, num_parts=8),
    "bf16_autocast": Variant(is_autocast=True),
    "bf16_autocast_continuous": Variant(is_autocast=True, max_requests=64),
}
# The candidates for the best configuration of TRL on two cores.
BEST: list[str] = ["bfloat16_autocast", "bfloat16_autocast_parts_8", "bfloat16_parts_8"]


class StepClock(TrainerCallback):
    """Feeds a meter: a step lasts from the end of one optimizer step to the end of the next."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._step: AbstractContextManager[None] | None = None

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """The first step starts."""
        self._start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """A step is over, and the next starts."""
        assert self._step is not None
        self._step.__exit__(None, None, None)
        self._start()

    def _start(self) -> None:
        self._step = self._meter.step()
        self._step.__enter__()


class Samples:
    """What was sampled in the measured steps, and the rewards of each step."""

    def __init__(self) -> None:
        self.sampled_tokens = 0
        self.tokens = 0
        self.lengths: set[int] = set()
        self.distinct_rewards: list[int] = []

    def count(self, prompts_NT: list[list[int]], completions_NT: list[list[int]]) -> None:
        """Add the tokens of one measured step."""
        lengths_N = [len(completion_T) for completion_T in completions_NT]
        self.sampled_tokens += sum(lengths_N)
        self.tokens += sum(map(len, prompts_NT)) + sum(lengths_N)
        self.lengths |= set(lengths_N)

    def reward(self, completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        """TRL's reward function: the arguments have the names it calls them by."""
        rewards_N = [workloads.even_token_share(completion_T) for completion_T in completion_ids]
        self.distinct_rewards.append(len(set(rewards_N)))
        return rewards_N


def run(kind: str, model_folder: Path, data: Path, variant: str, sizes: Sizes, steps: int, warmup: int) -> Measured:
    """Train for warmup + steps optimizer steps, and measure the last `steps` of them."""
    settings = VARIANTS[variant]
    tokenizer = workloads.load_tokenizer(model_folder)
    texts = workloads.prompts(
        data / "gsm8k_train.jsonl", tokenizer, sizes.problems * (steps + warmup), SHARED_PREFIX[kind]
    )
    samples = Samples()
    with tempfile.TemporaryDirectory() as output:
        arguments = _arguments(output, settings, sizes, warmup + steps, _longest(texts, tokenizer))
        trainer = _trainer(model_folder, settings, arguments, texts, tokenizer, samples)
        adapters = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
        before = {name: weight.detach().clone() for name, weight in adapters.items()}
        meter = Meter(warmup)
        _sample_under(trainer, meter, samples)
        trainer.add_callback(StepClock(meter))
        trainer.train()
    changed = sum(not torch.equal(before[name], weight.detach().to(before[name])) for name, weight in adapters.items())
    summary = trainer.state.log_history[-1]
    measured = meter.measured(
        sampled_tokens=samples.sampled_tokens,
        tokens=samples.tokens,
        notes={
            "variant": variant,
            "completion_lengths": sorted(samples.lengths),
            "distinct_rewards": samples.distinct_rewards,
            "changed_adapters": f"{changed} of {len(adapters)}",
            **{name: summary[name] for name in ("train_loss", "reward", "reward_std", "entropy") if name in summary},
        },
    )
    measured.phases["train"] = sum(measured.step_seconds) - measured.phases["sample"]
    return measured


def _longest(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> int:
    return max(len(prompt_T) for prompt_T in tokenizer(texts).input_ids)


def _arguments(output: str, settings: Variant, sizes: Sizes, max_steps: int, longest_prompt: int) -> Any:
    """TRL's GRPOConfig of a variant."""
    from trl.trainer.grpo_config import GRPOConfig  # pyright: ignore[reportMissingImports]

    num_samples = sizes.problems * sizes.group_size
    return GRPOConfig(
        output_dir=output,
        max_steps=max_steps,
        per_device_train_batch_size=num_samples // settings.num_parts,
        gradient_accumulation_steps=settings.num_parts,
        num_generations=sizes.group_size,
        max_completion_length=sizes.new_tokens,
        num_iterations=1,
        beta=0.0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        cache_implementation=settings.cache,
        use_transformers_continuous_batching=settings.max_requests is not None,
        transformers_continuous_batching_config=_continuous_batching(
            settings, num_samples, longest_prompt + sizes.new_tokens
        ),
        learning_rate=workloads.LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=settings.is_autocast,
        use_cpu=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )


def _continuous_batching(settings: Variant, num_samples: int, longest: int) -> dict[str, Any] | None:
    """A cache with room for every sample at once, and a fifth more, below which the scheduler would hold back."""
    if settings.max_requests is None:
        return None
    return {
        "page_size": _PAGE_TOKENS,
        "num_blocks": math.ceil(1.2 * num_samples * math.ceil((longest + 1) / _PAGE_TOKENS)),
        "max_batch_tokens": settings.max_batch_tokens,
        "max_requests_per_batch": min(settings.max_requests, num_samples),
        "seed": 0,
    }


def _trainer(
    model_folder: Path,
    settings: Variant,
    arguments: Any,
    texts: list[str],
    tokenizer: PreTrainedTokenizerBase,
    samples: Samples,
) -> Any:
    """TRL's trainer with a new adapter on every linear layer of attention and MLP."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl.trainer.grpo_trainer import GRPOTrainer  # pyright: ignore[reportMissingImports]

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=settings.dtype)
    unreachable = [model.config.vocab_size]
    arguments.generation_kwargs = {"eos_token_id": unreachable}
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=samples.reward,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=workloads.LORA_RANK,
            lora_alpha=workloads.LORA_ALPHA,
            lora_dropout=0.0,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            task_type="CAUSAL_LM",
        ),
    )
    # What it cuts completions at once they are sampled.
    trainer.eos_token_ids = unreachable
    return trainer


def _sample_under(trainer: Any, meter: Meter, samples: Samples) -> None:
    """Time the trainer's sampling as a phase, and count what it returns."""
    sample = trainer._generate_single_turn

    def timed(prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        with meter.phase("sample"):
            completion_ids, logprobs = sample(prompt_ids, *args, **kwargs)
        if meter.is_warm:
            samples.count(prompt_ids, completion_ids)
        return completion_ids, logprobs

    trainer._generate_single_turn = timed


if __name__ == "__main__":
    print_one(__doc__, SHARED_PREFIX, VARIANTS, run)
