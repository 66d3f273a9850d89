"""The preference stage, from first to last step: pairs, Bradley-Terry, a scorer.

What is evaluated is the scorer that reinforcement learning will use, on a snapshot of the weights. Deviation from the
recipe of Tinker: each reply gets a number, read from logprobs (see readouts), where theirs samples a letter for two
replies shown side by side.

Axes: _N preference pair, _D datum.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import chz
import torch

from mint import types
from mint.custom_losses import couples_only_within, reads_weighted_tokens
from mint.errors import NonFiniteError
from mint.seeds import derive_seed
from recipe import checkpoint_utils, stage_manifest
from recipe.checkpoint_utils import RunIdentity
from recipe.epoch_stage_config import EpochStageConfig
from recipe.model_info import get_context_length, resolve_renderer_name
from recipe.numeric_faults import NumericFaults, step_outcome
from recipe.preference.data import batch_of_step, num_batches, pairs_sha256
from recipe.preference.ensemble import EnsembleConfig, check_folder, train_ensemble
from recipe.preference.losses import pair_statistics
from recipe.preference.objective import LengthModel, PairObjectiveConfig, pair_objective
from recipe.preference.pair_evaluation import PairEvaluation
from recipe.preference.readouts import Readout, Verdict
from recipe.preference.rendered_pairs import PairBatch, load_pairs
from recipe.preference.report_card import ReportCardConfig
from recipe.preference.result import PreferenceResult, finish, result_of
from recipe.preference.scorer import SCORER_KEY, RewardScale, scorer_state, target_logprobs
from recipe.preference.types import PreferenceDatasetBuilder
from recipe.run_log import RunLog
from recipe.schedules import scheduled_learning_rate
from recipe.tokenizer_utils import get_tokenizer
from renderers import get_renderer

if TYPE_CHECKING:
    import mint

# Of what `pair_loss` reports; the last two are missing where all pairs of a batch are ties.
_LOSS_METRICS = ("loss", "pair_accuracy", "mean_margin")


@chz.chz(typecheck=True)
class Config(EpochStageConfig):
    """Settings of a preference run."""

    dataset_builder: PreferenceDatasetBuilder
    # How a reply's reward is read from the model: Verdict or SequenceLogprob.
    readout: Readout = chz.field(default_factory=Verdict)
    # What is minimised: Bradley-Terry, with label smoothing, margins, centring or length debiasing where asked for.
    objective: PairObjectiveConfig = chz.field(default_factory=PairObjectiveConfig)
    # Several models that are trusted as far as they agree.
    ensemble: EnsembleConfig = chz.field(default_factory=EnsembleConfig)
    # What is measured when the model is trained, for report_card.json.
    report_card: ReportCardConfig = chz.field(default_factory=ReportCardConfig)


async def main(config: Config, service: mint.ServiceClient | None = None) -> PreferenceResult:
    """Train, or resume, or return at once when the run is complete.

    service: the client to use; None makes one from the environment (MINT_BASE_URL). Raises InvalidRequest for bad
    settings and data before anything is trained.
    """
    check_folder(config.log_path, config.ensemble)
    service = service or _service_from_environment()
    if config.ensemble.num_members > 1:
        return await train_ensemble(config, service, train_one)
    return await train_one(config, service)


async def train_one(config: Config, service: mint.ServiceClient) -> PreferenceResult:
    """A single preference model, from first to last step."""
    renderer_name = resolve_renderer_name(config.renderer_name, config.model_name)
    identity = RunIdentity(config.model_name, config.lora_rank, renderer_name)
    record = await checkpoint_utils.find_resume_record(config.log_path, identity, service)

    renderer = get_renderer(renderer_name, get_tokenizer(config.model_name))
    context_length = await get_context_length(service, config.model_name)
    train, test = load_pairs(config.dataset_builder, config.readout, renderer, context_length)
    held_out = [pair.pair for pair in test.pairs]
    batch_size = config.dataset_builder.examples.batch_size
    num_steps = config.num_epochs * num_batches(len(train.pairs), batch_size)
    num_steps = num_steps if config.max_steps is None else min(num_steps, config.max_steps)
    digest = pairs_sha256([pair.pair for pair in train.pairs], held_out)
    manifest = await stage_manifest.open_manifest(
        "preference", config, identity, renderer, digest, service, record=record
    )
    if record is not None and record.is_final and record.step >= num_steps:
        return await finish(config, manifest, record, held_out, service)
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
        base_client = None
        if config.readout.subtracts_base:
            base_client = await service.create_sampling_client_async(base_model=config.model_name)
        length_model = LengthModel.fit([pair.length_difference for pair in train.pairs if not pair.pair.is_tie])
        evaluation = PairEvaluation(config.readout, renderer, train.pairs, test.pairs, base_client)
        for step in range(first_step, num_steps):
            is_eval_due = test.pairs and (step == 0 or (config.eval_every > 0 and step % config.eval_every == 0))
            metrics = evaluation.metrics(await evaluation.run(client)) if is_eval_due else {}

            started = time.monotonic()
            batch = PairBatch.of(
                [train.pairs[i] for i in batch_of_step(len(train.pairs), batch_size, step, config.seed)]
            )
            base_logprobs_D = await base_logprobs(base_client, batch)
            adam_params = config.optimizer.adam_params(scheduled_learning_rate(config, step, num_steps))
            loss_fn = pair_loss(batch, config.readout, base_logprobs_D, config.objective, length_model)
            loss_future = client.forward_backward_custom(batch.datums_D, loss_fn)
            step_future = client.optim_step(adam_params)
            try:
                metrics |= step_metrics(batch, *await step_outcome(loss_future, step_future))
            except NonFiniteError as error:
                metrics |= await faults.handle(error, step)

            metrics |= {
                "learning_rate": adam_params.learning_rate,
                "epoch": step // num_batches(len(train.pairs), batch_size),
                "num_dropped": train.num_dropped + test.num_dropped,
                "progress/done_frac": (step + 1) / num_steps,
                "time/step": time.monotonic() - started,
            }
            log.metrics(metrics, step=step)
            if config.save_every > 0 and (step + 1) % config.save_every == 0 and step + 1 < num_steps:
                await save(
                    f"{step + 1:06d}", step=step + 1, ttl_seconds=config.ttl_seconds, loop_state=faults.loop_state()
                )

        done_steps = max(first_step, num_steps)
        rewards = await evaluation.run(client)
        temperature, calibration = evaluation.calibration(rewards)
        if test.pairs:
            log.metrics(evaluation.metrics(rewards) | calibration | {"progress/done_frac": 1.0}, step=done_steps)
        scorer = scorer_state(config.readout, RewardScale.of(rewards.all_rewards()), temperature)
        record = await save(
            checkpoint_utils.FINAL_NAME, step=done_steps, loop_state={**faults.loop_state(), SCORER_KEY: scorer}
        )
    return await finish(config, manifest, record, held_out, service)


async def load_result(config: Config, service: mint.ServiceClient) -> PreferenceResult | None:
    """What a finished run in config.log_path left behind, whatever its length; None where there is none."""
    identity = RunIdentity(
        config.model_name, config.lora_rank, resolve_renderer_name(config.renderer_name, config.model_name)
    )
    record = await checkpoint_utils.find_resume_record(config.log_path, identity, service)
    return result_of(config.log_path, record) if record is not None and record.is_final else None


def pair_loss(
    batch: PairBatch,
    readout: Readout,
    base_logprobs_D: Sequence[torch.Tensor] | None = None,
    objective: PairObjectiveConfig | None = None,
    length_model: LengthModel | None = None,
) -> Callable[[list[types.Datum], list[torch.Tensor]], tuple[torch.Tensor, dict[str, float]]]:
    """The loss of a batch for forward_backward_custom: the objective, by default Bradley-Terry, the mean over pairs."""
    objective = objective or PairObjectiveConfig()
    facts = batch.facts(length_model)

    @couples_only_within(batch.pair_of_datum_D)
    @reads_weighted_tokens
    def loss_fn(
        datums_D: list[types.Datum], trainer_logprobs_D: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        chosen_N, rejected_N = batch.rewards(readout, trainer_logprobs_D, base_logprobs_D)
        loss = pair_objective(chosen_N, rejected_N, facts, objective)
        metrics = {"loss": loss.item()}
        if not facts.is_tie_N.all():
            statistics = pair_statistics(chosen_N[~facts.is_tie_N], rejected_N[~facts.is_tie_N])
            metrics |= {"pair_accuracy": statistics.accuracy, "mean_margin": statistics.mean_margin}
        return loss, metrics

    return loss_fn


async def base_logprobs(client: mint.SamplingClient | None, batch: PairBatch) -> list[torch.Tensor] | None:
    """logprobs_T of every datum under the base model; None where the readout does not need them."""
    if client is None:
        return None
    return list(await asyncio.gather(*(target_logprobs(client, reply) for reply in batch.replies_D)))


def step_metrics(
    batch: PairBatch, output: types.ForwardBackwardOutput, response: types.OptimStepResponse
) -> dict[str, float]:
    """What one step says about itself, from its batch and the two answers of the client."""
    optimizer = {f"optim/{name.split(':')[0]}": value for name, value in (response.metrics or {}).items()}
    return {
        **{name: output.metrics[name] for name in _LOSS_METRICS if name in output.metrics},
        "num_pairs": len(batch.slots_N),
        "num_tokens": batch.num_tokens,
        **optimizer,
    }


def _service_from_environment() -> mint.ServiceClient:
    import mint

    return mint.ServiceClient()
