"""Learning from pairs without a preference model: supervised fine-tuning, then DPO or another loss of its family.

    python recipes/dpo.py                                       DPO on the demo task
    python recipes/dpo.py dpo.loss.name=ipo                     another loss: ipo, hinge, slic, simpo, orpo
    python recipes/dpo.py dpo.loss.name=kto dpo.loss.nll_coef=None          kto, which takes no likelihood term
    python recipes/dpo.py dpo.max_steps=20 sft.max_steps=10     any setting changed (--help lists all)

The policy of the first stage is where the second starts and, for the losses that have one, its reference. The end of a
run compares both on held-out prompts by the gold score of the task, which neither stage has seen.
"""

from __future__ import annotations

from recipe import interruption

if __name__ == "__main__":
    interruption.end_at_once()  # until `main`: the imports below take seconds

import time
from pathlib import Path

import chz
from chz.blueprint import Reference

import mint
from envs import advice
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.command_line import run_recipe
from recipe.model_info import resolve_renderer_name
from recipe.policy_comparison import compare_policies
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.dpo import train as dpo_train
from recipe.preference.types import PreferenceDatasetBuilder, PreferencePair, PreferenceSplit
from recipe.supervised import train as sft_train
from recipe.supervised.data import ListSFTDatasetBuilder, SFTExampleConfig
from recipe.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, Renderer, get_renderer


@chz.chz(typecheck=True)
class AdviceSFTDatasetBuilder(SupervisedDatasetBuilder):
    """Middling answers, in the style that the policy is to have."""

    num_train: int = 1024
    num_test: int = 128
    examples: SFTExampleConfig = chz.field(default_factory=SFTExampleConfig)

    def __call__(
        self, renderer: Renderer, context_length: int | None = None
    ) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """See SupervisedDatasetBuilder."""
        data = ListSFTDatasetBuilder(
            conversations=advice.conversations(self.num_train, seed=0),
            test_conversations=advice.conversations(self.num_test, seed=1, split="heldout"),
            examples=self.examples,
        )
        return data(renderer, context_length)


@chz.chz(typecheck=True)
class AdvicePairBuilder(PreferenceDatasetBuilder):
    """Pairs of answers; those held out are on topics of their own."""

    num_train: int = 1024
    num_test: int = 128

    def __call__(self) -> PreferenceSplit:
        """See PreferenceDatasetBuilder."""
        train = [PreferencePair(**pair) for pair in advice.pairs(self.num_train, seed=0)]
        test = [PreferencePair(**pair) for pair in advice.pairs(self.num_test, seed=1, split="heldout")]
        return ListPreferenceDatasetBuilder(pairs=train, held_out_pairs=test, examples=self.examples)()


@chz.chz(typecheck=True)
class Config:
    """Both stages; their own log_path is taken relative to this one's."""

    # Folder of the whole run. Started again on the same folder, it goes on where it stopped.
    log_path: str
    sft: sft_train.Config
    # dpo.load_checkpoint_path comes from the first stage.
    dpo: dpo_train.Config
    # For the comparison at the end: how many held-out prompts (None: all), replies to each, tokens in a reply.
    num_prompts: int | None = None
    replies_per_prompt: int = 2
    max_tokens: int = 48

    @chz.validate
    def _check(self) -> None:
        for name in ("num_prompts", "replies_per_prompt", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidRequest(f"{name}={value}: must be at least 1")


PRESET = {
    "log_path": "runs/dpo",
    "sft.log_path": "sft",
    "sft.model_name": "mint-tiny",
    "sft.renderer_name": "qwen3_disable_thinking",
    "sft.dataset_builder": AdviceSFTDatasetBuilder,
    "sft.lora_rank": 32,
    "sft.learning_rate": 2e-3,
    "sft.eval_every": 0,
    "dpo.log_path": "dpo",
    "dpo.model_name": Reference("sft.model_name"),
    "dpo.renderer_name": Reference("sft.renderer_name"),
    "dpo.lora_rank": Reference("sft.lora_rank"),
    "dpo.dataset_builder": AdvicePairBuilder,
    "dpo.dataset_builder.examples.batch_size": 16,
    # The loss of the margin alone would let the chosen replies become less likely too, and the policy drift.
    "dpo.loss.nll_coef": 1.0,
    "dpo.learning_rate": 2e-3,
}


async def run(config: Config, service: mint.ServiceClient | None = None) -> dict[str, float]:
    """Train both stages, and compare their policies."""
    started = time.monotonic()
    root = Path(config.log_path).expanduser()
    client: mint.ServiceClient = service or mint.ServiceClient()
    sft = await sft_train.main(chz.replace(config.sft, log_path=str(root / config.sft.log_path)), client)
    dpo_config = chz.replace(config.dpo, log_path=str(root / config.dpo.log_path), load_checkpoint_path=sft.state_path)
    dpo = await dpo_train.main(dpo_config, client)

    async def gold(conversation: list[Message]) -> float:
        return advice.gold_of_conversation(conversation)

    renderer_name = resolve_renderer_name(config.dpo.renderer_name, config.dpo.model_name)
    compared = await compare_policies(
        await client.create_sampling_client_async(model_path=sft.sampler_path),
        await client.create_sampling_client_async(model_path=dpo.sampler_path),
        advice.prompts("rl_heldout")[: config.num_prompts],
        get_renderer(renderer_name, get_tokenizer(config.dpo.model_name)),
        gold,
        replies_per_prompt=config.replies_per_prompt,
        max_tokens=config.max_tokens,
        seed=derive_seed(config.dpo.seed, "comparison"),
    )
    print(
        f"gold on held-out prompts: {compared.before:.3f} before, {compared.after:.3f} after; "
        f"preferred to before for {compared.win_rate:.0%} of them, {compared.kl_per_reply:.1f} nats per reply away"
    )
    print(f"{time.monotonic() - started:.0f} seconds")
    return {
        "gold/before": compared.before,
        "gold/after": compared.after,
        "gold/win_rate": compared.win_rate,
        "kl_per_reply": compared.kl_per_reply,
        "pair_accuracy": dpo.metrics.get("test/pair_accuracy", float("nan")),
    }


def main(argv: list[str] | None = None) -> None:
    """Run with the preset and the changes on the command line."""
    run_recipe(Config, PRESET, run, argv)


if __name__ == "__main__":
    main()
