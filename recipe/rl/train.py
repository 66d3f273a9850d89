"""Reinforcement learning on groups (GRPO): from a config to the last checkpoint.

What the defaults leave out on purpose: no division by the group's standard deviation and no per-sequence mean of the
loss (Dr. GRPO, arXiv:2503.20783), no clipping; docs/losses.md has the settings for those and for other papers. There is
no value model. The weights that sample are those that are trained, so the first optimizer step of an iteration is
exactly on-policy, other modes of the loop aside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import mint
from mint.errors import InvalidRequest, NonFiniteError
from mint.seeds import derive_seed
from recipe import stage_manifest
from recipe.checkpoint_utils import (
    FINAL_NAME,
    CheckpointRecord,
    RunIdentity,
    find_resume_record,
    open_training_client,
    save_checkpoint,
)
from recipe.evaluators import Evaluator, IterationEvaluator
from recipe.numeric_faults import NumericFaults
from recipe.report import bring_up_to_date
from recipe.rl.asynchronous import Asynchronous
from recipe.rl.config import Config
from recipe.rl.env_faults import FaultWindow
from recipe.rl.evaluation import RLTestSetEvaluator
from recipe.rl.kl import KLReferenceConfig
from recipe.rl.kl_coefficient import KLCoefficient
from recipe.rl.loop_modes import LoopMode
from recipe.rl.on_policy import OnPolicy
from recipe.rl.policy_update import policy_loss_at
from recipe.rl.rl_manifest import open_rl_manifest
from recipe.rl.run import Run
from recipe.rl.streaming import Streaming
from recipe.rl.types import RLDataset
from recipe.run_log import RunLog, read_metrics

logger = logging.getLogger(__name__)

__all__ = ["Config", "KLReferenceConfig", "RLResult", "main"]


@dataclass(frozen=True)
class RLResult:
    """What a finished run leaves behind."""

    # The last checkpoint: with optimizer, and for sampling.
    state_path: str
    sampler_path: str
    # The last iteration's metrics, and those of the evaluation after it.
    metrics: dict[str, Any]


async def main(
    config: Config,
    service: mint.ServiceClient | None = None,
    evaluators: Sequence[Evaluator | IterationEvaluator] = (),
    on_step: Callable[[int, dict[str, Any]], None] | None = None,
) -> RLResult:
    """Run the stage, or go on with the run that is in log_path; a finished run returns at once.

    service: the client to use; None makes one for config.base_url. evaluators: run whenever the test set is played,
    or when they say so themselves. on_step: called after each iteration with its index and metrics.
    Raises InvalidRequest for bad settings before anything is sampled.
    """
    renderer_name = getattr(config.dataset_builder, "renderer_name", None)
    identity = RunIdentity(config.model_name, config.lora_rank, renderer_name)
    service_client: mint.ServiceClient = service or mint.ServiceClient(base_url=config.base_url)
    record = await find_resume_record(config.log_path, identity, service_client)
    start, recorded = (record.step, record.loop_state) if record else (0, {})
    train_dataset, test_dataset = await config.dataset_builder()
    if "dataset" in recorded:
        train_dataset.load_state_dict(recorded["dataset"])
    num_iterations = _num_iterations(config, train_dataset)
    manifest = await open_rl_manifest(config, identity, train_dataset, test_dataset, service_client, record)
    if record is not None and record.is_final and start >= num_iterations:
        stage_manifest.complete(config.log_path, manifest, record)
        bring_up_to_date(config.log_path)
        logger.info("%s holds a finished run of %d iterations", config.log_path, start)
        return _result(config, record)

    with RunLog(config.log_path, config=config, resume_step=start if record else None) as log:
        stage_manifest.begin(config.log_path, manifest)
        training_client = await open_training_client(
            service_client,
            identity,
            seed=derive_seed(config.seed, "adapter"),
            record=record,
            load_checkpoint_path=config.load_checkpoint_path,
            lora_targets=config.lora_targets,
        )
        faults = await NumericFaults.open(config.non_finite, training_client, config.log_path, identity, record)
        reference_client = await _open_reference(config, service_client)
        run = Run(
            config,
            training_client,
            train_dataset,
            num_iterations,
            policy_loss_at(config.temperature, config.loss_fn, config.loss_fn_config, training_client),
            reference_client,
            KLCoefficient(config.kl_penalty_coef, config.kl_penalty_config.adaptive, recorded),
            _test_set(config, test_dataset, reference_client),
            evaluators,
            FaultWindow(config.env_faults, recorded),
        )
        run.start_evaluators(start)
        save = partial(save_checkpoint, training_client, log_path=config.log_path, identity=identity)
        async with aclosing(_loop_mode(run, start, recorded)) as mode:
            for iteration in range(start, num_iterations):
                metrics: dict[str, Any] = {"learning_rate": run.adam_params(iteration).learning_rate}
                metrics |= await run.evaluate(iteration)
                try:
                    await mode.run_iteration(iteration, metrics)
                except NonFiniteError as error:
                    metrics |= await faults.handle(error, iteration)
                log.metrics({**metrics, "progress/done_frac": (iteration + 1) / num_iterations}, step=iteration)
                if on_step is not None:
                    on_step(iteration, metrics)
                done = iteration + 1
                if config.save_every > 0 and done % config.save_every == 0 and done < num_iterations:
                    loop_state = faults.loop_state() | run.loop_state() | mode.loop_state()
                    await save(f"{done:06d}", step=done, ttl_seconds=config.ttl_seconds, loop_state=loop_state)

        last_step = max(start, num_iterations)
        if metrics := await run.evaluate(last_step):
            log.metrics({**metrics, "progress/done_frac": 1.0}, step=last_step)
        record = await save(FINAL_NAME, step=last_step, loop_state=faults.loop_state() | run.loop_state())
    stage_manifest.complete(config.log_path, manifest, record)
    bring_up_to_date(config.log_path)
    return _result(config, record)


async def load_result(config: Config, service: mint.ServiceClient) -> RLResult | None:
    """What a finished run in config.log_path left behind, whatever its length; None where there is none."""
    identity = RunIdentity(config.model_name, config.lora_rank, getattr(config.dataset_builder, "renderer_name", None))
    record = await find_resume_record(config.log_path, identity, service)
    return _result(config, record) if record is not None and record.is_final else None


def _loop_mode(run: Run, start: int, loop_state: dict[str, Any]) -> LoopMode:
    if run.config.async_config is not None:
        return Asynchronous(run, run.config.async_config, start, loop_state)
    if run.config.stream_minibatch_config is not None:
        return Streaming(run, run.config.stream_minibatch_config)
    return OnPolicy(run)


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
    return RLTestSetEvaluator(
        dataset, config.max_tokens, config.eval_temperature, config.seed, reference_client, config.env_faults
    )


def _num_iterations(config: Config, dataset: RLDataset) -> int:
    if len(dataset) == 0:
        raise InvalidRequest("the training dataset has no batches; give it at least one batch of groups.")
    return len(dataset) if config.max_steps is None else min(len(dataset), config.max_steps)


def _result(config: Config, record: CheckpointRecord) -> RLResult:
    assert record.state_path is not None and record.sampler_path is not None, f"incomplete record {record.name!r}"
    lines = [line for line in read_metrics(config.log_path) if line["step"] < record.step]
    final_lines = [line for line in read_metrics(config.log_path) if line["step"] == record.step]
    metrics = {key: value for line in lines[-1:] + final_lines for key, value in line.items() if key != "step"}
    return RLResult(record.state_path, record.sampler_path, metrics)
