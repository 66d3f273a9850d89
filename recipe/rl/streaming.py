"""Streaming mini-batches: train on the groups that are done while the others still play.

The sampling weights are those from the start of the iteration, and Adam steps when the last part of a substep is in:
the update is that of the on-policy mode, except that a penalty for KL in the advantages is centred within each part and
not within the batch. Parts are fixed and submitted in order, so the gradient is summed in one order whichever group
finishes first.

Axes: _P group of the batch (problem), _D training sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import mint
from recipe.rl.batch import TrainingBatch, build_batch
from recipe.rl.concurrency import started
from recipe.rl.loop_modes import LoopMode, StreamMinibatchConfig
from recipe.rl.loop_watchdog import LoopWatchdog
from recipe.rl.metrics import environment_metrics, fault_metrics, sample_train_metrics
from recipe.rl.policy_update import SubmittedBackward, SubmittedStep, finished_update, split_evenly, submit_backward
from recipe.rl.rollouts import roll_out_group
from recipe.rl.run import Run
from recipe.rl.stopwatch import Stopwatch
from recipe.rl.types import GroupOutcome, RolloutBatch


class Streaming(LoopMode):
    """Within an iteration, sampling and training overlap; between iterations they do not."""

    def __init__(self, run: Run, config: StreamMinibatchConfig) -> None:
        self._run = run
        self._config = config

    async def run_iteration(self, iteration: int, metrics: dict[str, Any]) -> None:
        """See LoopMode. A part whose gradient is refused is left out of its step; the others are taken."""
        run, clock = self._run, Stopwatch()
        with clock.measure("snapshot"):
            policy_client, policy = await run.current_policy()
        seeds, rule = run.seeds(iteration), run.config.env_faults
        plays = [
            roll_out_group(builder, i_group, policy, seeds, rule, min_group_size=2)
            for i_group, builder in enumerate(run.train_dataset.get_batch(iteration))
        ]
        outcomes: list[GroupOutcome] = []
        batches: list[TrainingBatch] = []
        steps: list[SubmittedStep] = []
        with LoopWatchdog():
            async with started(plays) as tasks:
                for substep in split_evenly(tasks, run.config.num_substeps):
                    backwards: list[SubmittedBackward] = []
                    for part in split_evenly(substep, self._config.num_minibatches):
                        with clock.measure("sampling"):
                            part_outcomes = await asyncio.gather(*part)
                        outcomes += part_outcomes
                        with clock.measure("batch"):
                            batches.append(await self._part_batch(part_outcomes, policy_client))
                        if batches[-1].sequences_D:
                            part_D = batches[-1].sequences_D
                            backward = submit_backward(run.training_client, part_D, run.loss, run.kl_term())
                            backwards.append((part_D, backward))
                    if backwards:
                        optim_step = run.training_client.optim_step(run.adam_params(iteration))
                        steps.append(SubmittedStep(backwards, optim_step))

        rollouts, batch = RolloutBatch.of(outcomes), TrainingBatch.joined(batches)
        metrics |= environment_metrics(rollouts.groups_P) | fault_metrics(rollouts) | batch.metrics
        metrics |= run.tell_dataset(rollouts.groups_P)
        run.report_rollouts(f"iteration_{iteration:06d}", batch.scored_P, rollouts)
        metrics["batch/is_skipped"] = float(not steps)
        if steps:
            with clock.measure("training"):
                update = await finished_update(steps, run.loss, run.kl_term())
            metrics |= update.metrics | sample_train_metrics(update.trained_D)
            run.export_trained(iteration, update.trained_D)
        run.steer_kl(metrics)
        metrics |= clock.metrics()

    async def _part_batch(self, outcomes: Sequence[GroupOutcome], policy_client: mint.SamplingClient) -> TrainingBatch:
        run = self._run
        return await build_batch(
            run.score([outcome.group for outcome in outcomes if outcome.group is not None]),
            remove_constant_reward_groups=run.config.remove_constant_reward_groups,
            penalty=run.kl_penalty(policy_client),
        )
