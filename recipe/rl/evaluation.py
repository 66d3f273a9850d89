"""The policy on held-out groups: metrics under test/, and its episodes.

Axes: _P group of the test set (problem), _D sequence with its sampled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import mint
from recipe.completers import MintTokenCompleter
from recipe.evaluators import SamplingClientEvaluator
from recipe.rl.datums import sequences_from_trajectory
from recipe.rl.kl import kl_metrics
from recipe.rl.metrics import environment_metrics
from recipe.rl.reference_logprobs import fetch_reference
from recipe.rl.rollouts import SeedScope, roll_out_groups
from recipe.rl.types import RLDataset, TrajectoryGroup


@dataclass(frozen=True)
class RLTestSetEvaluator(SamplingClientEvaluator):
    """Plays every group of a test set once, with the same sampling seeds at every evaluation.

    The metrics are those of training with test/ before them; where a reference is given also test/kl_policy_base and
    test/kl_policy_base_per_episode, measured on the test episodes.
    """

    dataset: RLDataset
    max_tokens: int
    # 0 is argmax.
    temperature: float = 1.0
    seed: int = 0
    reference_client: mint.SamplingClient | None = None

    async def __call__(self, sampling_client: mint.SamplingClient) -> dict[str, float]:
        """See SamplingClientEvaluator."""
        metrics, _ = await self.evaluate(sampling_client)
        return metrics

    async def evaluate(self, sampling_client: mint.SamplingClient) -> tuple[dict[str, float], list[TrajectoryGroup]]:
        """The metrics and the episodes they were computed from."""
        builders_P = [builder for i in range(len(self.dataset)) for builder in self.dataset.get_batch(i)]
        policy = MintTokenCompleter(sampling_client, self.max_tokens, self.temperature)
        groups_P = await roll_out_groups(builders_P, policy, SeedScope(self.seed, "test", iteration=0))
        metrics = environment_metrics(groups_P)
        if self.reference_client is not None:
            sequences_D = [
                sequence
                for group in groups_P
                for i_member, trajectory in enumerate(group.trajectories_G)
                for sequence in sequences_from_trajectory(
                    trajectory, advantage=0.0, i_group=group.i_group, i_member=i_member
                )
            ]
            referenced_D = await fetch_reference(sequences_D, self.reference_client, sampling_client, self.temperature)
            metrics |= kl_metrics(referenced_D)
        return {f"test/{key}": value for key, value in metrics.items()}, groups_P
