"""An ensemble as the preference stage: several adapters on one base, trained on other seeds or other pairs.

Each member is a run of its own in members/0, members/1 and so on, and is resumed as such; the folder above them holds
what the stage hands on: the ensemble's scorer, its metrics on held-out pairs and its report card. Members are trained
one after the other: an engine takes training steps one at a time anyway, and so each member's bytes are the same
whatever the others do. When scoring, the requests of all members go out together.

Ensembles against over-optimisation: Coste et al. 2023, arXiv:2310.02743; Eisenstein et al. 2023, arXiv:2312.09244.

Axes: _M member, _N preference pair.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import chz
import torch

from mint.atomic_files import write_atomically
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe import journal, stage_manifest
from recipe.checkpoint_utils import (
    CHECKPOINTS_FILE,
    FINAL_NAME,
    CheckpointRecord,
    RunIdentity,
    get_last_checkpoint,
)
from recipe.model_info import get_context_length, resolve_renderer_name
from recipe.preference.data import pairs_sha256
from recipe.preference.pair_evaluation import PairEvaluation, PairRewards
from recipe.preference.rendered_pairs import load_pairs
from recipe.preference.report_card import CARD_FILE
from recipe.preference.result import PreferenceResult, finish
from recipe.preference.scorer import SCORER_KEY, RewardScale, ScorerSpec, conservative_mean
from recipe.preference.types import PreferenceDatasetBuilder, PreferenceSplit, prompt_key
from recipe.run_log import METRICS_FILE, FolderLock, RunLog, read_metrics
from recipe.tokenizer_utils import get_tokenizer
from renderers import get_renderer

if TYPE_CHECKING:
    import mint
    from recipe.preference.train import Config

TrainMember = Callable[["Config", "mint.ServiceClient"], Awaitable[PreferenceResult]]
MEMBERS_FOLDER = "members"
ENSEMBLE_FILE = "ensemble.json"


@chz.chz(typecheck=True)
class EnsembleConfig:
    """How many preference models are trained, how they differ and how they are combined."""

    # 1 is a single model in the stage's own folder.
    num_members: int = 1
    # "seeds": each has all pairs, another order and another new adapter. "folds": besides, each goes without the pairs
    # of one of num_members parts of the training prompts, so that each prompt is new to one member.
    differ_by: Literal["seeds", "folds"] = "seeds"
    # The reward is mean − std_coef·std over the members, each on its own scale.
    std_coef: float = 1.0

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _ranges(self) -> None:
        if self.num_members < 1:
            raise InvalidRequest(f"ensemble.num_members={self.num_members}: must be at least 1")
        if not (math.isfinite(self.std_coef) and self.std_coef >= 0.0):
            raise InvalidRequest(f"ensemble.std_coef={self.std_coef}: must be finite and at least 0")


@chz.chz(typecheck=True)
class WithoutFoldBuilder(PreferenceDatasetBuilder):
    """The training pairs without those of one part of the prompts. Which part a prompt is in follows from its text and
    from what other prompts there are; the pairs held out stay. `examples` should be the source's."""

    # All the pairs.
    source: PreferenceDatasetBuilder
    num_folds: int
    # From 0: the part that is left out.
    i_fold: int

    def __call__(self) -> PreferenceSplit:
        """See PreferenceDatasetBuilder. InvalidRequest where there are fewer prompts than parts."""
        split = self.source()
        prompts = {prompt_key(pair.prompt) for pair in split.train}
        if len(prompts) < self.num_folds:
            raise InvalidRequest(
                f"ensemble.num_members={self.num_folds}: there are only {len(prompts)} training prompts, and "
                "each member goes without some of its own; give more pairs or set ensemble.differ_by=seeds"
            )
        drawn = sorted(prompts, key=lambda prompt: (derive_seed("fold", prompt), prompt))
        left_out = set(drawn[self.i_fold :: self.num_folds])
        kept = [pair for pair in split.train if prompt_key(pair.prompt) not in left_out]
        return PreferenceSplit(train=kept, held_out=split.held_out)


def check_folder(log_path: str | Path, config: EnsembleConfig) -> None:
    """InvalidRequest where the folder holds a run that is no such ensemble."""
    folder = Path(log_path).expanduser()
    wanted = _shape(config)
    recorded: dict[str, Any] | None = None
    if (folder / ENSEMBLE_FILE).is_file():
        recorded = json.loads((folder / ENSEMBLE_FILE).read_bytes())
    elif (folder / CHECKPOINTS_FILE).is_file():
        recorded = _shape(EnsembleConfig())
    if recorded is not None and recorded != wanted:
        raise InvalidRequest(
            f"{folder} was made with {_in_words(recorded)} and is now asked for {_in_words(wanted)}; use another "
            "log_path, or the settings it was made with"
        )


