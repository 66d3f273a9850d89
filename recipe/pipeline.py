"""The three stages in a row: supervised fine-tuning, a preference model, reinforcement learning against it.

Stage 3 starts from the weights of stage 1 and is rewarded by the model of stage 2. If stage 2 fails, or its model is no
better than chance on held-out pairs, stage 3 uses the rule-based reward instead and says so (`reward_source_prm` 0).
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import chz

import mint
from envs.rlhf import RLHFDatasetBuilder
from mint.atomic_files import write_atomically
from mint.errors import CheckpointError, InvalidRequest, MintError, StorageError
from mint.seeds import derive_seed
from recipe.policy_comparison import PolicyComparison, compare_policies
from recipe.preference import train as preference_train
from recipe.preference.scorer import PreferenceScorer
from recipe.rl import train as rl_train
from recipe.rl.kl import KLReferenceConfig
from recipe.rl.types import RLDatasetBuilder
from recipe.run_log import FolderLock, LogPathInUse
from recipe.supervised import train as sft_train
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, get_renderer

logger = logging.getLogger(__name__)

SUMMARY_FILE = "summary.json"
Summary = dict[str, Any]


@chz.chz(typecheck=True)
class ComparisonConfig:
    """The last word: policies of stage 1 and stage 3 on prompts that neither has seen."""

    # Replies drawn from each policy for each held-out prompt.
    replies_per_prompt: int = 4
    seed: int = 0

    @chz.validate
    def _check(self) -> None:
        if self.replies_per_prompt < 1:
            raise InvalidRequest(f"comparison.replies_per_prompt={self.replies_per_prompt}: must be at least 1")


@chz.chz(typecheck=True)
class Config:
    """A pipeline. The stages' own log_path is taken relative to this one's. rl.load_checkpoint_path, the scorer of
    rl.dataset_builder and, where it names none, the checkpoint of rl.kl_reference_config come from earlier stages."""

    # Folder of the whole run. Started again on the same folder, it goes on in the stage where it stopped.
    log_path: str
    sft: sft_train.Config
    preference: preference_train.Config
    rl: rl_train.Config
    comparison: ComparisonConfig = chz.field(default_factory=ComparisonConfig)
    # Server; None means MINT_BASE_URL, and without that the embedded engine.
    base_url: str | None = None

    @chz.validate
    def _check(self) -> None:
        models = {stage: getattr(self, stage).model_name for stage in ("sft", "preference", "rl")}
        if models["sft"] != models["rl"] or self.sft.lora_rank != self.rl.lora_rank:
            raise InvalidRequest(
                f"sft ({models['sft']}, rank {self.sft.lora_rank}) and rl ({models['rl']}, rank {self.rl.lora_rank}) "
                "differ: stage 3 continues the adapter of stage 1; give both the same model_name and lora_rank"
            )


async def main(config: Config, service: mint.ServiceClient | None = None) -> Summary:
    """Run, or go on with, the three stages; returns what is written to summary.json.

    The folder is for one pipeline at a time: LogPathInUse where another is at work in it.
    """
    root = Path(config.log_path).expanduser()
    with FolderLock(root):
        return await _run_stages(config, root, service)


async def _run_stages(config: Config, root: Path, service: mint.ServiceClient | None) -> Summary:
    started = time.monotonic()
    service_client: mint.ServiceClient = service or mint.ServiceClient(base_url=config.base_url)

    print("Stage 1 of 3: supervised fine-tuning", flush=True)
    sft_config = chz.replace(config.sft, log_path=str(root / config.sft.log_path))
    sft = await sft_train.main(sft_config, service_client)

    print("Stage 2 of 3: preference model", flush=True)
    preference_config = chz.replace(config.preference, log_path=str(root / config.preference.log_path))
    preference, scorer = await _train_scorer(preference_config, service_client)

    print("Stage 3 of 3: reinforcement learning", flush=True)
    rl_config = chz.replace(
        config.rl,
        log_path=str(root / config.rl.log_path),
        load_checkpoint_path=sft.state_path,
        dataset_builder=_with_scorer(config.rl.dataset_builder, scorer),
        kl_reference_config=_sft_reference(config.rl.kl_reference_config, sft.sampler_path),
    )
    rl = await rl_train.main(rl_config, service_client)

    summary: Summary = {
        "sft.nll_before": sft.metrics.get("nll_before"),
        "sft.nll_after": sft.metrics.get("nll_after"),
        "sft.state_path": sft.state_path,
        "sft.sampler_path": sft.sampler_path,
        "preference.test_pair_accuracy": preference.test_pair_accuracy if preference else None,
        "preference.state_path": preference.state_path if preference else None,
        "preference.sampler_path": preference.sampler_path if preference else None,
        "rl.reward_source_prm": float(scorer is not None),
        "rl.state_path": rl.state_path,
        "rl.sampler_path": rl.sampler_path,
    }
    summary |= await _compare(config, rl_config, service_client, sft.sampler_path, rl.sampler_path)
    summary["seconds"] = round(time.monotonic() - started, 1)
    write_atomically(root / SUMMARY_FILE, (json.dumps(summary, indent=2) + "\n").encode())
    print(summary_table(summary), flush=True)
    return summary


async def _train_scorer(
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


def _with_scorer(builder: RLDatasetBuilder, scorer: PreferenceScorer | None) -> RLDatasetBuilder:
    if not isinstance(builder, RLHFDatasetBuilder):
        raise InvalidRequest(
            f"rl.dataset_builder is a {type(builder).__name__}: the pipeline needs an RLHFDatasetBuilder, which takes "
            "the preference model as its scorer; for other environments run recipe.rl.train by itself"
        )
    return chz.replace(builder, scorer=scorer)


def _sft_reference(reference: KLReferenceConfig | None, sft_path: str) -> KLReferenceConfig | None:
    """KL is measured against the policy that stage 3 starts from, unless another is named."""
    if reference is None or reference.load_checkpoint_path is not None:
        return reference
    return chz.replace(reference, load_checkpoint_path=sft_path)


async def _compare(
    config: Config, rl_config: rl_train.Config, service: mint.ServiceClient, sft_path: str, rl_path: str
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
        replies_per_prompt=config.comparison.replies_per_prompt,
        max_tokens=rl_config.max_tokens,
        seed=derive_seed(config.comparison.seed, "comparison"),
    )
    return {
        f"rl.{name}_before": result.before,
        f"rl.{name}_after": result.after,
        f"rl.{name}_win_rate": result.win_rate,
        "rl.kl_to_sft": result.kl_per_reply,
        "rl.kl_to_sft_per_token": result.kl_per_token,
    }


def summary_table(summary: Summary) -> str:
    """The summary as a table for a terminal."""
    name = "gold" if "rl.gold_before" in summary else "reward"
    nll_before, nll_after = summary["sft.nll_before"], summary["sft.nll_after"]
    change = f"{nll_after / nll_before - 1:+.0%}" if nll_before and nll_after else ""
    accuracy = summary["preference.test_pair_accuracy"]
    stage_2_note = "" if summary["preference.state_path"] else "stage failed"
    rows = [
        ("SFT", "held-out NLL per token", _number(nll_before), _number(nll_after), change),
        ("preference", "held-out pair accuracy", "", _number(accuracy), stage_2_note),
        ("RL", f"{name} on held-out prompts", _number(summary.get(f"rl.{name}_before")),
         _number(summary.get(f"rl.{name}_after")), "" if summary["rl.reward_source_prm"] else "rule-based reward"),
        ("", f"preferred to SFT by {name}", "", _percent(summary.get(f"rl.{name}_win_rate")), ""),
        ("", "KL to SFT, nats per reply", "", _number(summary.get("rl.kl_to_sft")), ""),
    ]  # fmt: skip
    lines = [f"{'stage':<12}{'measure':<28}{'before':>8}{'after':>8}  "]
    lines += [
        f"{stage:<12}{what:<28}{before:>8}{after:>8}  {note}".rstrip() for stage, what, before, after, note in rows
    ]
    lines += [f"{stage}: {summary[f'{stage}.state_path']}" for stage in ("sft", "preference", "rl")]
    return "\n".join([*lines, f"{summary['seconds']:.0f} seconds"])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
