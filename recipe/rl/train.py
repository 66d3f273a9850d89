"""Reinforcement learning on groups (GRPO): sample with the current weights, score, step, again.

What is left out on purpose: no division by the group's standard deviation and no per-sequence mean of the loss (Dr.
GRPO, arXiv:2503.20783), no value model, no clipping unless loss_fn asks for it. The weights that sample are those that
are trained, so the first optimizer step of an iteration is exactly on-policy.

Axes: _P group of the batch (problem), _D training sequence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz

import mint
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.checkpoint_utils import (
    FINAL_NAME,
    CheckpointRecord,
    RunIdentity,
    find_resume_record,
    open_training_client,
    save_checkpoint,
)
from recipe.completers import MintTokenCompleter
from recipe.evaluators import Evaluator, run_evaluators
from recipe.optimizer_config import AdamConfig
from recipe.rl.advantages import centred
from recipe.rl.batch import KLPenalty, ScoredGroup, build_batch, score_groups
from recipe.rl.evaluation import RLTestSetEvaluator
from recipe.rl.kl import KLReferenceConfig
from recipe.rl.metrics import environment_metrics, sample_train_metrics
from recipe.rl.policy_update import PolicyLoss, policy_loss_at, update_policy
from recipe.rl.rollout_export import export_rollouts
from recipe.rl.rollouts import SeedScope, roll_out_groups
from recipe.rl.stopwatch import Stopwatch
from recipe.rl.types import RLDataset, RLDatasetBuilder, TrajectoryGroup
from recipe.run_log import RunLog, read_metrics
from recipe.schedules import LRSchedule, check_learning_rate, scheduled_learning_rate

logger = logging.getLogger(__name__)

__all__ = ["Config", "KLReferenceConfig", "RLResult", "main"]


@chz.chz(typecheck=True)
class Config:
    """A run. The names are MinT's; `optimizer`, `eval_temperature` and `seed` are added."""

    # Base model: "mint-tiny", a local folder or a hub id.
    model_name: str
    # Makes the groups of environments to train on and to be tested on; the renderer is its affair.
    dataset_builder: RLDatasetBuilder
    # Folder of the run; an existing run in it is resumed.
    log_path: str
    # Adam's highest step size.
    learning_rate: float
    # Most tokens sampled in one turn.
    max_tokens: int
    # Sampling temperature of training; the loss is taken at the same temperature where the backend can.
    temperature: float = 1.0
    # How the learning rate falls over the iterations: "constant", "linear" or "cosine".
    lr_schedule: LRSchedule = "constant"
    # Iterations over which it first rises to its highest.
    warmup_steps: int = 0
    # Rank of the LoRA adapter.
    lora_rank: int = 32
    # mint:// path of weights to start from, with a fresh optimizer; None draws a new adapter.
    load_checkpoint_path: str | None = None
    # One of policy_update.POLICY_LOSSES.
    loss_fn: str = "importance_sampling"
    # Settings of that loss, such as {"clip_low_threshold": 0.8}.
    loss_fn_config: dict[str, float] | None = None
    # Optimizer steps per iteration, each on its share of the batch.
    num_substeps: int = 1
    # Adam, the learning rate aside.
    optimizer: AdamConfig = chz.field(default_factory=AdamConfig)
    # Cost of one nat of KL per token, taken off the advantages; 0 means none.
    kl_penalty_coef: float = 0.0
    # What KL is measured against; given with a coefficient of 0, KL is reported only.
    kl_reference_config: KLReferenceConfig | None = None
    # Leave groups whose members all have the same reward out of the update.
    remove_constant_reward_groups: bool = False
    # Iterations at most; None means every batch of the dataset once.
    max_steps: int | None = None
    # Evaluate before every such iteration and at the end; 0 means never.
    eval_every: int = 20
    # Sampling temperature of evaluation; 0 is argmax.
    eval_temperature: float = 1.0
    # Save after every such iteration; 0 means only at the end.
    save_every: int = 20
    # Life of checkpoints other than the last one; None means for good.
    ttl_seconds: int | None = None
    # Groups per iteration written as text beside the exported rollouts.
    num_groups_to_log: int = 4
    # Write rollouts/iteration_000012.jsonl and rollouts/test_000012.jsonl.
    rollout_json_export: bool = True
    # Server; None means MINT_BASE_URL, and without that the embedded engine.
    base_url: str | None = None
    # Of the new adapter and of every rollout.
    seed: int = 0

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        PolicyLoss(self.loss_fn)
        check_learning_rate(self)
        at_least_one = {"max_tokens": self.max_tokens, "lora_rank": self.lora_rank, "num_substeps": self.num_substeps}
        if self.max_steps is not None:
            at_least_one["max_steps"] = self.max_steps
        for name, value in at_least_one.items():
            if value < 1:
                raise InvalidRequest(f"{name}={value}: must be at least 1.")
        for name in ("eval_every", "save_every", "num_groups_to_log", "eval_temperature"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name}={getattr(self, name)}: must not be negative.")
        if self.temperature <= 0:
            raise InvalidRequest(
                f"temperature={self.temperature}: must be positive; at temperature 0 all members of a group would be "
                "the same."
            )
        if self.kl_penalty_coef < 0 or (self.kl_penalty_coef > 0 and self.kl_reference_config is None):
            raise InvalidRequest(
                f"kl_penalty_coef={self.kl_penalty_coef}: must not be negative, and needs a reference; set"
                " kl_reference_config.base_model (and kl_reference_config.load_checkpoint_path)."
            )
        if "temperature" in (self.loss_fn_config or {}):
            raise InvalidRequest("loss_fn_config has 'temperature'; set the config's own temperature instead.")


