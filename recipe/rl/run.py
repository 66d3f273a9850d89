"""What a running stage works with, and what every loop mode does the same way.

Axes: _P group of the batch (problem).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mint
from recipe.evaluators import Evaluator, run_evaluators
from recipe.rl.batch import KLPenalty, ScoredGroup
from recipe.rl.config import Config
from recipe.rl.evaluation import RLTestSetEvaluator
from recipe.rl.policy_update import PolicyLoss
from recipe.rl.rollout_export import export_rollouts
from recipe.rl.types import RLDataset, TrajectoryGroup
from recipe.schedules import scheduled_learning_rate


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

    def adam_params(self, iteration: int) -> mint.types.AdamParams:
        """Adam's settings, with the learning rate of that iteration."""
        learning_rate = scheduled_learning_rate(self.config, iteration, self.num_iterations)
        return self.config.optimizer.adam_params(learning_rate)

    def kl_penalty(self, policy_client: mint.SamplingClient) -> KLPenalty | None:
        """The penalty for what `policy_client` sampled; None where there is no reference."""
        if self.reference_client is None:
            return None
        return KLPenalty(self.reference_client, self.config.kl_penalty_coef, policy_client, self.config.temperature)

    def export(self, name: str, groups_P: Sequence[TrajectoryGroup | ScoredGroup]) -> None:
        """Write episodes to rollouts/<name>, as the config asks for."""
        export_rollouts(
            Path(self.config.log_path).expanduser() / "rollouts" / name,
            groups_P,
            self.training_client.get_tokenizer(),
            as_json=self.config.rollout_json_export,
            num_groups_as_text=self.config.num_groups_to_log,
        )

    async def evaluate(self, iteration: int) -> dict[str, Any]:
        """The metrics of the test set and of all evaluators, for the weights as they are; {} where there are none."""
        if self.config.eval_every == 0 or (self.test_set is None and not self.evaluators):
            return {}
        started = time.perf_counter()
        metrics: dict[str, Any] = {}
        if self.test_set is not None:
            sampling_client = await self.training_client.save_weights_and_get_sampling_client_async()
            metrics, groups_P = await self.test_set.evaluate(sampling_client)
            self.export(f"test_{iteration:06d}", groups_P)
        metrics |= await run_evaluators(self.evaluators, self.training_client)
        return {**metrics, "time/evaluation": time.perf_counter() - started}
