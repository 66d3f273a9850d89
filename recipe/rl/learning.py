"""From the groups of one batch to new weights, as every mode does it that has its whole batch before it trains.

Axes: _P group of the batch (problem), _D training sequence.
"""

from __future__ import annotations

from typing import Any

import mint
from recipe.rl.batch import build_batch
from recipe.rl.metrics import environment_metrics, fault_metrics, sample_train_metrics
from recipe.rl.policy_update import update_policy
from recipe.rl.run import Run
from recipe.rl.stopwatch import Stopwatch
from recipe.rl.types import RolloutBatch


async def learn(
    run: Run,
    rollouts: RolloutBatch,
    policy_client: mint.SamplingClient,
    iteration: int,
    metrics: dict[str, Any],
    clock: Stopwatch,
) -> None:
    """Score the groups, export them, and step; `metrics` is filled on the way.

    policy_client: the current weights, before the step.
    """
    metrics |= environment_metrics(rollouts.groups_P) | fault_metrics(rollouts) | run.tell_dataset(rollouts.groups_P)
    scored_P = run.score(rollouts.groups_P)
    run.report_rollouts(f"iteration_{iteration:06d}", scored_P, rollouts)
    with clock.measure("batch"):
        batch = await build_batch(
            scored_P,
            remove_constant_reward_groups=run.config.remove_constant_reward_groups,
            penalty=run.kl_penalty(policy_client),
        )
    metrics |= batch.metrics

    metrics["batch/is_skipped"] = float(not batch.sequences_D)
    if batch.sequences_D:
        with clock.measure("training"):
            update = await update_policy(
                run.training_client,
                batch.sequences_D,
                run.loss,
                run.adam_params(iteration),
                run.config.num_substeps,
                kl=run.kl_term(),
            )
        metrics |= update.metrics | sample_train_metrics(update.trained_D)
        run.export_trained(iteration, update.trained_D)
    run.steer_kl(metrics)