async def train_ensemble(config: Config, service: mint.ServiceClient, train_member: TrainMember) -> PreferenceResult:
    """Train, or resume, or return at once when every member and the ensemble's own evaluation are complete."""
    renderer_name = resolve_renderer_name(config.renderer_name, config.model_name)
    identity = RunIdentity(config.model_name, config.lora_rank, renderer_name)
    renderer = get_renderer(renderer_name, get_tokenizer(config.model_name))
    context_length = await get_context_length(service, config.model_name)
    train, test = load_pairs(config.dataset_builder, config.readout, renderer, context_length)
    held_out = [pair.pair for pair in test.pairs]
    record = get_last_checkpoint(config.log_path)
    manifest = await stage_manifest.open_manifest(
        "preference",
        config,
        identity,
        renderer,
        pairs_sha256([pair.pair for pair in train.pairs], held_out),
        service,
        record=record,
    )
    if record is not None:
        members = [await train_member(one, service) for one in member_configs(config)]
        spec = ScorerSpec.from_record(record)
        if spec.members == tuple(member.scorer for member in members) and spec.std_coef == config.ensemble.std_coef:
            return await finish(config, manifest, record, held_out, service)

    folder = Path(config.log_path).expanduser()
    with FolderLock(folder):
        (folder / CARD_FILE).unlink(missing_ok=True)  # of other members
        write_atomically(folder / ENSEMBLE_FILE, (json.dumps(_shape(config.ensemble), indent=2) + "\n").encode())
        stage_manifest.begin(folder, manifest)
        members = []
        for i_member, one in enumerate(member_configs(config)):
            print(f"Preference model {i_member + 1} of {config.ensemble.num_members}", flush=True)
            members.append(await train_member(one, service))
        evaluation = PairEvaluation(config.readout, renderer, train.pairs, test.pairs)
        record, last_line = await _combine(config, identity, members, evaluation, service)
        curve = _mean_lines([one.log_path for one in member_configs(config)], record.step)
        journal.rewrite_lines(folder / METRICS_FILE, curve)
    # Not before: a logger that can follow one run at a time is the members' until here.
    with RunLog(folder, config=config, resume_step=record.step) as log:
        log.metrics(last_line | {"progress/done_frac": 1.0}, step=record.step)
        journal.append_line(folder / CHECKPOINTS_FILE, record.to_dict())
    return await finish(config, manifest, record, held_out, service)


def member_configs(config: Config) -> list[Config]:
    """The run of each member: its own folder and seed and, for folds, its own pairs. The first has the stage's seed."""
    configs: list[Config] = []
    for i_member in range(config.ensemble.num_members):
        builder = config.dataset_builder
        if config.ensemble.differ_by == "folds":
            builder = WithoutFoldBuilder(
                source=builder, num_folds=config.ensemble.num_members, i_fold=i_member, examples=builder.examples
            )
        configs.append(
            chz.replace(
                config,
                log_path=str(Path(config.log_path) / MEMBERS_FOLDER / str(i_member)),
                dataset_builder=builder,
                seed=derive_seed(config.seed, "ensemble member", i_member) if i_member else config.seed,
                ensemble=EnsembleConfig(),
            )
        )
    return configs


async def _combine(
    config: Config,
    identity: RunIdentity,
    members: Sequence[PreferenceResult],
    evaluation: PairEvaluation,
    service: mint.ServiceClient,
) -> tuple[CheckpointRecord, dict[str, float]]:
    """The record of the finished ensemble, and what it is worth on held-out pairs."""
    std_coef = config.ensemble.std_coef
    specs = tuple(member.scorer for member in members)
    rewards_M = [await evaluation.rewards_of(spec.build(service)) for spec in specs]
    chosen_MN = torch.stack([_scaled(rewards.chosen_N, spec) for rewards, spec in zip(rewards_M, specs, strict=True)])
    rejected_MN = torch.stack(
        [_scaled(rewards.rejected_N, spec) for rewards, spec in zip(rewards_M, specs, strict=True)]
    )
    rewards = PairRewards(conservative_mean(chosen_MN, std_coef), conservative_mean(rejected_MN, std_coef))
    temperature, calibration = evaluation.calibration(rewards)
    spread = torch.cat([chosen_MN, rejected_MN], dim=1).std(dim=0, unbiased=False).mean().item()
    metrics = {**evaluation.metrics(rewards), **calibration, "ensemble/disagreement": spread}
    accuracies = [accuracy for member in members if (accuracy := member.test_pair_accuracy) is not None]
    if accuracies:
        metrics["ensemble/mean_member_accuracy"] = sum(accuracies) / len(accuracies)
    spec = ScorerSpec(
        sampler_path=members[0].sampler_path,
        model_name=identity.base_model,
        renderer_name=specs[0].renderer_name,
        readout=config.readout,
        scale=RewardScale.of(rewards.all_rewards()),
        temperature=temperature,
        members=specs,
        std_coef=std_coef,
    )
    record = CheckpointRecord(
        FINAL_NAME,
        step=max(int(member.metrics["num_steps"]) for member in members),
        state_path=members[0].state_path,
        sampler_path=members[0].sampler_path,
        loop_state={SCORER_KEY: spec.to_json()},
        base_model=identity.base_model,
        renderer=identity.renderer_name,
        lora_rank=identity.lora_rank,
    )
    return record, metrics


def _scaled(rewards_N: torch.Tensor, spec: ScorerSpec) -> torch.Tensor:
    return (rewards_N - spec.scale.mean) / spec.scale.std


def _mean_lines(log_paths: Sequence[str], num_steps: int) -> list[dict[str, Any]]:
    """For each step before `num_steps` that all members have: the mean over them of each number, seconds left out."""
    lines_M = [{line["step"]: line for line in read_metrics(log_path)} for log_path in log_paths]
    found: list[dict[str, Any]] = []
    for step in sorted(set.intersection(*(set(lines) for lines in lines_M))):
        values_M = [lines[step] for lines in lines_M]
        keys = sorted(
            key
            for key in values_M[0]
            if key != "step"
            and not key.startswith("time/")
            and all(isinstance(values.get(key), int | float) for values in values_M)
        )
        if step < num_steps:
            found.append({"step": step} | {key: sum(one[key] for one in values_M) / len(values_M) for key in keys})
    return found


def _shape(config: EnsembleConfig) -> dict[str, Any]:
    """What makes an ensemble another one."""
    if config.num_members == 1:
        return {"num_members": 1}
    return {"num_members": config.num_members, "differ_by": config.differ_by}


def _in_words(shape: dict[str, Any]) -> str:
    return ", ".join(f"ensemble.{name}={value}" for name, value in shape.items())
