"""Best-of-n: draw n replies to a prompt and give the one that a score likes best; a baseline without training.

From one set of n replies comes the result for every k up to n, without bias: each k of them are as good a draw of k
as any other, so the mean over all subsets of size k estimates best-of-k (Nakano et al., arXiv:2112.09332, appendix).
With s_1 <= ... <= s_n the selector's scores and v_i the value of the i-th reply,

    value of best-of-k  =  sum over i of  C(i - 1, k - 1) / C(n, k) * v_i

since the i-th is the best of C(i - 1, k - 1) of the C(n, k) subsets. Among equal scores the choice is by lot, so their
values count with their mean. KL(best-of-k || policy) is at most log k - (k - 1) / k nats (Stiennon et al.,
arXiv:2009.01325; that it is a bound: Beirami et al., arXiv:2401.01879).

Axes: _P prompts, _N replies to one prompt, _R an opponent's replies to it, _K sizes of best-of-k from 1 to N.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mint.errors import InvalidRequest
from recipe.reply_sampling import Score, draw_replies, score_replies

if TYPE_CHECKING:
    import mint
    from renderers import Message, Renderer


@dataclass(frozen=True)
class BestOfN:
    """n replies to each prompt, what the selector thinks of them and what they are worth, and how many tokens they are.

    A value is what the result is reported in (a gold score, or the selector's own).
    """

    selector_PN: np.ndarray
    value_PN: np.ndarray
    tokens_per_reply: float

    @property
    def n(self) -> int:
        """Replies to each prompt."""
        return self.value_PN.shape[1]

    def values_K(self) -> np.ndarray:
        """Mean value of best-of-k for k = 1 to n."""
        return self._mean_over_prompts(self.value_PN)

    def selector_scores_K(self) -> np.ndarray:
        """Mean score, by the selector itself, of best-of-k for k = 1 to n."""
        return self._mean_over_prompts(self.selector_PN)

    def win_rates_K(self, opponent_PR: np.ndarray) -> np.ndarray:
        """Probability that best-of-k has a higher value than one of the opponent's replies, ties counting one half.

        opponent_PR: values of other replies to the same prompts, drawn apart from these.
        """
        if len(opponent_PR) != len(self.value_PN):
            raise InvalidRequest(f"{len(opponent_PR)} prompts of the opponent for {len(self.value_PN)} of best-of-n")
        wins_PN = (np.sign(self.value_PN[:, :, None] - opponent_PR[:, None, :]) + 1).mean(axis=2) / 2
        return self._mean_over_prompts(wins_PN)

    def replies_at_cost(self, num_tokens: float, num_prompts: int) -> int:
        """How many replies to each of so many prompts `num_tokens` tokens pay for; may be more than n."""
        return int(num_tokens // (self.tokens_per_reply * num_prompts))

    def _mean_over_prompts(self, value_PN: np.ndarray) -> np.ndarray:
        pairs = zip(self.selector_PN, value_PN, strict=True)
        return np.mean([best_of_k_values(selector_N, value_N) for selector_N, value_N in pairs], axis=0)


async def draw_best_of_n(
    client: mint.SamplingClient,
    prompts: Sequence[list[Message]],
    renderer: Renderer,
    selector: Score,
    value: Score,
    *,
    n: int,
    max_tokens: int,
    seed: int,
    failed_reply_score: float | None = None,
) -> BestOfN:
    """n replies of the policy to each prompt at temperature 1, scored by both.

    failed_reply_score: what the selector gives to a reply that was cut off or breaks the format; None: what it says.
    """
    if n < 1 or not prompts:
        raise InvalidRequest(f"best-of-n with n={n} and {len(prompts)} prompts: at least one of each is needed")
    replies_PN = await draw_replies(client, prompts, renderer, n, max_tokens, seed, "best of n")
    selector_PN, value_PN = await asyncio.gather(
        score_replies(replies_PN, prompts, renderer, selector, failed_reply_score),
        score_replies(replies_PN, prompts, renderer, value),
    )
    num_tokens = sum(len(reply.tokens) for replies in replies_PN for reply in replies)
    return BestOfN(selector_PN, value_PN, num_tokens / value_PN.size)


def best_of_n_summary(
    best: BestOfN, value_name: str, opponent_PR: np.ndarray, rl_tokens: float, num_prompts: int
) -> dict[str, Any]:
    """best_of_n.* of the pipeline's summary (docs/metrics.md).

    opponent_PR: values of other replies of the same policy to the same prompts. rl_tokens: what RL sampled to train.
    num_prompts: those that the trained policy then answers, once each.
    """
    equal_n = best.replies_at_cost(rl_tokens, num_prompts) + 1
    values_K, win_rates_K = best.values_K(), best.win_rates_K(opponent_PR)
    summary: dict[str, Any] = {
        "best_of_n.n": best.n,
        f"best_of_n.{value_name}": float(values_K[-1]),
        f"best_of_n.{value_name}_reply_win_rate": float(win_rates_K[-1]),
        "best_of_n.kl_bound": best_of_n_kl_bound(best.n),
        "best_of_n.tokens_per_prompt": best.tokens_per_reply * best.n,
        "best_of_n.rl_tokens": rl_tokens,
        "best_of_n.equal_tokens_n": equal_n,
    }
    if equal_n <= best.n:
        summary |= {
            f"best_of_n.{value_name}_at_equal_tokens": float(values_K[equal_n - 1]),
            f"best_of_n.{value_name}_reply_win_rate_at_equal_tokens": float(win_rates_K[equal_n - 1]),
        }
    return summary


def best_of_k_values(selector_N: np.ndarray, value_N: np.ndarray) -> np.ndarray:
    """values_K: the value of the reply that the selector likes best among k, the mean over all subsets of size k."""
    if selector_N.shape != value_N.shape or selector_N.ndim != 1 or not len(selector_N):
        raise InvalidRequest(f"scores of shapes {selector_N.shape} and {value_N.shape}: one of each for every reply")
    scores, group_N = np.unique(selector_N, return_inverse=True)
    mean_value = np.asarray([value_N[group_N == i].mean() for i in range(len(scores))])
    num_up_to = np.concatenate([[0.0], np.cumsum(np.bincount(group_N))])
    n = len(value_N)
    # The share of subsets that lie within the m lowest, C(m, k) / C(n, k), from that of one element less.
    share_up_to = np.ones(len(num_up_to))
    values_K: list[float] = []
    for k in range(1, n + 1):
        share_up_to = share_up_to * np.maximum(num_up_to - k + 1, 0.0) / (n - k + 1)
        values_K.append(float(np.dot(np.diff(share_up_to), mean_value)))
    return np.asarray(values_K)


def best_of_n_kl_bound(n: int) -> float:
    """log n - (n - 1) / n: no less than KL(best-of-n || policy), in nats per reply."""
    if n < 1:
        raise InvalidRequest(f"n={n}: must be at least 1")
    return math.log(n) - (n - 1) / n
