"""Learning from preferences without a preference model, from first to last step: DPO and its family.

One optimizer step a batch: a pair's two replies in one request, so that their prompt is computed once. The reference's
logprobs are computed before the first step and kept on disk (see reference_cache).

Axes: _D datum, _E example.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mint import types
from mint.custom_losses import couples_only_within, reads_weighted_tokens
from mint.errors import InvalidRequest, NonFiniteError
from mint.seeds import derive_seed
from recipe import checkpoint_utils, stage_manifest
from recipe.checkpoint_utils import CheckpointRecord, RunIdentity
from recipe.evaluators import Evaluator, TrainingClientEvaluator, run_evaluators
from recipe.model_info import get_context_length, resolve_renderer_name
from recipe.numeric_faults import NumericFaults, step_outcome
from recipe.preference.data import batch_of_step, num_batches
from recipe.preference.dpo.config import Config, LossConfig
from recipe.preference.dpo.examples import (
    Example,
    Examples,
    examples_sha256,
    labelled_examples,
    pair_examples,
    with_mismatched,
)
from recipe.preference.dpo.labelled_replies import LabelledReplyDatasetBuilder
from recipe.preference.dpo.reference_cache import ReferenceCache, ReferenceIdentity
from recipe.preference.dpo.reply_batches import ReplyBatch, loss_and_metrics, with_interval
from recipe.preference.result import last_metrics
from recipe.report import bring_up_to_date
from recipe.run_log import RunLog
from recipe.schedules import scheduled_learning_rate
from recipe.tokenizer_utils import get_tokenizer
from renderers import Renderer, get_renderer

if TYPE_CHECKING:
    import mint

__all__ = ["Config", "DPOResult", "HeldOutPreferences", "LossConfig", "load_examples", "main"]

logger = logging.getLogger(__name__)

REFERENCE_FOLDER = "reference_logprobs"
# Held-out examples in one request.
_EVALUATED_TOGETHER = 64


@dataclass(frozen=True)
class DPOResult:
    """What a run leaves behind.

    metrics: those of the last training step and, where examples were held out, of the evaluation after it
    (docs/metrics.md has their names), test/pair_accuracy_before and num_steps.
    """

    state_path: str
    sampler_path: str
    metrics: dict[str, float] = field(default_factory=dict)


async def main(
    config: Config, service: mint.ServiceClient | None = None, evaluators: Sequence[Evaluator] = ()
) -> DPOResult:
    """Train, or resume, or return at once when the run is complete.

    service: the client to use; None makes one from the environment (MINT_BASE_URL). evaluators: run with the held-out
    examples. Raises InvalidRequest for bad settings and data before anything is trained.
    """
    renderer_name = resolve_renderer_name(config.renderer_name, config.model_name)
    identity = RunIdentity(config.model_name, config.lora_rank, renderer_name)
    service = service or _service_from_environment()
    record = await checkpoint_utils.find_resume_record(config.log_path, identity, service)

    renderer = get_renderer(renderer_name, get_tokenizer(config.model_name))
    train, test = load_examples(config, renderer, await get_context_length(service, config.model_name))
    batch_size = config.dataset_builder.examples.batch_size
    steps_per_epoch = num_batches(len(train.examples_E), batch_size)
    num_steps = config.num_epochs * steps_per_epoch
    num_steps = num_steps if config.max_steps is None else min(num_steps, config.max_steps)
    manifest = await stage_manifest.open_manifest(
        "dpo", config, identity, renderer, examples_sha256(train, test), service, record=record
    )
    if record is not None and record.is_final and record.step >= num_steps:
        return _finish(config, manifest, record)
    first_step = record.step if record is not None else 0

    with RunLog(config.log_path, config=config, resume_step=first_step if record is not None else None) as log:
        stage_manifest.begin(config.log_path, manifest)
        if config.loss.row.uses_reference:
            train, test = await _with_reference(config, service, identity, train, test)
        client = await checkpoint_utils.open_training_client(
            service,
            identity,
            seed=derive_seed(config.seed, "adapter"),
            record=record,
            load_checkpoint_path=config.load_checkpoint_path,
        )
        faults = await NumericFaults.open(config.non_finite, client, config.log_path, identity, record)
        save = partial(checkpoint_utils.save_checkpoint, client, log_path=config.log_path, identity=identity)
        if test.examples_E:
            evaluators = [HeldOutPreferences(test.examples_E, config.loss), *evaluators]
        for step in range(first_step, num_steps):
            is_eval_due = step == 0 or (config.eval_every > 0 and step % config.eval_every == 0)
            metrics = await run_evaluators(evaluators, client) if is_eval_due else {}

            started = time.monotonic()
            indices = batch_of_step(len(train.examples_E), batch_size, step, config.seed)
            batch = ReplyBatch.of([train.examples_E[i] for i in indices])
            adam_params = config.optimizer.adam_params(scheduled_learning_rate(config, step, num_steps))
            loss_future = client.forward_backward_custom(batch.datums_D, batch_loss(batch, config.loss))
            step_future = client.optim_step(adam_params)
            try:
                metrics |= step_metrics(batch, *await step_outcome(loss_future, step_future))
            except NonFiniteError as error:
                metrics |= await faults.handle(error, step)

            metrics |= {
                "learning_rate": adam_params.learning_rate,
                "epoch": step // steps_per_epoch,
                "num_dropped": train.num_dropped + test.num_dropped,
                "num_ties": train.num_ties + test.num_ties,
                "progress/done_frac": (step + 1) / num_steps,
                "time/step": time.monotonic() - started,
            }
            log.metrics(metrics, step=step)
            if config.save_every > 0 and (step + 1) % config.save_every == 0 and step + 1 < num_steps:
                await save(
                    f"{step + 1:06d}", step=step + 1, ttl_seconds=config.ttl_seconds, loop_state=faults.loop_state()
                )

        done_steps = max(first_step, num_steps)
        if evaluators:
            log.metrics(await run_evaluators(evaluators, client) | {"progress/done_frac": 1.0}, step=done_steps)
        record = await save(checkpoint_utils.FINAL_NAME, step=done_steps, loop_state=faults.loop_state())
    return _finish(config, manifest, record)


def load_examples(config: Config, renderer: Renderer, context_length: int | None = None) -> tuple[Examples, Examples]:
    """Training and held-out examples as tokens. Everything that may be wrong with the data is found here."""
    builder, settings = config.dataset_builder, config.dataset_builder.examples
    limits = [limit for limit in (settings.max_length, context_length) if limit is not None]
    max_length = min(limits, default=None)
    options: dict[str, Any] = {"max_length": max_length, "on_too_long": settings.on_too_long}
    if isinstance(builder, LabelledReplyDatasetBuilder):
        split = builder()
        sides = [labelled_examples(replies, renderer, **options) for replies in (split.train, split.held_out)]
    else:
        split = builder()
        sides = [pair_examples(pairs, renderer, **options) for pairs in (split.train, split.held_out)]
    if config.loss.row.is_of_pairs:
        return sides[0], sides[1]
    seed = derive_seed(config.seed, "kto")
    train, test = (with_mismatched(side, renderer, seed, max_length) for side in sides)
    if len(train.rendered()) == len(sides[0].rendered()):
        raise InvalidRequest(
            "kto estimates its KL on replies to other prompts, and no training prompt has one: give replies to more "
            "than one prompt, or raise max_length"
        )
    return train, test


async def _with_reference(
    config: Config, service: mint.ServiceClient, identity: RunIdentity, train: Examples, test: Examples
) -> tuple[Examples, Examples]:
    """Both sides with the reference's logprobs, read from the cache or computed.

    Without a reference_path the reference is a snapshot of the weights that the run starts from.
    """

    async def open_client() -> mint.SamplingClient:
        if config.reference_path is not None:
            return await service.create_sampling_client_async(model_path=config.reference_path)
        if config.load_checkpoint_path is None:
            return await service.create_sampling_client_async(base_model=config.model_name)
        start = await checkpoint_utils.open_training_client(
            service, identity, seed=0, load_checkpoint_path=config.load_checkpoint_path
        )
        return await start.save_weights_and_get_sampling_client_async()

    reference = config.reference_path or config.load_checkpoint_path or "base"
    assert identity.renderer_name is not None, "a stage names its renderer"
    folder = Path(config.reference_cache_path or Path(config.log_path) / REFERENCE_FOLDER)
    rendered = [*train.rendered(), *test.rendered()]
    whose = ReferenceIdentity(identity.base_model, reference, identity.renderer_name)
    logprobs = await ReferenceCache(folder, whose, rendered).logprobs(open_client)
    num_train = len(train.rendered())
    return train.with_reference(logprobs[:num_train]), test.with_reference(logprobs[num_train:])


def batch_loss(
    batch: ReplyBatch, config: LossConfig
) -> Callable[[list[types.Datum], list[torch.Tensor]], tuple[torch.Tensor, dict[str, float]]]:
    """The loss of a batch for forward_backward_custom."""

    @reads_weighted_tokens
    def loss_fn(
        datums_D: list[types.Datum], trainer_logprobs_D: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        return loss_and_metrics(batch, config, trainer_logprobs_D)

    # KTO's point of reference is a mean over the batch.
    return couples_only_within(batch.place_in_role_D)(loss_fn) if config.row.is_of_pairs else loss_fn


class HeldOutPreferences(TrainingClientEvaluator):
    """test/...: the metrics of a training step over all held-out examples, by `forward`."""

    def __init__(self, examples_E: Sequence[Example], loss: LossConfig) -> None:
        self._batch = ReplyBatch.of(examples_E)
        self._parts = [
            ReplyBatch.of(examples_E[i : i + _EVALUATED_TOGETHER]).datums_D
            for i in range(0, len(examples_E), _EVALUATED_TOGETHER)
        ]
        self._loss = loss

    async def __call__(self, training_client: mint.TrainingClient) -> dict[str, float]:
        """See TrainingClientEvaluator."""
        futures = [training_client.forward(part, "cross_entropy") for part in self._parts]
        outputs = [output for future in futures for output in (await future).loss_fn_outputs]
        logprobs_D = [torch.from_numpy(output["logprobs"].to_numpy()) for output in outputs]
        _, metrics = loss_and_metrics(self._batch, self._loss, logprobs_D)
        metrics = with_interval(metrics, self._batch.num_examples) | {"num_examples": self._batch.num_examples}
        return {f"test/{name}": value for name, value in metrics.items()}


def step_metrics(
    batch: ReplyBatch, output: types.ForwardBackwardOutput, response: types.OptimStepResponse
) -> dict[str, float]:
    """What one step says about itself, from its batch and the two answers of the client."""
    optimizer = {f"optim/{name.split(':')[0]}": value for name, value in (response.metrics or {}).items()}
    own = {name: value for name, value in output.metrics.items() if ":" not in name}
    return {**own, "num_examples": batch.num_examples, "num_tokens": batch.num_tokens, **optimizer}


def _service_from_environment() -> mint.ServiceClient:
    import mint

    return mint.ServiceClient()


def _finish(config: Config, manifest: stage_manifest.StageManifest, record: CheckpointRecord) -> DPOResult:
    stage_manifest.complete(config.log_path, manifest, record)
    bring_up_to_date(config.log_path)
    return _result(config.log_path, record)


def _result(log_path: str, record: CheckpointRecord) -> DPOResult:
    metrics = last_metrics(log_path, record)
    assert record.state_path is not None and record.sampler_path is not None, f"incomplete record {record}"
    return DPOResult(record.state_path, record.sampler_path, metrics)