@dataclass(frozen=True)
class RLResult:
    """What a finished run leaves behind."""

    # The last checkpoint: with optimizer, and for sampling.
    state_path: str
    sampler_path: str
    # The last iteration's metrics, and those of the evaluation after it.
    metrics: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """Everything a loop over iterations works with."""

    config: Config
    training_client: mint.TrainingClient
    train_dataset: RLDataset
    num_iterations: int
    loss: PolicyLoss
    reference_client: mint.SamplingClient | None
    test_set: RLTestSetEvaluator | None
    evaluators: Sequence[Evaluator]


async def main(
    config: Config, service: mint.ServiceClient | None = None, evaluators: Sequence[Evaluator] = ()
) -> RLResult:
    """Run the stage, or go on with the run that is in log_path; a finished run returns at once.

    service: the client to use; None makes one for config.base_url. evaluators: run whenever the test set is played.
    Raises InvalidRequest for bad settings before anything is sampled.
    """
    renderer_name = getattr(config.dataset_builder, "renderer_name", None)
    identity = RunIdentity(config.model_name, config.lora_rank, renderer_name)
    record = find_resume_record(config.log_path, identity)
    start = record.step if record else 0
    train_dataset, test_dataset = await config.dataset_builder()
    num_iterations = _num_iterations(config, train_dataset)
    if record is not None and record.is_final and start >= num_iterations:
        logger.info("%s holds a finished run of %d iterations", config.log_path, start)
        return _result(config, record)
    service_client: mint.ServiceClient = service or mint.ServiceClient(base_url=config.base_url)

    with RunLog(config.log_path, config=config, resume_step=start if record else None) as log:
        training_client = await open_training_client(
            service_client,
            identity,
            seed=derive_seed(config.seed, "adapter"),
            record=record,
            load_checkpoint_path=config.load_checkpoint_path,
        )
        reference_client = await _open_reference(config, service_client)
        run = Run(
            config,
            training_client,
            train_dataset,
            num_iterations,
            policy_loss_at(config.temperature, config.loss_fn, config.loss_fn_config, training_client),
            reference_client,
            _test_set(config, test_dataset, reference_client),
            evaluators,
        )
        for iteration in range(start, num_iterations):
            metrics = await run_iteration(run, iteration)
            log.metrics({**metrics, "progress/done_frac": (iteration + 1) / num_iterations}, step=iteration)
            done = iteration + 1
            if config.save_every > 0 and done % config.save_every == 0 and done < num_iterations:
                await save_checkpoint(
                    training_client,
                    f"{done:06d}",
                    config.log_path,
                    step=done,
                    identity=identity,
                    ttl_seconds=config.ttl_seconds,
                )

        last_step = max(start, num_iterations)
        if metrics := await _evaluate(run, last_step):
            log.metrics({**metrics, "progress/done_frac": 1.0}, step=last_step)
        record = await save_checkpoint(training_client, FINAL_NAME, config.log_path, step=last_step, identity=identity)
    return _result(config, record)


