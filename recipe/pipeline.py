"""The three stages in a row: supervised fine-tuning, a preference model, reinforcement learning against it.

Stage 3 starts from the weights of stage 1 and is rewarded by the model of stage 2. After each stage stand gates
(docs/pipeline.md). If stage 2 fails, or its model is no better than chance on held-out pairs, stage 3 uses the
rule-based reward instead, unless the settings say otherwise, and says so (`reward_source_prm` 0).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import chz

import mint
from mint.errors import InvalidRequest, nearest_name
from recipe.gate_config import GateConfig
from recipe.metric_loggers import check_loggers
from recipe.pipeline_gates import GateKeeper, gates_of_rl, gates_of_sft
from recipe.pipeline_stages import (
    MissingStage,
    compare_with_sft,
    policy_of_stage_1,
    preference_model,
    sft_reference,
    with_scorer,
)
from recipe.pipeline_summary import SUMMARY_FILE, Summary, kept_of_stage_3, summary_table, write_summary
from recipe.pipeline_yardstick import YardstickConfig
from recipe.preference import train as preference_train
from recipe.report import reported
from recipe.rl import train as rl_train
from recipe.run_log import FolderLock
from recipe.supervised import train as sft_train

__all__ = ["STAGES", "SUMMARY_FILE", "ComparisonConfig", "Config", "MissingStage", "main", "summary_table"]

STAGES = ("sft", "preference", "rl")


@chz.chz(typecheck=True)
class ComparisonConfig:
    """The last word: policies of stage 1 and stage 3 on prompts that neither has seen."""

    # Replies drawn from each policy for each held-out prompt.
    replies_per_prompt: int = 4
    # Best-of-n with the reward as selector, beside RL: replies of stage 1's policy to each prompt; 0 leaves it out.
    best_of_n: int = 8
    # The first held-out prompts, for best-of-n; None: all.
    best_of_n_prompts: int | None = 32
    seed: int = 0

    @chz.validate
    def _check(self) -> None:
        for name, lowest in {"replies_per_prompt": 1, "best_of_n": 0, "best_of_n_prompts": 1}.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise InvalidRequest(f"comparison.{name}={value}: must be at least {lowest}")


@chz.chz(typecheck=True)
class Config:
    """A pipeline. The stages' own log_path is taken relative to this one's. rl.load_checkpoint_path, the scorer of
    rl.dataset_builder and, where it names none, the checkpoint of rl.kl_reference_config come from earlier stages."""

    # Folder of the whole run. Started again on the same folder, it goes on in the stage where it stopped.
    log_path: str
    # Stages to run, such as preference,rl; what they need of the others is taken from the folders of finished runs.
    stages: Sequence[str] = STAGES
    sft: sft_train.Config
    preference: preference_train.Config
    rl: rl_train.Config
    # Measures stage 3 while it trains, by something other than its reward.
    yardstick: YardstickConfig = chz.field(default_factory=YardstickConfig)
    comparison: ComparisonConfig = chz.field(default_factory=ComparisonConfig)
    # What each stage has to reach, and what follows where it does not.
    gates: GateConfig = chz.field(default_factory=GateConfig)
    # Where every stage's metrics go beside metrics.jsonl, unless the stage's own setting says otherwise.
    loggers: tuple[str, ...] = ()
    # Server; None means MINT_BASE_URL, and without that the embedded engine.
    base_url: str | None = None

    @chz.validate
    def _check_stages(self) -> None:
        check_loggers(self.loggers)
        unknown = [stage for stage in self.stages if stage not in STAGES]
        if isinstance(self.stages, str) or unknown or not self.stages:
            raise InvalidRequest(
                f"stages={self.stages!r}: must be one or several of {', '.join(STAGES)}, in a list or as "
                f"stages=preference,rl on the command line.{nearest_name(unknown[0], STAGES) if unknown else ''}"
            )

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
    with FolderLock(root), reported(root):
        return await _run_stages(with_loggers(config), root, service)


def with_loggers(config: Config) -> Config:
    """The pipeline's loggers in every stage that names none itself."""
    stages = {stage: getattr(config, stage) for stage in STAGES}
    return chz.replace(
        config, **{name: chz.replace(stage, loggers=stage.loggers or config.loggers) for name, stage in stages.items()}
    )


async def _run_stages(config: Config, root: Path, service: mint.ServiceClient | None) -> Summary:
    started = time.monotonic()
    service_client: mint.ServiceClient = service or mint.ServiceClient(base_url=config.base_url)
    keeper = GateKeeper(root)

    sft_config = chz.replace(config.sft, log_path=str(root / config.sft.log_path))
    sft = await policy_of_stage_1(config, sft_config, service_client)
    if sft is not None and sft.metrics:
        keeper.record(await gates_of_sft(config.gates, sft_config, sft, service_client))
        keeper.enforce()

    pairs_config = chz.replace(config.preference, log_path=str(root / config.preference.log_path))
    preference_config = config.yardstick.reward_config(pairs_config)
    preference, scorer = await preference_model(config, preference_config, service_client, keeper)

    summary: Summary = {
        "sft.nll_before": sft.metrics.get("nll_before") if sft else None,
        "sft.nll_after": sft.metrics.get("nll_after") if sft else None,
        "sft.state_path": sft.state_path if sft else None,
        "sft.sampler_path": sft.sampler_path if sft else None,
        "preference.test_pair_accuracy": preference.test_pair_accuracy if preference else None,
        "preference.state_path": preference.state_path if preference else None,
        "preference.sampler_path": preference.sampler_path if preference else None,
        "rl.reward_source_prm": None,
        "rl.state_path": None,
        "rl.sampler_path": None,
    }
    if "rl" in config.stages:
        assert sft is not None, "stage 3 without a policy to start from"
        print("Stage 3 of 3: reinforcement learning", flush=True)
        independent = await config.yardstick.train_second_model(pairs_config, root, service_client)
        rl_config = chz.replace(
            config.rl,
            log_path=str(root / config.rl.log_path),
            load_checkpoint_path=sft.state_path,
            dataset_builder=with_scorer(config.rl.dataset_builder, scorer),
            kl_reference_config=sft_reference(config.rl.kl_reference_config, sft.sampler_path),
        )
        yardsticks = await config.yardstick.open(independent, rl_config, service_client, sft.sampler_path)
        rl = await rl_train.main(rl_config, service_client, yardsticks)
        summary["rl.reward_source_prm"] = float(scorer is not None)
        summary |= config.yardstick.summary(Path(rl_config.log_path), rl.state_path, rl.sampler_path)
        summary |= await compare_with_sft(
            config.comparison, rl_config, service_client, sft.sampler_path, summary["rl.sampler_path"]
        )
        keeper.record(gates_of_rl(config.gates, rl_config, summary))
    else:
        print("Stage 3 of 3: not run", flush=True)
        kept, gates = kept_of_stage_3(root, summary)
        summary |= kept
        keeper.record(gates, is_told=True)
    summary["gates"] = keeper.to_json()
    summary["seconds"] = round(time.monotonic() - started, 1)
    write_summary(root, summary)
    print(summary_table(summary), flush=True)
    keeper.enforce()
    return summary
