"""The default mode: sample a batch of groups with the current weights, score, step, again.

Axes: _P group of the batch (problem), _D training sequence.
"""

from __future__ import annotations

from typing import Any

from recipe.completers import MintTokenCompleter
from recipe.rl.advantages import centred
from recipe.rl.batch import build_batch, score_groups
from recipe.rl.metrics import environment_metrics, sample_train_metrics
from recipe.rl.policy_update import update_policy
from recipe.rl.rollouts import SeedScope, roll_out_groups
from recipe.rl.run import Run
from recipe.rl.stopwatch import Stopwatch


async def run_iteration(run: Run, iteration: int, metrics: dict[str, Any]) -> None:
    """One iteration, from the current weights to the next; `metrics` is filled on the way.

    Everything random in it is derived from config.seed and `iteration`, so it can be repeated from a checkpoint.
    Raises NonFiniteError for an update that was refused.
    """
    config = run.config
    clock = Stopwatch()
    with clock.measure("snapshot"):
        sampling_client = await run.training_client.save_weights_and_get_sampling_client_async()
    with clock.measure("sampling"):
        policy = MintTokenCompleter(sampling_client, config.max_tokens, config.temperature)
        seeds = SeedScope(config.seed, "train", iteration)
        groups_P = await roll_out_groups(run.train_dataset.get_batch(iteration), policy, seeds, min_group_size=2)
    metrics |= environment_metrics(groups_P)

    scored_P = score_groups(groups_P, centred)
    run.export(f"iteration_{iteration:06d}", scored_P)
    with clock.measure("batch"):
        batch = await build_batch(
            scored_P,
            remove_constant_reward_groups=config.remove_constant_reward_groups,
            penalty=run.kl_penalty(sampling_client),
        )
    metrics |= batch.metrics

    metrics["batch/is_skipped"] = float(not batch.sequences_D)
    if batch.sequences_D:
        with clock.measure("training"):
            update = await update_policy(
                run.training_client, batch.sequences_D, run.loss, run.adam_params(iteration), config.num_substeps
            )
        metrics |= update.metrics | sample_train_metrics(update.trained_D)
    metrics |= clock.metrics()
