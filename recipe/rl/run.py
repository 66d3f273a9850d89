"""What a running stage works with, and what every loop mode does the same way.

Axes: _P group of the batch (problem), _G member of a group, _D training sequence.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mint
from recipe.completers import MintTokenCompleter
from recipe.evaluators import Evaluator, IterationEvaluator, run_evaluators
from recipe.rl.batch import KLPenalty, ScoredGroup, score_groups
from recipe.rl.config import Config
from recipe.rl.env_faults import FaultWindow
from recipe.rl.evaluation import RLTestSetEvaluator
from recipe.rl.kl_coefficient import KLCoefficient
from recipe.rl.metrics import TrainedSequence
from recipe.rl.policy_update import KLTerm, PolicyLoss
from recipe.rl.rollout_export import export_rollouts, export_trainer_logprobs
from recipe.rl.rollouts import SeedScope
from recipe.rl.types import EnvFault, RLDataset, RolloutBatch, TrajectoryGroup
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
    # Changes as the run goes on where the config asks for that.
    kl_coefficient: KLCoefficient
    test_set: RLTestSetEvaluator | None
    evaluators: Sequence[Evaluator | IterationEvaluator]
    # The groups of the latest iterations that environments let down.
    env_faults: FaultWindow

    def adam_params(self, iteration: int) -> mint.types.AdamParams:
        """Adam's settings, with the learning rate of that iteration."""
        learning_rate = scheduled_learning_rate(self.config, iteration, self.num_iterations)
        return self.config.optimizer.adam_params(learning_rate)

    async def current_policy(self) -> tuple[mint.SamplingClient, MintTokenCompleter]:
        """The weights as they are now, and what samples with them as the config asks for."""
        client = await self.training_client.save_weights_and_get_sampling_client_async()
        return client, MintTokenCompleter(client, self.config.max_tokens, self.config.temperature)

    def seeds(self, i_batch: int) -> SeedScope:
        """The seeds of the groups of one batch of the training dataset."""
        return SeedScope(self.config.seed, "train", i_batch)

    def loop_state(self) -> dict[str, Any]:
        """What a checkpoint has to record beside the weights."""
        dataset = self.train_dataset.state_dict()
        state = {"dataset": dataset} if dataset else {}
        return self.env_faults.loop_state() | self.kl_coefficient.loop_state() | state

    def tell_dataset(self, groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Let the training dataset know how its groups went; the metrics it has to report."""
        named = [(group.problem_id, group.get_total_rewards()) for group in groups_P]
        return self.train_dataset.observe([(name, rewards_G) for name, rewards_G in named if name is not None])

    def score(self, groups_P: Sequence[TrajectoryGroup]) -> list[ScoredGroup]:
        """The groups with their advantages, as the config asks for."""
        config = self.config
        return score_groups(groups_P, config.advantage, config.advantage_config, config.max_tokens)

    def kl_penalty(self, policy_client: mint.SamplingClient) -> KLPenalty | None:
        """The penalty for what `policy_client` sampled; None where there is no reference."""
        if self.reference_client is None:
            return None
        config = self.config
        return KLPenalty(
            self.reference_client,
            self.kl_coefficient.value,
            policy_client,
            config.temperature,
            config.kl_penalty_config,
        )

    def kl_term(self) -> KLTerm | None:
        """The penalty as a term of the loss; None where it is in the advantages or there is none."""
        estimator = self.config.kl_penalty_config.loss_estimator
        return None if estimator is None else KLTerm(estimator, self.kl_coefficient.value)

    def steer_kl(self, metrics: dict[str, Any]) -> None:
        """At the end of an iteration: add the penalty's coefficient to its metrics, and adapt it to the KL in them."""
        if self.config.kl_penalty_coef > 0 and "kl_policy_base_per_episode" in metrics:
            metrics["kl_penalty_coef"] = self.kl_coefficient.value
            self.kl_coefficient.observe(metrics["kl_policy_base_per_episode"])

    def report_rollouts(self, name: str, scored_P: Sequence[ScoredGroup], rollouts: RolloutBatch) -> None:
        """Export a batch, then EnvironmentFailed if its faults are too many."""
        self.export(name, scored_P, rollouts.faults)
        self.env_faults.add(rollouts, name)

    def export(
        self, name: str, groups_P: Sequence[TrajectoryGroup | ScoredGroup], faults: Sequence[EnvFault] = ()
    ) -> None:
        """Write episodes and environment faults to rollouts/<name>, as the config asks for."""
        export_rollouts(
            Path(self.config.log_path).expanduser() / "rollouts" / name,
            groups_P,
            self.training_client.get_tokenizer(),
            faults=faults,
            as_json=self.config.rollout_json_export,
            num_groups_as_text=self.config.num_groups_to_log,
        )

    def export_trained(self, iteration: int, trained_D: Sequence[TrainedSequence]) -> None:
        """Write what the trainer thought of an iteration's tokens to rollouts/trained_<iteration>, where asked for."""
        export_trainer_logprobs(
            Path(self.config.log_path).expanduser() / "rollouts" / f"trained_{iteration:06d}",
            trained_D,
            as_json=self.config.rollout_json_export,
        )

    async def evaluate(self, iteration: int) -> dict[str, Any]:
        """The metrics of everything that is to measure the weights before this iteration; after the last one all is."""
        every, is_last = self.config.eval_every, iteration >= self.num_iterations
        is_due = every > 0 and (is_last or iteration % every == 0)
        metrics = await self._evaluate_test_set(iteration) if is_due else {}
        due = [evaluator for evaluator in self._iteration_evaluators() if is_last or evaluator.is_due(iteration)]
        return metrics | await self._evaluate_iteration(due, iteration)

    async def _evaluate_test_set(self, iteration: int) -> dict[str, Any]:
        """The metrics of the test set and of the evaluators that go with it; {} where there are none."""
        evaluators = [one for one in self.evaluators if not isinstance(one, IterationEvaluator)]
        if self.test_set is None and not evaluators:
            return {}
        started = time.perf_counter()
        metrics: dict[str, Any] = {}
        if self.test_set is not None:
            sampling_client = await self.training_client.save_weights_and_get_sampling_client_async()
            metrics, rollouts = await self.test_set.evaluate(sampling_client)
            self.export(f"test_{iteration:06d}", rollouts.groups_P, rollouts.faults)
            self.test_set.check_faults(rollouts, f"test_{iteration:06d}")
        metrics |= await run_evaluators(evaluators, self.training_client)
        return {**metrics, "time/evaluation": time.perf_counter() - started}

    def start_evaluators(self, first_iteration: int) -> None:
        """Tell the iteration evaluators where the run begins, once its folder is its own."""
        for evaluator in self._iteration_evaluators():
            evaluator.start(first_iteration)

    async def _evaluate_iteration(self, due: Sequence[IterationEvaluator], iteration: int) -> dict[str, Any]:
        """The metrics of these, measured on one snapshot."""
        if not due:
            return {}
        started = time.perf_counter()
        metrics: dict[str, Any] = {}
        sampling_client = await self.training_client.save_weights_and_get_sampling_client_async()
        for evaluator in due:
            metrics |= await evaluator(self.training_client, sampling_client, iteration)
        return {**metrics, "time/iteration_evaluation": time.perf_counter() - started}

    def _iteration_evaluators(self) -> list[IterationEvaluator]:
        return [evaluator for evaluator in self.evaluators if isinstance(evaluator, IterationEvaluator)]
