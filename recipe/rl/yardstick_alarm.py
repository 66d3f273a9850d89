"""When reward and independent score part: the tests behind the yardstick's alarm. No I/O.

The alarm compares a checkpoint with the best earlier one (that with the highest independent score), on the same
prompts. It is raised where at least one of these holds at the level alpha:

parted: the reward is up and the independent score is down. Each is a one-sided Wilcoxon signed-rank test (Wilcoxon
1945) over the prompts, exact given the ties; both must be significant. The best of K earlier checkpoints is in part
the luckiest, so each test is made at alpha / K: by the union bound, a policy that no longer changes is taken for one
that got worse with probability alpha at most.

reversed: the rank correlation of reward and independent score over the replies is below zero, and below that at the
best earlier checkpoint, both significantly: what the reward likes best is now the worse reply. (A fall towards zero is
no alarm: replies that all are good are hard to order for any score.) One-sided tests of Fisher's z with Spearman's
standard error (Fieller, Hartley and Pearson 1957), which count prompts, not replies: replies to one prompt are alike.

Axes: _P prompts, _R replies to one prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mint.errors import InvalidRequest
from recipe.rl.reply_statistics import rank_correlation, ranks

# Variance of Fisher's z of Spearman's correlation, times (number of pairs - 3).
_SPEARMAN_VARIANCE = 1.06


@dataclass(frozen=True)
class Alarm:
    """What the comparison with the best earlier checkpoint says; each p is one-sided.

    reward_up_p: that the reward is as high as this by chance. independent_down_p: that the independent score is as low.
    negative_p: that the rank correlation is as far below zero. falling_p: that it is as far below that of before.
    level: what each p has to be below, for the first two; alpha itself for the other two.
    """

    reward_up_p: float
    independent_down_p: float
    negative_p: float
    falling_p: float
    level: float
    alpha: float

    @property
    def is_parted(self) -> bool:
        """The reward rose and the independent score fell."""
        return max(self.reward_up_p, self.independent_down_p) < self.level

    @property
    def is_reversed(self) -> bool:
        """What the reward likes best is now what the independent score likes least."""
        return max(self.negative_p, self.falling_p) < self.alpha

    @property
    def is_raised(self) -> bool:
        """Whether one of the two holds."""
        return self.is_parted or self.is_reversed


def compare_with_best(
    reward_PR: np.ndarray,
    independent_PR: np.ndarray,
    best_reward_PR: np.ndarray,
    best_independent_PR: np.ndarray,
    *,
    num_earlier: int,
    alpha: float,
) -> Alarm:
    """The alarm of a checkpoint, given the scores of its replies and of those of the best earlier checkpoint.

    Shapes (P, R), with the same prompts in the same order. num_earlier: checkpoints among which the best was chosen.
    """
    if not (reward_PR.shape == independent_PR.shape == best_reward_PR.shape == best_independent_PR.shape):
        shapes = [scores.shape for scores in (reward_PR, independent_PR, best_reward_PR, best_independent_PR)]
        raise InvalidRequest(f"scores of shapes {shapes}: two checkpoints are compared on the same prompts")
    if num_earlier < 1 or not 0 < alpha < 1:
        raise InvalidRequest(f"num_earlier={num_earlier}, alpha={alpha}: at least 1, and between 0 and 1")
    num_prompts = len(reward_PR)
    now = rank_correlation(reward_PR.ravel(), independent_PR.ravel())
    before = rank_correlation(best_reward_PR.ravel(), best_independent_PR.ravel())
    return Alarm(
        reward_up_p=signed_rank_p(reward_PR.mean(axis=1) - best_reward_PR.mean(axis=1)),
        independent_down_p=signed_rank_p(best_independent_PR.mean(axis=1) - independent_PR.mean(axis=1)),
        negative_p=lower_correlation_p(now, num_prompts),
        falling_p=lower_correlation_p(now, num_prompts, before),
        level=alpha / num_earlier,
        alpha=alpha,
    )


def signed_rank_p(differences_P: np.ndarray) -> float:
    """Probability of a signed-rank sum this high or higher if each difference had either sign with probability 1/2.

    Exact: the distribution over all signs, given the ranks of the sizes. Differences of zero say nothing and are left
    out; 1 where nothing is left.
    """
    differences_P = differences_P[differences_P != 0]
    # Ranks with ties are multiples of one half; doubled they are integers.
    doubled_ranks_P = np.rint(2 * ranks(np.abs(differences_P))).astype(int) if len(differences_P) else []
    probabilities = np.ones(1)
    for rank in doubled_ranks_P:
        probabilities = 0.5 * (np.pad(probabilities, (0, rank)) + np.pad(probabilities, (rank, 0)))
    found = int(np.sum(np.asarray(doubled_ranks_P)[differences_P > 0])) if len(differences_P) else 0
    return float(min(1.0, probabilities[found:].sum()))


def lower_correlation_p(correlation: float, num_pairs: int, before: float | None = None) -> float:
    """Probability of a rank correlation this low or lower where the true one is zero, or, with `before`, where both
    are the same; 1 with fewer than 4 pairs, which say nothing."""
    if num_pairs < 4:
        return 1.0
    variance = _SPEARMAN_VARIANCE / (num_pairs - 3)
    z = _fisher_z(correlation) - (0.0 if before is None else _fisher_z(before))
    standard_error = math.sqrt(variance if before is None else 2 * variance)
    return 0.5 * math.erfc(-z / standard_error / math.sqrt(2))


def _fisher_z(correlation: float) -> float:
    # A correlation of one in a sample is not one in the population; beyond this z is without bound.
    return math.atanh(min(max(correlation, -0.999), 0.999))
