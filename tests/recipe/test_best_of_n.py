"""Best-of-n: the estimate for every k against all subsets, its bias, ties, and a real policy."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mint
from mint.errors import InvalidRequest
from recipe.best_of_n import BestOfN, best_of_k_values, best_of_n_kl_bound, best_of_n_summary, draw_best_of_n
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, get_renderer


def mean_over_subsets(selector: list[float], value: list[float], k: int) -> float:
    """Best-of-k by the definition: every subset of k replies, its best by the selector, equal ones by lot."""
    found: list[float] = []
    for subset in combinations(range(len(value)), k):
        best = max(selector[i] for i in subset)
        found.append(float(np.mean([value[i] for i in subset if selector[i] == best])))
    return float(np.mean(found))


def test_three_replies_by_hand() -> None:
    # The subsets of two are {1, 3}, {1, 2} and {3, 2}: the selector takes 3, 2 and 3, worth 0.7, 0.4 and 0.7.
    values_K = best_of_k_values(np.array([1.0, 3.0, 2.0]), np.array([0.1, 0.7, 0.4]))
    assert values_K == pytest.approx([0.4, (0.7 + 0.4 + 0.7) / 3, 0.7])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), min_size=1, max_size=7))
def test_every_k_is_the_mean_over_all_subsets(replies: list[tuple[int, int]]) -> None:
    selector, value = [float(s) for s, _ in replies], [float(v) for _, v in replies]
    values_K = best_of_k_values(np.array(selector), np.array(value))
    assert values_K == pytest.approx([mean_over_subsets(selector, value, k + 1) for k in range(len(value))])


def test_the_estimate_is_unbiased_where_the_answer_is_known() -> None:
    # The best of k uniform numbers has mean k / (k + 1).
    rng = np.random.default_rng(0)
    draws = rng.random((4000, 6))
    mean_K = np.mean([best_of_k_values(draw, draw) for draw in draws], axis=0)
    assert mean_K == pytest.approx([k / (k + 1) for k in range(1, 7)], abs=0.01)


def test_a_selector_that_is_wrong_makes_more_replies_worse() -> None:
    values_K = best_of_k_values(np.array([4.0, 3.0, 2.0, 1.0]), np.array([0.0, 0.2, 0.4, 0.6]))
    assert np.all(np.diff(values_K) < 0) and values_K[-1] == 0.0


def test_large_n_stays_finite() -> None:
    values_K = best_of_k_values(np.arange(2000.0), np.arange(2000.0))
    assert values_K[0] == pytest.approx(999.5) and values_K[-1] == 1999.0


def test_the_bound_of_the_kl() -> None:
    assert best_of_n_kl_bound(1) == 0.0
    assert best_of_n_kl_bound(4) == pytest.approx(math.log(4) - 0.75)
    with pytest.raises(InvalidRequest, match="n=0: must be at least 1"):
        best_of_n_kl_bound(0)


def test_win_rates_and_cost_by_hand() -> None:
    best = BestOfN(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[0.0, 1.0], [0.5, 0.5]]), tokens_per_reply=10.0)
    # First prompt against 0.5: lost and won, so 1/2 for one reply and 1 for the best of two. Second prompt: draws.
    assert best.win_rates_K(np.array([[0.5], [0.5]])) == pytest.approx([0.5, 0.75])
    assert best.values_K() == pytest.approx([0.5, 0.75])
    assert best.selector_scores_K() == pytest.approx([1.5, 2.0])
    assert best.replies_at_cost(59.0, num_prompts=2) == 2
    with pytest.raises(InvalidRequest, match="1 prompts of the opponent for 2"):
        best.win_rates_K(np.array([[0.5]]))


def test_the_summary_reports_the_k_that_costs_what_rl_cost() -> None:
    best = BestOfN(np.array([[1.0, 2.0, 3.0]]), np.array([[0.0, 1.0, 2.0]]), tokens_per_reply=10.0)
    # 30 tokens of training on 3 prompts pay for one reply more to each: RL's own reply and one beside it.
    summary = best_of_n_summary(best, "gold", np.array([[1.0]]), rl_tokens=30.0, num_prompts=3)
    assert summary["best_of_n.equal_tokens_n"] == 2
    assert summary["best_of_n.gold_at_equal_tokens"] == pytest.approx((1 + 2 + 2) / 3)
    assert summary["best_of_n.gold"] == 2.0 and summary["best_of_n.gold_reply_win_rate"] == 1.0
    more = best_of_n_summary(best, "gold", np.array([[1.0]]), rl_tokens=3000.0, num_prompts=3)
    assert more["best_of_n.equal_tokens_n"] == 101 and "best_of_n.gold_at_equal_tokens" not in more


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="one of each for every reply"):
        best_of_k_values(np.zeros(2), np.zeros(3))


async def test_the_best_of_real_replies_by_their_length(service: mint.ServiceClient, tiny_model_dir: Path) -> None:
    client = await service.create_sampling_client_async(base_model=str(tiny_model_dir))
    renderer = get_renderer("role_colon", get_tokenizer(str(tiny_model_dir)))
    prompts: list[list[Message]] = [[{"role": "user", "content": text}] for text in ("one", "two")]

    async def length(conversation: list[Message]) -> float:
        return float(len(str(conversation[-1]["content"])))

    options = {"n": 4, "max_tokens": 6, "seed": 3}
    best = await draw_best_of_n(client, prompts, renderer, length, length, **options)
    again = await draw_best_of_n(client, prompts, renderer, length, length, **options)
    assert np.array_equal(best.value_PN, again.value_PN) and best.value_PN.shape == (2, 4)
    assert best.values_K()[-1] == pytest.approx(best.value_PN.max(axis=1).mean())
    assert best.values_K()[0] == pytest.approx(best.value_PN.mean())
    assert 0 < best.tokens_per_reply <= 6
    # Replies that were cut off are nothing to the selector, so that all are equal to it and the choice is by lot.
    cut = await draw_best_of_n(
        client, prompts, renderer, length, length, n=4, max_tokens=1, seed=3, failed_reply_score=-3.0
    )
    assert np.all(cut.selector_PN == -3.0) and np.allclose(cut.values_K(), cut.value_PN.mean())
    with pytest.raises(InvalidRequest, match="best-of-n with n=0 and 2 prompts"):
        await draw_best_of_n(client, prompts, renderer, length, length, n=0, max_tokens=1, seed=0)
