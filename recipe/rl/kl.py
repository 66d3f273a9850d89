"""KL to a reference policy: measured on the sampled tokens, and as a penalty in the advantages.

Per sampled token the estimate is k1 = log pi(a|s) - log pi_ref(a|s), whose mean over tokens drawn from pi is the KL
divergence per token. The penalty is the centred form of tinker-cookbook (`rl/metrics.py::incorporate_kl_penalty`):
A_t += sum over s >= t of discount^(s - t) * coef * (mean k1 over the batch - k1_s), where s counts all targets of the
sequence, those between two turns included. At discount 0 a token answers for its own KL alone, and the mean is a
baseline: it changes no expected gradient and keeps the penalty from pushing all sampled tokens down together. At 1 a
token answers for everything after it too, but the mean then comes once for every later token, so where replies differ
in length it favours the longer ones by mean k1 per token. docs/metrics.md defines the reported numbers, docs/losses.md
has the penalty in the loss (`kl_loss`).

Axes: _T target token, _D training sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import chz
import numpy as np

from mint.errors import InvalidRequest
from recipe.rl.datums import FloatArray, TrainingSequence


@chz.chz(typecheck=True)
class KLReferenceConfig:
    """The policy that KL is measured against."""

    # Base model of the reference; the run's own model where only a checkpoint is meant.
    base_model: str
    # mint:// path of the reference's weights; None means the base model itself.
    load_checkpoint_path: str | None = None


@dataclass(frozen=True)
class ReferencedSequence:
    """A training sequence with the logprobs of policy and reference at temperature 1, shape (T,).

    They are meaningful at sampled targets.
    """

    sequence: TrainingSequence
    policy_logprobs_T: FloatArray
    reference_logprobs_T: FloatArray

    @property
    def token_kl_T(self) -> FloatArray:
        """k1 at sampled targets, 0 elsewhere."""
        difference_T = self.policy_logprobs_T - self.reference_logprobs_T
        return np.where(self.sequence.is_sampled_T, difference_T, np.float32(0.0))


def mean_token_kl(referenced_D: Sequence[ReferencedSequence]) -> float:
    """Mean k1 over all sampled tokens, in nats per token."""
    num_tokens = sum(row.sequence.num_sampled for row in referenced_D)
    if num_tokens == 0:
        raise InvalidRequest("KL needs at least one sampled token; the batch has none.")
    return _total_kl(referenced_D) / num_tokens


def kl_metrics(referenced_D: Sequence[ReferencedSequence]) -> dict[str, float]:
    """kl_policy_base (nats per sampled token) and kl_policy_base_per_episode (nats); nothing for an empty batch."""
    if not referenced_D:
        return {}
    episodes = {(row.sequence.i_group, row.sequence.i_member) for row in referenced_D}
    return {
        "kl_policy_base": mean_token_kl(referenced_D),
        "kl_policy_base_per_episode": _total_kl(referenced_D) / len(episodes),
    }


def add_kl_penalty(
    referenced_D: Sequence[ReferencedSequence], kl_penalty_coef: float, discount: float = 0.0
) -> list[TrainingSequence]:
    """The sequences with coef * (mean k1 - k1_t), and what comes later discounted, added to the sampled advantages."""
    if not referenced_D:
        return []
    mean_kl = np.float32(mean_token_kl(referenced_D))
    return [
        replace(
            row.sequence,
            advantages_T=row.sequence.advantages_T + _penalty_T(row, mean_kl, kl_penalty_coef, discount),
        )
        for row in referenced_D
    ]


def discounted_future_sums(values_T: FloatArray, discount: float) -> FloatArray:
    """Entry t is the sum over s >= t of discount^(s - t) * values_T[s], added up in float64."""
    sums_T = np.zeros(len(values_T), dtype=np.float64)
    total = 0.0
    for t in range(len(values_T) - 1, -1, -1):
        total = float(values_T[t]) + discount * total
        sums_T[t] = total
    return sums_T.astype(np.float32)


def _penalty_T(row: ReferencedSequence, mean_kl: np.float32, coef: float, discount: float) -> FloatArray:
    is_sampled_T = row.sequence.is_sampled_T
    penalty_T = np.where(is_sampled_T, np.float32(coef) * (mean_kl - row.token_kl_T), np.float32(0.0))
    if discount == 0:
        return penalty_T
    return np.where(is_sampled_T, discounted_future_sums(penalty_T, discount), np.float32(0.0))


def _total_kl(referenced_D: Sequence[ReferencedSequence]) -> float:
    return float(sum(row.token_kl_T.sum(dtype=np.float64) for row in referenced_D))
