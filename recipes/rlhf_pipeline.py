"""Three-stage RLHF: supervised fine-tuning, a preference model, GRPO against it.

    python recipes/rlhf_pipeline.py                       the demo task on the built-in model
    python recipes/rlhf_pipeline.py sft.max_steps=5 ...   with any setting changed (--help lists all)

The demo gives one-sentence advice on everyday topics. What good advice is, the generator knows; the preference model
learns it from pairs, and the policy learns it from the preference model. Topics for training, for held-out pairs and
for reinforcement learning are different. Other models and data: README.md.
"""

from __future__ import annotations

from recipe import interruption

if __name__ == "__main__":
    interruption.end_at_once()  # until `main`: the imports below take seconds

import chz
from chz.blueprint import Reference

from envs import advice
from recipe import pipeline
from recipe.command_line import run_recipe
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.readouts import SequenceLogprob
from recipe.preference.types import PreferenceDatasetBuilder, PreferencePair, PreferenceSplit
from recipe.rl.kl import KLReferenceConfig
from recipe.supervised.data import ListSFTDatasetBuilder, SFTExampleConfig
from recipe.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from renderers import Renderer


@chz.chz(typecheck=True)
class AdviceSFTDatasetBuilder(SupervisedDatasetBuilder):
    """Middling answers, in the style that the policy is to have."""

    num_train: int = 1024
    num_test: int = 128
    seed: int = 0
    examples: SFTExampleConfig = chz.field(default_factory=SFTExampleConfig)

    def __call__(
        self, renderer: Renderer, context_length: int | None = None
    ) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """See SupervisedDatasetBuilder."""
        data = ListSFTDatasetBuilder(
            conversations=advice.conversations(self.num_train, self.seed),
            test_conversations=advice.conversations(self.num_test, self.seed + 1, "heldout"),
            examples=self.examples,
        )
        return data(renderer, context_length)


@chz.chz(typecheck=True)
class AdvicePreferenceDatasetBuilder(PreferenceDatasetBuilder):
    """Pairs of answers; those held out are on topics of their own."""

    num_train: int = 1600
    num_test: int = 256
    seed: int = 0

    def __call__(self) -> PreferenceSplit:
        """See PreferenceDatasetBuilder."""
        train = [PreferencePair(**pair) for pair in advice.pairs(self.num_train, self.seed)]
        test = [PreferencePair(**pair) for pair in advice.pairs(self.num_test, self.seed + 1, "heldout")]
        return ListPreferenceDatasetBuilder(pairs=train, held_out_pairs=test, examples=self.examples)()


MODEL = "mint-tiny"
RENDERER = "qwen3_disable_thinking"
PRESET = {
    "log_path": "runs/rlhf_pipeline",
    "sft.log_path": "sft",
    "sft.model_name": MODEL,
    "sft.renderer_name": RENDERER,
    "sft.dataset_builder": AdviceSFTDatasetBuilder,
    "sft.learning_rate": 2e-3,
    "sft.eval_every": 0,
    "preference.log_path": "preference",
    "preference.model_name": Reference("sft.model_name"),
    "preference.renderer_name": Reference("sft.renderer_name"),
    "preference.dataset_builder": AdvicePreferenceDatasetBuilder,
    "preference.dataset_builder.examples.batch_size": 8,
    "preference.readout": SequenceLogprob(is_per_token=True),
    "preference.learning_rate": 3e-3,
    "rl.log_path": "rl",
    "rl.model_name": Reference("sft.model_name"),
    "rl.dataset_builder": advice.AdviceDatasetBuilder,
    "rl.dataset_builder.model_name": Reference("sft.model_name"),
    "rl.dataset_builder.renderer_name": Reference("sft.renderer_name"),
    "rl.dataset_builder.group_size": 8,
    "rl.dataset_builder.groups_per_batch": 16,
    "rl.learning_rate": 1e-3,
    "rl.max_tokens": 48,
    "rl.dataset_builder.num_epochs": 3,
    "rl.max_steps": 40,
    "rl.kl_penalty_coef": 0.08,
    "rl.kl_reference_config": KLReferenceConfig,
    "rl.kl_reference_config.base_model": Reference("sft.model_name"),
    "rl.eval_every": 0,
}


def main(argv: list[str] | None = None) -> None:
    """Run the pipeline with the preset and the changes on the command line."""
    run_recipe(pipeline.Config, PRESET, pipeline.main, argv)


if __name__ == "__main__":
    main()
