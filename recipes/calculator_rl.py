"""Learning to use a tool: arithmetic on two-digit numbers, with a calculator that the model may call.

    python recipes/calculator_rl.py                        the built-in model
    python recipes/calculator_rl.py rl.max_steps=10 ...    with any setting changed (--help lists all)

The built-in model can neither add two-digit numbers nor copy them reliably. Demonstrations teach it to write a call and
to read the answer; but as most of them solve their first problem from the head, so does the model, and mostly wrongly.
That the calculator is worth asking, reinforcement learning finds out from the bare results. The printed success is that
of sampled episodes on held-out problems.
"""

from __future__ import annotations

import random
import time

import chz
from chz.blueprint import Reference

from envs import calculator
from mint.seeds import derive_seed
from recipe import warm_start
from recipe.command_line import run_recipe
from recipe.conversation_files import Conversation
from recipe.run_log import read_metrics
from recipe.supervised.data import SFTExampleConfig, make_datasets
from recipe.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from renderers import Renderer, TrainOnWhat


@chz.chz(typecheck=True)
class DemonstrationBuilder(SupervisedDatasetBuilder):
    """Solved training problems, several in a conversation. The first is mostly answered from the head, as people do
    who can; the others, and sometimes the first, with the calculator."""

    # Conversations, and problems solved in each.
    num_train: int = 1280
    problems_each: int = 5
    # Share of the conversations whose first problem is answered from the head.
    from_head_share: float = 0.75
    operators: str = "+"
    max_operand: int = 99
    seed: int = 0
    examples: SFTExampleConfig = chz.field(
        default_factory=lambda: SFTExampleConfig(batch_size=8, train_on_what=TrainOnWhat.ALL_ASSISTANT_MESSAGES)
    )

    def __call__(
        self, renderer: Renderer, context_length: int | None = None
    ) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """See SupervisedDatasetBuilder."""
        problems = calculator.draw_problems(
            self.num_train * self.problems_each, self.max_operand, self.seed, is_test=False, operators=self.operators
        )
        rng = random.Random(derive_seed("demonstrations", self.seed))
        conversations = []
        for first in range(0, len(problems), self.problems_each):
            num_from_head = int(rng.random() < self.from_head_share)
            solved = problems[first : first + self.problems_each]
            messages, tools = calculator.demonstration(solved, num_from_head)
            conversations.append(Conversation(messages, f"demonstration of problem {first}", tools))
        return make_datasets(conversations, None, self.examples, renderer, context_length)


MODEL = "mint-tiny"
# Nothing is left out of history in this format, so demonstrations and episodes look the same, turn by turn.
RENDERER = "qwen3_instruct"
PRESET = {
    "log_path": "runs/calculator_rl",
    "sft.log_path": "sft",
    "sft.model_name": MODEL,
    "sft.renderer_name": RENDERER,
    "sft.dataset_builder": DemonstrationBuilder,
    "sft.learning_rate": 4e-3,
    "sft.lr_schedule": "constant",
    "sft.eval_every": 0,
    "rl.log_path": "rl",
    "rl.model_name": Reference("sft.model_name"),
    "rl.dataset_builder": calculator.CalculatorDatasetBuilder,
    "rl.dataset_builder.model_name": Reference("sft.model_name"),
    "rl.dataset_builder.renderer_name": RENDERER,
    "rl.dataset_builder.group_size": 8,
    "rl.dataset_builder.groups_per_batch": 16,
    "rl.dataset_builder.num_batches": 12,
    "rl.dataset_builder.operators": "+",
    "rl.dataset_builder.num_test_problems": 128,
    "rl.learning_rate": 1e-3,
    "rl.max_tokens": 40,
    "rl.eval_every": 6,
}


async def run(config: warm_start.Config) -> None:
    """Demonstrations, then reinforcement learning from where they led."""
    started = time.monotonic()
    await warm_start.main(config)
    for line in read_metrics(warm_start.rl_log_path(config)):
        if "test/env/all/correct" in line:
            print(
                f"iteration {line['step']:>3}: success {line['test/env/all/correct']:.2f}, "
                f"calls per episode {line['test/env/all/tool/calls']:.2f}"
            )
    print(f"{time.monotonic() - started:.0f} seconds")


def main(argv: list[str] | None = None) -> None:
    """Run with the preset and the changes on the command line."""
    run_recipe(warm_start.Config, PRESET, run, argv)


if __name__ == "__main__":
    main()
