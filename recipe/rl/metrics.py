"""What an iteration reports about its episodes and its update: pure functions. docs/metrics.md defines every key.

Axes: _P group of the batch (problem), _G member of a group, _T target token, _D training sequence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from recipe.rl.advantages import is_constant
from recipe.rl.datums import FloatArray, TrainingSequence
from recipe.rl.types import FaultKind, RolloutBatch, TrajectoryGroup

# A group whose members all got this reward or more counts as all good, otherwise as all bad.
GOOD_REWARD = 0.5


@dataclass(frozen=True)
class TrainedSequence:
    """A training sequence with what the trainer made of it in the forward pass of its update."""

    sequence: TrainingSequence
    # Logprobs of the targets, shape (T,); meaningful where sequence.carries_loss_T.
    trainer_logprobs_T: FloatArray


def environment_metrics(groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """env/all/<key> over all groups, env/<tag>/<key> over the groups with that tag, and the two lengths per turn.

    Nothing where there are no groups: a mean over nothing is no number.
    """
    if not groups_P:
        return {}
    groups_by_tag: dict[str, list[TrajectoryGroup]] = defaultdict(list)
    for group in groups_P:
        for tag in dict.fromkeys(group.tags):
            groups_by_tag[tag].append(group)
    groups_by_tag["all"] = list(groups_P)
    metrics = {
        f"env/{tag}/{key}": value
        for tag, tagged_groups in groups_by_tag.items()
        for key, value in _episode_metrics(tagged_groups).items()
    }
    for key in ("ac_tokens_per_turn", "ob_tokens_per_turn"):
        metrics[key] = metrics[f"env/all/{key}"]
    return metrics


def fault_metrics(rollouts: RolloutBatch) -> dict[str, float]:
    """env/all/faults/<kind>: failed calls; .../groups_dropped and .../groups_retried: groups."""
    counts = {kind: sum(fault.kind == kind for fault in rollouts.faults) for kind in get_args(FaultKind)}
    counts |= {"groups_dropped": rollouts.num_dropped, "groups_retried": rollouts.num_retried}
    return {f"env/all/faults/{name}": float(count) for name, count in counts.items()}


def sample_train_metrics(trained_D: Sequence[TrainedSequence]) -> dict[str, float]:
    """kl_sample_train_v1 = mean(q - p) and kl_sample_train_v2 = mean((q - p)^2) / 2 over targets that carry loss.

    q is the sampler's logprob and p the trainer's. Nothing where no target carries loss.
    """
    differences = [
        (row.sequence.sampler_logprobs_T.astype(np.float64) - row.trainer_logprobs_T)[row.sequence.carries_loss_T]
        for row in trained_D
    ]
    difference = np.concatenate(differences) if differences else np.empty(0)
    if difference.size == 0:
        return {}
    return {
        "kl_sample_train_v1": float(difference.mean()),
        "kl_sample_train_v2": float(0.5 * np.square(difference).mean()),
    }


def entropy_metrics(sequences_D: Sequence[TrainingSequence]) -> dict[str, float]:
    """entropy = -mean sampler logprob of the sampled tokens: an estimate, nats per token, at the run's temperature."""
    logprobs = [sequence.sampler_logprobs_T[sequence.is_sampled_T] for sequence in sequences_D]
    if not logprobs:
        return {}
    return {"entropy": float(-np.concatenate(logprobs).mean(dtype=np.float64))}


def constant_group_metrics(groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """How many groups have one reward for all members, and why: equal texts, or else all right, or all wrong."""
    constant_P = [group for group in groups_P if is_constant(group.get_total_rewards())]
    identical_P = [group for group in constant_P if _has_identical_texts(group)]
    differing_P = [group for group in constant_P if not _has_identical_texts(group)]
    num_right = sum(group.get_total_rewards()[0] >= GOOD_REWARD for group in differing_P)
    return {
        "batch/num_constant_groups": float(len(constant_P)),
        "batch/num_all_right_groups": float(num_right),
        "batch/num_all_wrong_groups": float(len(differing_P) - num_right),
        "batch/num_identical_text_groups": float(len(identical_P)),
    }


def _has_identical_texts(group: TrajectoryGroup) -> bool:
    texts_G = [[turn.ac.tokens for turn in trajectory.transitions] for trajectory in group.trajectories_G]
    return all(text == texts_G[0] for text in texts_G)


def _episode_metrics(groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    trajectories = [trajectory for group in groups_P for trajectory in group.trajectories_G]
    turns = [transition for trajectory in trajectories for transition in trajectory.transitions]
    rewards = [reward for group in groups_P for reward in group.get_total_rewards()]
    num_turns, num_episodes = max(len(turns), 1), max(len(trajectories), 1)
    num_action_tokens = sum(len(turn.ac.tokens) for turn in turns)
    num_observation_tokens = sum(turn.ob.length for turn in turns)
    metrics = _mean_by_key([turn.metrics for turn in turns] + [own for group in groups_P for own in group.metrics_G])
    return {
        **metrics,
        **_group_shares(groups_P),
        "reward/total": sum(rewards) / num_episodes,
        "ac_tokens_per_turn": num_action_tokens / num_turns,
        "ob_tokens_per_turn": num_observation_tokens / num_turns,
        "turns_per_episode": len(turns) / num_episodes,
        "total_episodes": float(len(trajectories)),
        "total_turns": float(len(turns)),
        "total_ac_tokens": float(num_action_tokens),
        "total_ob_tokens": float(num_observation_tokens),
        "frac_stopped": sum(turn.ac.stop_reason == "stop" for turn in turns) / num_turns,
        "frac_cut_off": sum(turn.ac.stop_reason == "length" for turn in turns) / num_turns,
    }


def _group_shares(groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Shares of groups: rewards differ within the group, all the same and good, all the same and bad."""
    counts = {"mixed": 0, "all_good": 0, "all_bad": 0}
    for group in groups_P:
        rewards_G = group.get_total_rewards()
        if not is_constant(rewards_G):
            counts["mixed"] += 1
        else:
            counts["all_good" if rewards_G[0] >= GOOD_REWARD else "all_bad"] += 1
    return {f"by_group/frac_{name}": count / max(len(groups_P), 1) for name, count in counts.items()}


def _mean_by_key(dicts: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each key over the dicts that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for entry in dicts:
        for key, value in entry.items():
            values[key].append(float(value))
    return {key: sum(entries) / len(entries) for key, entries in values.items()}
