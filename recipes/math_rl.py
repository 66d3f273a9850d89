"""Reinforcement learning on mathematics: additions with the built-in model, or GSM8K with a model of your choice.

    python recipes/math_rl.py                                        one-digit additions, minutes on two cores
    python recipes/math_rl.py gsm8k rl.dataset_builder.path=FILE     word problems from a file or the hub
    python recipes/math_rl.py rl.max_steps=20 sft.max_steps=10       any setting changed (--help lists all)

The first word chooses the preset. The additions begin with a short warm start on right answers, as in quickstart.py;
that script trains with nothing but `mint`, this one with the stages of `recipe`: held-out accuracy, checkpoints and
resume come with them. Other problems come from files: see envs.math_env.MathDatasetBuilder.
"""

from __future__ import annotations

import sys
from typing import Any

import chz
from chz.blueprint import Reference

import mint
from envs.arithmetic import QUESTION, AdditionDatasetBuilder, addition_conversations
from envs.math_env import MathDatasetBuilder
from recipe import warm_start
from recipe.command_line import run_recipe
from recipe.rl import train as rl_train
from recipe.rl.evaluation import RLTestSetEvaluator
from recipe.run_log import read_metrics
from recipe.supervised.data import ListSFTDatasetBuilder, SFTExampleConfig
from recipe.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from renderers import Renderer


@chz.chz(typecheck=True)
class AdditionSFTDatasetBuilder(SupervisedDatasetBuilder):
    """Right answers to additions of the training split."""

    num_train: int = 3520
    max_operand: int = 9
    # See AdditionDatasetBuilder.
    question: str = QUESTION
    seed: int = 0
    examples: SFTExampleConfig = chz.field(default_factory=SFTExampleConfig)

    def __call__(
        self, renderer: Renderer, context_length: int | None = None
    ) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """See SupervisedDatasetBuilder."""
        conversations = addition_conversations(self.num_train, self.max_operand, self.seed, self.question)
        return ListSFTDatasetBuilder(conversations=conversations, examples=self.examples)(renderer, context_length)


ACCURACY = "test/env/all/correct"
MODEL = {
    "rl.log_path": "rl",
    "rl.dataset_builder.model_name": Reference("rl.model_name"),
}
ADDITIONS = {
    **MODEL,
    "log_path": "runs/math_rl",
    "sft.log_path": "sft",
    "sft.model_name": Reference("rl.model_name"),
    "sft.renderer_name": Reference("rl.dataset_builder.renderer_name"),
    "sft.dataset_builder": AdditionSFTDatasetBuilder,
    "sft.dataset_builder.max_operand": Reference("rl.dataset_builder.max_operand"),
    "sft.dataset_builder.question": Reference("rl.dataset_builder.question"),
    "sft.lora_rank": Reference("rl.lora_rank"),
    "sft.learning_rate": 2e-3,
    "sft.eval_every": 0,
    "sft.save_every": 0,
    "rl.model_name": "mint-tiny",
    "rl.dataset_builder": AdditionDatasetBuilder,
    # In a chat format so small a model learns its sums by heart and none that were held out.
    "rl.dataset_builder.renderer_name": "completion",
    "rl.dataset_builder.question": "{left}+{right}=",
    "rl.dataset_builder.max_operand": 9,
    "rl.dataset_builder.group_size": 8,
    "rl.dataset_builder.groups_per_batch": 40,
    "rl.dataset_builder.num_batches": 180,
    "rl.dataset_builder.num_test_problems": 200,
    "rl.lora_rank": 16,
    "rl.learning_rate": 5e-4,
    "rl.max_tokens": 4,
    "rl.eval_every": 20,
    "rl.save_every": 60,
    "rl.num_groups_to_log": 1,
}
GSM8K = {
    **MODEL,
    "log_path": "runs/math_rl_gsm8k",
    "sft": None,
    "rl.model_name": "Qwen/Qwen3-0.6B",
    "rl.dataset_builder": MathDatasetBuilder,
    "rl.dataset_builder.path": "openai/gsm8k",
    "rl.dataset_builder.subset": "main",
    "rl.dataset_builder.renderer_name": "qwen3_disable_thinking",
    "rl.dataset_builder.group_size": 8,
    "rl.dataset_builder.groups_per_batch": 32,
    "rl.learning_rate": 4e-5,
    "rl.max_tokens": 512,
}
PRESETS: dict[str, dict[str, Any]] = {"additions": ADDITIONS, "gsm8k": GSM8K}


async def train(config: warm_start.Config, service: mint.ServiceClient | None = None) -> rl_train.RLResult:
    """Run, or go on with, both stages; prints the held-out accuracy before, between and after."""
    client: mint.ServiceClient = service or mint.ServiceClient(base_url=config.rl.base_url)
    base = await _base_accuracy(config.rl, client) if config.sft is not None else {}
    result = await warm_start.main(config, client)
    tested = [line[ACCURACY] for line in read_metrics(warm_start.rl_log_path(config)) if ACCURACY in line]
    if tested:
        accuracies = {**base, "warm start" if config.sft is not None else "start": tested[0], "RL": tested[-1]}
        print("held-out accuracy: " + ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in accuracies.items()))
    return result


async def _base_accuracy(config: rl_train.Config, service: mint.ServiceClient) -> dict[str, float]:
    """That of the base model, measured as the run's own tests; {} where it has none."""
    _, test_set = await config.dataset_builder()
    if test_set is None or config.eval_every == 0:
        return {}
    evaluator = RLTestSetEvaluator(test_set, config.max_tokens, config.eval_temperature, config.seed)
    metrics = await evaluator(await service.create_sampling_client_async(base_model=config.model_name))
    return {"base model": metrics[ACCURACY]}


def main(argv: list[str] | None = None) -> None:
    """Run the preset that the first argument names, with the changes on the rest of the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    preset = PRESETS[arguments.pop(0) if arguments and arguments[0] in PRESETS else "additions"]
    run_recipe(warm_start.Config, preset, train, arguments)


if __name__ == "__main__":
    main()
