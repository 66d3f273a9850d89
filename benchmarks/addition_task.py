"""The task that the measurements of reinforcement learning share: one-digit additions on the built-in model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mint
from envs.arithmetic import AdditionDatasetBuilder, addition_conversations
from recipe.rl import train as rl_train
from recipe.run_log import read_metrics
from recipe.supervised import train as sft_train
from recipe.supervised.data import ListSFTDatasetBuilder

MODEL = "mint-tiny"
RENDERER = "completion"
QUESTION = "{left}+{right}="
MAX_OPERAND = 9
LORA_RANK = 16
GROUPS_PER_BATCH, GROUP_SIZE = 40, 8


async def warm_start(folder: Path, service: mint.ServiceClient, num_steps: int = 110) -> str:
    """mint:// path of a policy that answers in the right form and is right now and then; trained once per folder."""
    config = sft_train.Config(
        log_path=str(folder / "warm_start"),
        model_name=MODEL,
        renderer_name=RENDERER,
        dataset_builder=ListSFTDatasetBuilder(
            conversations=addition_conversations(32 * num_steps, MAX_OPERAND, seed=0, question=QUESTION)
        ),
        lora_rank=LORA_RANK,
        learning_rate=2e-3,
        max_steps=num_steps,
        eval_every=0,
        save_every=0,
    )
    return (await sft_train.main(config, service)).state_path


def addition_rl_config(
    log_path: Path,
    start_path: str,
    seed: int,
    num_steps: int,
    *,
    dataset_builder: type[AdditionDatasetBuilder] = AdditionDatasetBuilder,
    builder_settings: dict[str, Any] | None = None,
    **changes: Any,
) -> rl_train.Config:
    """A run from that policy, tested before and after."""
    settings: dict[str, Any] = {
        "log_path": str(log_path),
        "model_name": MODEL,
        "dataset_builder": dataset_builder(
            model_name=MODEL,
            renderer_name=RENDERER,
            group_size=GROUP_SIZE,
            groups_per_batch=GROUPS_PER_BATCH,
            num_batches=num_steps,
            num_test_problems=200,
            max_operand=MAX_OPERAND,
            question=QUESTION,
            seed=seed,
            **(builder_settings or {}),
        ),
        "load_checkpoint_path": start_path,
        "lora_rank": LORA_RANK,
        "learning_rate": 5e-4,
        "max_tokens": 4,
        "eval_every": 10**6,
        "save_every": 0,
        "num_groups_to_log": 0,
        "rollout_json_export": False,
        "seed": seed,
    }
    return rl_train.Config(**{**settings, **changes})


def held_out_accuracies(log_path: Path) -> tuple[float, float]:
    """Of sampled answers to additions that no run trains on, before the first step and after the last."""
    lines = [line["test/env/all/correct"] for line in read_metrics(log_path) if "test/env/all/correct" in line]
    return lines[0], lines[-1]
