"""The policy on held-out groups: metrics under test/, and its episodes.

Axes: _P group of the test set (problem), _D sequence with its sampled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mint
from recipe.completers import MintTokenCompleter
from recipe.evaluators import SamplingClientEvaluator
from recipe.rl.datums import sequences_from_trajectory
from recipe.rl.env_faults import EnvFaultConfig, FaultWindow
from recipe.rl.kl import kl_metrics
from recipe.rl.metrics import environment_metrics, fault_metrics
from recipe.rl.reference_logprobs import fetch_reference
from recipe.rl.rollouts import SeedScope, roll_out_groups
from recipe.rl.types import RLDataset, RolloutBatch


@dataclass(frozen=True)
class RLTestSetEvaluator(SamplingClientEvaluator):
    """Plays every group of a test set once, with the same sampling seeds at every evaluation.

    The metrics are those of training with test/ before them; where a reference is given also test/kl_policy_base and
    test/kl_policy_base_per_episode, measured on the test episodes. Groups dropped for an environment fault are counted
    (test/env/all/faults/...) and left out of all means.
    """

    dataset: RLDataset
    max_tokens: int
    # 0 is argmax.
    temperature: float = 1.0
    seed: int = 0
    reference_client: mint.SamplingClient | None = None
    env_faults: EnvFaultConfig = field(default_factory=EnvFaultConfig)

    async def __call__(self, sampling_client: mint.SamplingClient) -> dict[str, float]:
        """See SamplingClientEvaluator. EnvironmentFailed where too many groups were dropped."""
        metrics, rollouts = await self.evaluate(sampling_client)
        self.check_faults(rollouts, "test set")
        return metrics

    def check_faults(self, rollouts: RolloutBatch, name: str) -> None:
        """EnvironmentFailed where more groups were dropped than the rule allows, each evaluation taken by itself."""
        FaultWindow(self.env_faults).add(rollouts, name)

    async def evaluate(self, sampling_client: mint.SamplingClient) -> tuple[dict[str, float], RolloutBatch]:
        """The metrics and the episodes they were computed from, whatever the share of groups that were dropped."""
        builders_P = [builder for i in range(len(self.dataset)) for builder in self.dataset.get_batch(i)]
        policy = MintTokenCompleter(sampling_client, self.max_tokens, self.temperature)
        seeds = SeedScope(self.seed, "test", iteration=0)
        rollouts = await roll_out_groups(builders_P, policy, seeds, self.env_faults)
        groups_P = rollouts.groups_P
        metrics = environment_metrics(groups_P) | fault_metrics(rollouts)
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
        return {f"test/{key}": value for key, value in metrics.items()}, rollouts
