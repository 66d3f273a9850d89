"""Supervised fine-tuning, from first to last step.

Deviation from Tinker's recipe: weights are divided by their batch's total, so the loss is the mean over supervised
tokens and the gradient's size does not depend on how long the examples are (docs/metrics.md).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import chz

from mint import types
from mint.errors import InvalidRequest, NonFiniteError
from mint.seeds import derive_seed
from recipe import checkpoint_utils, stage_manifest
from recipe.checkpoint_utils import CheckpointRecord, RunIdentity
from recipe.epoch_stage_config import EpochStageConfig
from recipe.evaluators import Evaluator, run_evaluators
from recipe.model_info import get_context_length, resolve_renderer_name
from recipe.numeric_faults import NumericFaults, step_outcome
from recipe.report import bring_up_to_date
from recipe.run_log import RunLog, read_metrics
from recipe.schedules import scheduled_learning_rate
from recipe.supervised.data import data_sha256
from recipe.supervised.nll import NLLEvaluator, mean_normalised, summed_nll, total_weight
from recipe.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from recipe.tokenizer_utils import get_tokenizer
from renderers import get_renderer

if TYPE_CHECKING:
    import mint


@chz.chz(typecheck=True)
class Config(EpochStageConfig):
    """Settings of a supervised run."""

    dataset_builder: SupervisedDatasetBuilder
    eval_every: int = 20
    save_every: int = 20


@dataclass(frozen=True)
class SFTResult:
    """What a supervised run leaves behind.

    metrics: nll_before and nll_after (held-out, where there is held-out data), train_mean_nll (last step), num_steps.
    held_out: the held-out data; None where there are none, or where `load_result` made no data.
    """

    state_path: str
    sampler_path: str
    metrics: dict[str, float] = field(default_factory=dict)
    held_out: SupervisedDataset | None = field(default=None, repr=False, compare=False)


async def main(
    config: Config, service: mint.ServiceClient | None = None, evaluators: Sequence[Evaluator] = ()
) -> SFTResult:
    """Train, or resume, or return at once when the run is complete.

    service: the client to use; None makes one from the environment (MINT_BASE_URL). evaluators: run with the held-out
    NLL. Raises InvalidRequest for bad settings and data before anything is trained.
    """
    renderer_name = resolve_renderer_name(config.renderer_name, config.model_name)
    identity = RunIdentity(config.model_name, config.lora_rank, renderer_name)
    service = service or _service_from_environment()
    record = await checkpoint_utils.find_resume_record(config.log_path, identity, service)

    renderer = get_renderer(renderer_name, get_tokenizer(config.model_name))
    dataset, test_dataset = config.dataset_builder(renderer, await get_context_length(service, config.model_name))
    num_steps = config.num_epochs * len(dataset)
    num_steps = num_steps if config.max_steps is None else min(num_steps, config.max_steps)
    manifest = await stage_manifest.open_manifest(
        "sft", config, identity, renderer, data_sha256(dataset, test_dataset), service, record=record
    )
    if record is not None and record.is_final and record.step >= num_steps:
        return _finish(config, manifest, record, test_dataset)
    if test_dataset is not None:
        evaluators = [NLLEvaluator(test_dataset), *evaluators]
    first_step = record.step if record is not None else 0

    with RunLog(config.log_path, config=config, resume_step=first_step if record is not None else None) as log:
        stage_manifest.begin(config.log_path, manifest)
        client = await checkpoint_utils.open_training_client(
            service,
            identity,
            seed=derive_seed(config.seed, "adapter"),
            record=record,
            load_checkpoint_path=config.load_checkpoint_path,
        )
        faults = await NumericFaults.open(config.non_finite, client, config.log_path, identity, record)
        save = partial(checkpoint_utils.save_checkpoint, client, log_path=config.log_path, identity=identity)
        batches = BatchCursor(dataset, config.seed)
        data = batches.at(first_step) if first_step < num_steps else []
        for step in range(first_step, num_steps):
            is_eval_due = step == 0 or (config.eval_every > 0 and step % config.eval_every == 0)
            metrics = await run_evaluators(evaluators, client) if is_eval_due else {}

            started = time.monotonic()
            adam_params = config.optimizer.adam_params(scheduled_learning_rate(config, step, num_steps))
            loss_future = client.forward_backward(mean_normalised(data), "cross_entropy")
            step_future = client.optim_step(adam_params)
            next_data = batches.at(step + 1) if step + 1 < num_steps else []  # while the engine computes
            try:
                metrics |= step_metrics(data, *await step_outcome(loss_future, step_future))
            except NonFiniteError as error:
                metrics |= await faults.handle(error, step)

            metrics |= {
                "learning_rate": adam_params.learning_rate,
                "epoch": step // len(dataset),
                "num_dropped": dataset.num_dropped,
                "progress/done_frac": (step + 1) / num_steps,
                "time/step": time.monotonic() - started,
            }
            log.metrics(metrics, step=step)
            data = next_data
            if config.save_every > 0 and (step + 1) % config.save_every == 0 and step + 1 < num_steps:
                await save(
                    f"{step + 1:06d}", step=step + 1, ttl_seconds=config.ttl_seconds, loop_state=faults.loop_state()
                )

        done_steps = max(first_step, num_steps)
        if evaluators:
            log.metrics(await run_evaluators(evaluators, client) | {"progress/done_frac": 1.0}, step=done_steps)
        record = await save(checkpoint_utils.FINAL_NAME, step=done_steps, loop_state=faults.loop_state())
    return _finish(config, manifest, record, test_dataset)


async def load_result(config: Config, service: mint.ServiceClient) -> SFTResult | None:
    """What a finished run in config.log_path left behind, whatever its length; None where there is none."""
    identity = RunIdentity(
        config.model_name, config.lora_rank, resolve_renderer_name(config.renderer_name, config.model_name)
    )
    record = await checkpoint_utils.find_resume_record(config.log_path, identity, service)
    return _result(config.log_path, record) if record is not None and record.is_final else None


class BatchCursor:
    """The batch of any step: epoch and batch follow from the step, and the epoch's order from seed and epoch."""

    def __init__(self, dataset: SupervisedDataset, seed: int) -> None:
        if len(dataset) == 0:
            raise InvalidRequest("the dataset has no batch; it needs at least one example")
        self._dataset = dataset
        self._seed = seed
        self._epoch: int | None = None

    def at(self, step: int) -> list[types.Datum]:
        """The datums of step `step`."""
        epoch, i_batch = divmod(step, len(self._dataset))
        if epoch != self._epoch:
            self._dataset.set_epoch(derive_seed(self._seed, "epoch", epoch))
            self._epoch = epoch
        return self._dataset.get_batch(i_batch)


