"""The stages as the pipeline runs them, or finds them finished: what each hands on, and the comparison at the end.

Axes: _P prompts, _R replies to one prompt.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import chz

from envs.rlhf import RLHFDatasetBuilder
from mint.errors import CheckpointError, InvalidRequest, MintError, StorageError
from mint.seeds import derive_seed
from recipe.best_of_n import best_of_n_summary, draw_best_of_n
from recipe.pipeline_gates import GateKeeper, gate_of_failed_stage, gates_of_preference
from recipe.pipeline_summary import Summary
from recipe.policy_comparison import PolicyComparison, compare_policies
from recipe.preference import train as preference_train
from recipe.preference.scorer import PreferenceScorer
from recipe.rl import train as rl_train
from recipe.rl.kl import KLReferenceConfig
from recipe.rl.types import RLDatasetBuilder
from recipe.run_log import LogPathInUse, read_metrics
from recipe.stage_gates import is_fit_as_reward
from recipe.stage_manifest import StageChanged
from recipe.supervised import train as sft_train
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, get_renderer

if TYPE_CHECKING:
    import mint
    from recipe.pipeline import ComparisonConfig, Config

logger = logging.getLogger(__name__)


class MissingStage(InvalidRequest):
    """A stage that is to run needs another that is not to run and has not been run."""


async def policy_of_stage_1(
    config: Config, sft_config: sft_train.Config, service: mint.ServiceClient
) -> sft_train.SFTResult | None:
    """Stage 1, run or taken from its folder or from rl.load_checkpoint_path; None where no stage needs it.

    MissingStage where stage 3 needs it and it is nowhere.
    """
    if "sft" in config.stages:
        print("Stage 1 of 3: supervised fine-tuning", flush=True)
        return await sft_train.main(sft_config, service)
    given = config.rl.load_checkpoint_path
    if given is not None:
        print(f"Stage 1 of 3: not run, its policy is {given}", flush=True)
        return sft_train.SFTResult(given, given)
    result = await sft_train.load_result(sft_config, service)
    if result is None and "rl" in config.stages:
        raise MissingStage(
            f"stages={','.join(config.stages)}: stage 3 starts from the policy of stage 1, and "
            f"{sft_config.log_path} holds no finished run of it. Add sft to the stages, name the folder of a finished "
            "run with sft.log_path=..., or a checkpoint with rl.load_checkpoint_path=mint://..."
        )
    print(f"Stage 1 of 3: not run, {'taken from ' + sft_config.log_path if result else 'not needed'}", flush=True)
    return result


async def preference_model(
    config: Config, preference_config: preference_train.Config, service: mint.ServiceClient, keeper: GateKeeper
) -> tuple[preference_train.PreferenceResult | None, PreferenceScorer | None]:
    """Stage 2, run or taken from its folder, and its scorer, which is None where it should not be trusted with the
    reward. MissingStage where stage 3 needs it and it is nowhere.

    A fault of the storage ends the pipeline: once it is mended, the stage can go on and stage 3 have its scorer. So
    does a stage that another one was made from.
    """
    if "preference" in config.stages:
        print("Stage 2 of 3: preference model", flush=True)
        try:
            result = await preference_train.main(preference_config, service)
        except (StorageError, CheckpointError, LogPathInUse, StageChanged):
            raise
        except MintError as error:
            gate = gate_of_failed_stage(config.gates, error)
            if gate.on_failed == "stop":
                raise
            logger.warning("the preference stage failed (%s); stage 3 uses the rule-based reward", error)
            keeper.record([gate], is_told=True)
            return None, None
    else:
        result = await preference_train.load_result(preference_config, service)
        if result is None and "rl" in config.stages:
            raise MissingStage(
                f"stages={','.join(config.stages)}: stage 3 is rewarded by the model of stage 2, and "
                f"{preference_config.log_path} holds no finished run of it. Add preference to the stages, or name the "
                "folder of a finished run with preference.log_path=..."
            )
        taken = f"taken from {preference_config.log_path}" if result else "not needed"
        print(f"Stage 2 of 3: not run, {taken}", flush=True)
    if result is None:
        return None, None
    gates = gates_of_preference(config.gates, preference_config.log_path, result)
    keeper.record(gates)
    keeper.enforce()
    return result, result.scorer.build(service) if is_fit_as_reward(gates) else None


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

    sft_client = await service.create_sampling_client_async(model_path=sft_path)
    renderer = get_renderer(builder.renderer_name, get_tokenizer(builder.model_name))
    result: PolicyComparison = await compare_policies(
        sft_client,
        await service.create_sampling_client_async(model_path=rl_path),
        test_prompts,
        renderer,
        score,
        replies_per_prompt=config.replies_per_prompt,
        max_tokens=rl_config.max_tokens,
        seed=derive_seed(config.seed, "comparison"),
    )
    summary: Summary = {
        f"rl.{name}_before": result.before,
        f"rl.{name}_after": result.after,
        f"rl.{name}_win_rate": result.win_rate,
        f"rl.{name}_reply_win_rate": result.reply_win_rate,
        "rl.kl_to_sft": result.kl_per_reply,
        "rl.kl_to_sft_per_token": result.kl_per_token,
    }
    if config.best_of_n == 0:
        return summary
    prompts = test_prompts[: config.best_of_n_prompts]
    best = await draw_best_of_n(
        sft_client,
        prompts,
        renderer,
        builder.reward,
        score,
        n=config.best_of_n,
        max_tokens=rl_config.max_tokens,
        seed=derive_seed(config.seed, "comparison"),
        failed_reply_score=builder.failed_reply_reward,
    )
    rl_tokens = sum(line.get("env/all/total_ac_tokens", 0.0) for line in read_metrics(rl_config.log_path))
    opponent_PR = result.scores_before_PR[: len(prompts)]
    return summary | best_of_n_summary(best, name, opponent_PR, rl_tokens, len(test_prompts))
