"""The default mode: sample a batch of groups with the current weights, score, step, again."""

from __future__ import annotations

from typing import Any

from recipe.rl.learning import learn
from recipe.rl.loop_modes import LoopMode
from recipe.rl.rollouts import roll_out_groups
from recipe.rl.run import Run
from recipe.rl.stopwatch import Stopwatch


class OnPolicy(LoopMode):
    """Every group of a batch is sampled with the weights that the batch then changes.

    Everything random in an iteration is derived from config.seed and its number, so it can be repeated from a
    checkpoint.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    async def run_iteration(self, iteration: int, metrics: dict[str, Any]) -> None:
        """See LoopMode."""
        run, clock = self._run, Stopwatch()
        with clock.measure("snapshot"):
            policy_client, policy = await run.current_policy()
        with clock.measure("sampling"):
            rollouts = await roll_out_groups(
                run.train_dataset.get_batch(iteration),
                policy,
                run.seeds(iteration),
                run.config.env_faults,
                min_group_size=2,
            )
        await learn(run, rollouts, policy_client, iteration, metrics, clock)
        metrics |= clock.metrics()
