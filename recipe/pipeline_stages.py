"""The stages as the pipeline runs them: what each hands to the next, and the comparison at the end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import chz

from envs.rlhf import RLHFDatasetBuilder
from mint.errors import CheckpointError, InvalidRequest, MintError, StorageError
from mint.seeds import derive_seed
from recipe.pipeline_summary import Summary
from recipe.policy_comparison import PolicyComparison, compare_policies
from recipe.preference import train as preference_train
from recipe.preference.scorer import PreferenceScorer
from recipe.rl import train as rl_train
from recipe.rl.kl import KLReferenceConfig
from recipe.rl.types import RLDatasetBuilder
from recipe.run_log import LogPathInUse
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, get_renderer

if TYPE_CHECKING:
    import mint
    from recipe.pipeline import ComparisonConfig

logger = logging.getLogger(__name__)


async def train_scorer(
    config: preference_train.Config, service: mint.ServiceClient
) -> tuple[preference_train.PreferenceResult | None, PreferenceScorer | None]:
    """The trained model and its scorer; the scorer is None where it should not be trusted with the reward.

    A fault of the storage ends the pipeline: once it is mended, the stage can go on and stage 3 have its scorer.
    """
    try:
        result = await preference_train.main(config, service)
    except (StorageError, CheckpointError, LogPathInUse):
        raise
    except MintError as error:
        logger.warning("the preference stage failed (%s); stage 3 uses the rule-based reward", error)
        return None, None
    if result.is_better_than_chance is False:
        logger.warning(
            "the preference model orders %.0f %% of held-out pairs rightly, which is no better than chance; "
            "stage 3 uses the rule-based reward. More pairs or more steps may help.",
            100 * (result.test_pair_accuracy or 0.0),
        )
        return result, None
    return result, result.scorer.build(service)


def with_scorer(builder: RLDatasetBuilder, scorer: PreferenceScorer | None) -> RLDatasetBuilder:
    """The prompts of stage 3 with what rates the replies; InvalidRequest where the builder takes no scorer."""
    if not isinstance(builder, RLHFDatasetBuilder):
        raise InvalidRequest(
            f"rl.dataset_builder is a {type(builder).__name__}: the pipeline needs an RLHFDatasetBuilder, which takes "
            "the preference model as its scorer; for other environments run recipe.rl.train by itself"
        )
    return chz.replace(builder, scorer=scorer)


def sft_reference(reference: KLReferenceConfig | None, sft_path: str) -> KLReferenceConfig | None:
    """KL is measured against the policy that stage 3 starts from, unless another is named."""
    if reference is None or reference.load_checkpoint_path is not None:
        return reference
    return chz.replace(reference, load_checkpoint_path=sft_path)


async def compare_with_sft(
    config: ComparisonConfig, rl_config: rl_train.Config, service: mint.ServiceClient, sft_path: str, rl_path: str
) -> Summary:
    """rl.* of the summary: by the gold score where the task has one, else by the reward."""
    builder = rl_config.dataset_builder
    assert isinstance(builder, RLHFDatasetBuilder)
    _, test_prompts = builder.load_prompts()
    if not test_prompts:
        return {}
    gold = builder.gold_score()
    name = "gold" if gold is not None else "reward"

    async def score(conversation: list[Message]) -> float:
        return float(gold(conversation)) if gold is not None else await builder.reward(conversation)

    result: PolicyComparison = await compare_policies(
        await service.create_sampling_client_async(model_path=sft_path),
        await service.create_sampling_client_async(model_path=rl_path),
        test_prompts,
        get_renderer(builder.renderer_name, get_tokenizer(builder.model_name)),
        score,
        replies_per_prompt=config.replies_per_prompt,
        max_tokens=rl_config.max_tokens,
        seed=derive_seed(config.seed, "comparison"),
    )
    return {
        f"rl.{name}_before": result.before,
        f"rl.{name}_after": result.after,
        f"rl.{name}_win_rate": result.win_rate,
        "rl.kl_to_sft": result.kl_per_reply,
        "rl.kl_to_sft_per_token": result.kl_per_token,
    }
