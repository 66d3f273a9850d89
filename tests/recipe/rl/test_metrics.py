"""RL metrics with numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mint import types
from recipe.rl.datums import TrainingSequence
from recipe.rl.metrics import TrainedSequence, entropy_metrics, environment_metrics, sample_train_metrics
from recipe.rl.types import Metrics, TokensWithLogprobs, Trajectory, TrajectoryGroup, Transition


def one_turn(
    reward: float, *, prompt: int = 2, tokens: int = 1, cut: bool = False, metrics: Metrics | None = None
) -> Trajectory:
    action = TokensWithLogprobs(tokens=[7] * tokens, logprobs=[-1.0] * tokens, stop_reason="length" if cut else "stop")
    transition = Transition(
        ob=types.ModelInput.from_ints([1] * prompt), ac=action, reward=reward, episode_done=True, metrics=metrics or {}
    )
    return Trajectory(transitions=[transition], final_ob=types.ModelInput.from_ints([]))


def group(
    trajectories: list[Trajectory], *, tags: list[str] | None = None, final: list[float] | None = None
) -> TrajectoryGroup:
    number = len(trajectories)
    return TrajectoryGroup(trajectories, final or [0.0] * number, [{} for _ in range(number)], tags or [])


def trained(
    sampler: list[float], trainer: list[float], advantages: list[float], sampled: list[bool]
) -> TrainedSequence:
    sequence = TrainingSequence(
        tokens=[0] * (len(sampler) + 1),
        is_sampled_T=np.asarray(sampled),
        sampler_logprobs_T=np.asarray(sampler, dtype=np.float32),
        advantages_T=np.asarray(advantages, dtype=np.float32),
    )
    return TrainedSequence(sequence, np.asarray(trainer, dtype=np.float32))


def test_reward_is_the_mean_over_episodes_of_step_and_final_rewards() -> None:
    groups = [group([one_turn(1.0), one_turn(0.0)], final=[0.5, 0.0]), group([one_turn(0.0), one_turn(0.5)])]
    assert environment_metrics(groups)["env/all/reward/total"] == pytest.approx((1.5 + 0 + 0 + 0.5) / 4)


def test_lengths_are_per_turn() -> None:
    groups = [group([one_turn(0.0, prompt=2, tokens=1), one_turn(0.0, prompt=4, tokens=5)])]
    metrics = environment_metrics(groups)
    assert (metrics["ac_tokens_per_turn"], metrics["ob_tokens_per_turn"]) == (3.0, 3.0)
    assert metrics["env/all/total_ac_tokens"] == 6


def test_tags_select_their_own_groups() -> None:
    groups = [group([one_turn(1.0)] * 2, tags=["a"]), group([one_turn(0.0)] * 2, tags=["b", "all_b", "b"])]
    metrics = environment_metrics(groups)
    assert metrics["env/a/reward/total"] == 1.0
    assert metrics["env/b/reward/total"] == 0.0
    assert metrics["env/b/total_episodes"] == 2
    assert metrics["env/all/reward/total"] == 0.5


def test_an_environments_metric_is_averaged_over_the_turns_that_report_it() -> None:
    trajectories = [one_turn(0.0, metrics={"correct": 1.0}), one_turn(0.0, metrics={"correct": 0.0}), one_turn(0.0)]
    assert environment_metrics([group(trajectories)])["env/all/correct"] == 0.5


def test_groups_are_split_into_mixed_all_good_and_all_bad() -> None:
    groups = [
        group([one_turn(1.0), one_turn(0.0)]),
        group([one_turn(1.0), one_turn(1.0)]),
        group([one_turn(0.0), one_turn(0.0)]),
        group([one_turn(-1.0), one_turn(-1.0)]),
    ]
    metrics = environment_metrics(groups)
    shares = [metrics[f"env/all/by_group/frac_{name}"] for name in ("mixed", "all_good", "all_bad")]
    assert shares == [0.25, 0.25, 0.5]


def test_cut_off_turns_are_counted() -> None:
    groups = [group([one_turn(0.0, cut=True), one_turn(0.0), one_turn(0.0), one_turn(0.0)])]
    metrics = environment_metrics(groups)
    assert (metrics["env/all/frac_cut_off"], metrics["env/all/frac_stopped"]) == (0.25, 0.75)


def test_sample_train_kl_is_over_targets_that_carry_loss() -> None:
    # q - p is 0.5 and -0.1 where an advantage is non-zero; the zero-advantage and the prompt target do not count.
    rows = [
        trained([0.0, -1.0, -2.0], [-5.0, -1.5, -1.9], [0.0, 1.0, -1.0], [False, True, True]),
        trained([0.0, -1.0], [0.0, 0.0], [0.0, 0.0], [False, True]),
    ]
    metrics = sample_train_metrics(rows)
    assert metrics["kl_sample_train_v1"] == pytest.approx((0.5 - 0.1) / 2, abs=1e-6)
    assert metrics["kl_sample_train_v2"] == pytest.approx(0.5 * (0.25 + 0.01) / 2, abs=1e-6)


def test_a_batch_without_loss_reports_no_kl() -> None:
    assert sample_train_metrics([]) == {}
    assert sample_train_metrics([trained([0.0, -1.0], [0.0, 0.0], [0.0, 0.0], [False, True])]) == {}


def test_entropy_estimate_of_a_fair_coin_is_log_two() -> None:
    coin = -math.log(2)
    row = trained([-9.0, coin, coin], [0.0] * 3, [0.0] * 3, [False, True, True])
    assert entropy_metrics([row.sequence])["entropy"] == pytest.approx(math.log(2), abs=1e-6)