def step_metrics(
    data: Sequence[types.Datum], output: types.ForwardBackwardOutput, response: types.OptimStepResponse
) -> dict[str, float]:
    """What one step says about itself, from its batch (before normalisation) and the two answers of the client."""
    num_loss_tokens = total_weight(data)
    # Metric names of the API carry a reduction ("grad_norm:mean"), which says nothing about a single step.
    optimizer = {f"optim/{name.split(':')[0]}": value for name, value in (response.metrics or {}).items()}
    return {
        "train_mean_nll": summed_nll(data, output) / num_loss_tokens,
        "num_sequences": len(data),
        "num_tokens": sum(datum.model_input.length for datum in data),
        "num_loss_tokens": num_loss_tokens,
        **optimizer,
    }


def _service_from_environment() -> mint.ServiceClient:
    import mint

    return mint.ServiceClient()


def _finish(
    config: Config,
    manifest: stage_manifest.StageManifest,
    record: CheckpointRecord,
    test_dataset: SupervisedDataset | None,
) -> SFTResult:
    stage_manifest.complete(config.log_path, manifest, record)
    bring_up_to_date(config.log_path)
    return replace(_result(config.log_path, record), held_out=test_dataset)


def _result(log_path: str, record: CheckpointRecord) -> SFTResult:
    lines = read_metrics(log_path)
    test_nlls = [line["test/nll"] for line in lines if "test/nll" in line]
    metrics: dict[str, float] = {"num_steps": record.step}
    if test_nlls:
        metrics |= {"nll_before": test_nlls[0], "nll_after": test_nlls[-1]}
    if train_nlls := [line["train_mean_nll"] for line in lines if "train_mean_nll" in line]:
        metrics["train_mean_nll"] = train_nlls[-1]
    assert record.state_path is not None and record.sampler_path is not None, f"incomplete record {record}"
    return SFTResult(record.state_path, record.sampler_path, metrics)