async def run_iteration(run: Run, iteration: int) -> dict[str, Any]:
    """One iteration, from the current weights to the next: its metrics.

    Everything random in it is derived from config.seed and `iteration`, so it can be repeated from a checkpoint.
    """
    config = run.config
    learning_rate = scheduled_learning_rate(config, iteration, run.num_iterations)
    metrics: dict[str, Any] = {"learning_rate": learning_rate}
    if config.eval_every > 0 and iteration % config.eval_every == 0:
        metrics |= await _evaluate(run, iteration)

    clock = Stopwatch()
    with clock.measure("snapshot"):
        sampling_client = await run.training_client.save_weights_and_get_sampling_client_async()
    with clock.measure("sampling"):
        policy = MintTokenCompleter(sampling_client, config.max_tokens, config.temperature)
        seeds = SeedScope(config.seed, "train", iteration)
        groups_P = await roll_out_groups(run.train_dataset.get_batch(iteration), policy, seeds, min_group_size=2)
    metrics |= environment_metrics(groups_P)

    scored_P = score_groups(groups_P, centred)
    _export(run, f"iteration_{iteration:06d}", scored_P)
    with clock.measure("batch"):
        batch = await build_batch(
            scored_P,
            remove_constant_reward_groups=config.remove_constant_reward_groups,
            penalty=_kl_penalty(run, sampling_client),
        )
    metrics |= batch.metrics

    metrics["batch/is_skipped"] = float(not batch.sequences_D)
    if batch.sequences_D:
        with clock.measure("training"):
            adam_params = config.optimizer.adam_params(learning_rate)
            update = await update_policy(
                run.training_client, batch.sequences_D, run.loss, adam_params, config.num_substeps
            )
        metrics |= update.metrics | sample_train_metrics(update.trained_D)
    return metrics | clock.metrics()


async def _evaluate(run: Run, iteration: int) -> dict[str, float]:
    """The metrics of the test set and of all evaluators, for the weights as they are now; {} where there are none."""
    if run.config.eval_every == 0 or (run.test_set is None and not run.evaluators):
        return {}
    started = time.perf_counter()
    metrics: dict[str, float] = {}
    if run.test_set is not None:
        sampling_client = await run.training_client.save_weights_and_get_sampling_client_async()
        metrics, groups_P = await run.test_set.evaluate(sampling_client)
        _export(run, f"test_{iteration:06d}", groups_P)
    metrics |= await run_evaluators(run.evaluators, run.training_client)
    return {**metrics, "time/evaluation": time.perf_counter() - started}


def _export(run: Run, name: str, groups_P: Sequence[TrajectoryGroup | ScoredGroup]) -> None:
    config = run.config
    export_rollouts(
        Path(config.log_path).expanduser() / "rollouts" / name,
        groups_P,
        run.training_client.get_tokenizer(),
        as_json=config.rollout_json_export,
        num_groups_as_text=config.num_groups_to_log,
    )


async def _open_reference(config: Config, service: mint.ServiceClient) -> mint.SamplingClient | None:
    reference = config.kl_reference_config
    if reference is None:
        return None
    if reference.load_checkpoint_path is None:
        return await service.create_sampling_client_async(base_model=reference.base_model)
    return await service.create_sampling_client_async(model_path=reference.load_checkpoint_path)


def _test_set(
    config: Config, dataset: RLDataset | None, reference_client: mint.SamplingClient | None
) -> RLTestSetEvaluator | None:
    if dataset is None:
        return None
    return RLTestSetEvaluator(dataset, config.max_tokens, config.eval_temperature, config.seed, reference_client)


def _num_iterations(config: Config, dataset: RLDataset) -> int:
    if len(dataset) == 0:
        raise InvalidRequest("the training dataset has no batches; give it at least one batch of groups.")
    return len(dataset) if config.max_steps is None else min(len(dataset), config.max_steps)


def _kl_penalty(run: Run, sampling_client: mint.SamplingClient) -> KLPenalty | None:
    if run.reference_client is None:
        return None
    return KLPenalty(run.reference_client, run.config.kl_penalty_coef, sampling_client, run.config.temperature)


def _result(config: Config, record: CheckpointRecord) -> RLResult:
    assert record.state_path is not None and record.sampler_path is not None, f"incomplete record {record.name!r}"
    lines = [line for line in read_metrics(config.log_path) if line["step"] < record.step]
    final_lines = [line for line in read_metrics(config.log_path) if line["step"] == record.step]
    metrics = {key: value for line in lines[-1:] + final_lines for key, value in line.items() if key != "step"}
    return RLResult(record.state_path, record.sampler_path, metrics)
