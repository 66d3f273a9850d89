"""The three stages in a row: supervised fine-tuning, a preference model, reinforcement learning against it.

Stage 3 starts from the weights of stage 1 and is rewarded by the model of stage 2. If stage 2 fails, or its model is no
better than chance on held-out pairs, stage 3 uses the rule-based reward instead and says so (`reward_source_prm` 0).
"""

from __future__ import annotations

import time
from pathlib import Path

import chz

import mint
from mint.errors import InvalidRequest
from recipe.pipeline_stages import compare_with_sft, sft_reference, train_scorer, with_scorer
from recipe.pipeline_summary import SUMMARY_FILE, Summary, summary_table, write_summary
from recipe.preference import train as preference_train
from recipe.rl import train as rl_train
from recipe.run_log import FolderLock
from recipe.supervised import train as sft_train

__all__ = ["SUMMARY_FILE", "ComparisonConfig", "Config", "main", "summary_table"]


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
    preference, scorer = await train_scorer(preference_config, service_client)

    print("Stage 3 of 3: reinforcement learning", flush=True)
    rl_config = chz.replace(
        config.rl,
        log_path=str(root / config.rl.log_path),
        load_checkpoint_path=sft.state_path,
        dataset_builder=with_scorer(config.rl.dataset_builder, scorer),
        kl_reference_config=sft_reference(config.rl.kl_reference_config, sft.sampler_path),
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
    summary |= await compare_with_sft(config.comparison, rl_config, service_client, sft.sampler_path, rl.sampler_path)
    summary["seconds"] = round(time.monotonic() - started, 1)
    write_summary(root, summary)
    print(summary_table(summary), flush=True)
    return summary
