"""Reinforcement learning on code: functions to write, graded by running tests in a sandbox.

    python recipes/code_rl.py                                  small generated functions, minutes on two cores
    python recipes/code_rl.py mbpp rl.dataset_builder.path=F    MBPP-style problems from a file or the hub
    python recipes/code_rl.py rl.max_steps=20 sft.max_steps=10  any setting changed (--help lists all)

The first word chooses the preset. The generated functions begin with a short warm start on right solutions. Programs
run in the sandbox of envs.sandbox; on a system without namespaces set
rl.dataset_builder.grading.sandbox.minimum_isolation, see docs/sandbox.md.

With the settings below and seed 0, functions sampled in training pass all tests 55 % of the time in the first five
iterations and 63 % in the last five; held-out ones 46 % before and 50 % after (100 functions, so within noise).
"""

from __future__ import annotations

import sys
from typing import Any

import chz
from chz.blueprint import Reference

import mint
from envs.code_env import CodeDatasetBuilder
from envs.code_templates import CodeTemplateDatasetBuilder, template_conversations
from recipe import warm_start
from recipe.command_line import run_recipe
from recipe.rl import train as rl_train
from recipe.run_log import read_metrics
from recipe.supervised.data import ListSFTDatasetBuilder, SFTExampleConfig
from recipe.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from renderers import Renderer


@chz.chz(typecheck=True)
class TemplateSFTDatasetBuilder(SupervisedDatasetBuilder):
    """Right solutions to generated functions of the training split."""

    # Enough different ones that they cannot be learned by heart.
    num_train: int = 3520
    # See CodeTemplateDatasetBuilder.
    max_operations: int = 2
    seed: int = 0
    examples: SFTExampleConfig = chz.field(default_factory=SFTExampleConfig)

    def __call__(
        self, renderer: Renderer, context_length: int | None = None
    ) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """See SupervisedDatasetBuilder."""
        conversations = template_conversations(self.num_train, self.seed, self.max_operations)
        return ListSFTDatasetBuilder(conversations=conversations, examples=self.examples)(renderer, context_length)


MODEL = {
    "rl.log_path": "rl",
    "rl.dataset_builder.model_name": Reference("rl.model_name"),
}
TEMPLATES = {
    **MODEL,
    "log_path": "runs/code_rl",
    "sft.log_path": "sft",
    "sft.model_name": Reference("rl.model_name"),
    "sft.renderer_name": Reference("rl.dataset_builder.renderer_name"),
    "sft.eval_every": 0,
    "sft.dataset_builder": TemplateSFTDatasetBuilder,
    "sft.dataset_builder.examples.batch_size": 16,
    "sft.lora_rank": Reference("rl.lora_rank"),
    "sft.learning_rate": 4e-3,
    "sft.max_steps": 220,
    "rl.model_name": "mint-tiny",
    "rl.dataset_builder": CodeTemplateDatasetBuilder,
    # Without a chat format a small model copies the numbers of a question more easily.
    "rl.dataset_builder.renderer_name": "completion",
    "rl.dataset_builder.group_size": 8,
    "rl.dataset_builder.groups_per_batch": 32,
    "rl.dataset_builder.num_batches": 40,
    "rl.dataset_builder.num_test_problems": 200,
    "rl.lora_rank": 16,
    "rl.learning_rate": 5e-4,
    "rl.max_tokens": 24,
    "rl.eval_every": 20,
}
MBPP = {
    **MODEL,
    "log_path": "runs/code_rl_mbpp",
    "sft": None,
    "rl.model_name": "Qwen/Qwen3-0.6B",
    "rl.dataset_builder": CodeDatasetBuilder,
    "rl.dataset_builder.renderer_name": "qwen3_disable_thinking",
    "rl.dataset_builder.path": "google-research-datasets/mbpp",
    "rl.dataset_builder.group_size": 8,
    "rl.dataset_builder.groups_per_batch": 16,
    "rl.learning_rate": 4e-5,
    "rl.max_tokens": 512,
}
PRESETS: dict[str, dict[str, Any]] = {"templates": TEMPLATES, "mbpp": MBPP}


async def train(config: warm_start.Config, service: mint.ServiceClient | None = None) -> rl_train.RLResult:
    """Run, or go on with, both stages; prints the held-out pass rate before and after reinforcement learning."""
    result = await warm_start.main(config, service)
    log_path = warm_start.rl_log_path(config)
    rates = [line["test/env/all/correct"] for line in read_metrics(log_path) if "test/env/all/correct" in line]
    if rates:
        print(f"held-out functions that pass all tests: {rates[0]:.1%} -> {rates[-1]:.1%}, in {log_path}")
    return result


def main(argv: list[str] | None = None) -> None:
    """Run the preset that the first argument names, with the changes on the rest of the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    preset = PRESETS[arguments.pop(0) if arguments and arguments[0] in PRESETS else "templates"]
    run_recipe(warm_start.Config, preset, train, arguments)


if __name__ == "__main__":
    main()
