"""Shares of pairs with an interval that takes the pairs of a prompt together."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.preference.clustered_share import (
    MIN_PROMPTS_TO_MEASURE_CLUSTERING,
    ShareEstimate,
    clustered_share,
    effective_num_pairs,
)
from recipe.preference.losses import wilson_interval

HITS = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=60)


def with_prompts(num_pairs: int, num_prompts: int) -> list[int]:
    return [i % num_prompts for i in range(num_pairs)]


def test_no_pairs_have_no_share() -> None:
    assert clustered_share([], []) == ShareEstimate(None, None, None, 0)


def test_one_pair_a_prompt_is_the_plain_wilson_interval() -> None:
    hits = [1.0] * 33 + [0.0] * 7
    found = clustered_share(hits, range(40))
    assert found.value == pytest.approx(33 / 40) and found.num_pairs == 40
    assert (found.low, found.high) == pytest.approx(wilson_interval(33 / 40, 40))


def test_copies_of_a_pair_tell_nothing_new() -> None:
    hits, prompts = [1.0] * 30 + [0.0] * 10, list(range(40))
    once, five_times = clustered_share(hits, prompts), clustered_share(hits * 5, prompts * 5)
    assert five_times.value == once.value and five_times.num_pairs == 200
    assert (five_times.low, five_times.high) == pytest.approx((once.low, once.high), abs=2e-3)


def test_worked_design_effect() -> None:
    # 20 prompts of 2 pairs: on 8 both are right, on 4 both wrong, on 8 one. The share is 24/40 = 0.6.
    hits = [1.0, 1.0] * 8 + [0.0, 0.0] * 4 + [1.0, 0.0] * 8
    prompts = [i // 2 for i in range(40)]
    between = 8 * 0.8**2 + 4 * 1.2**2 + 8 * 0.2**2
    design_effect = (20 / 19 * between / 40**2) / (0.6 * 0.4 / 39)
    assert design_effect == pytest.approx(1.19737, abs=1e-5)
    assert effective_num_pairs(hits, prompts) == pytest.approx(40 / design_effect)


@pytest.mark.parametrize("num_prompts", [1, 5, MIN_PROMPTS_TO_MEASURE_CLUSTERING - 1])
def test_each_of_few_prompts_is_one_trial(num_prompts: int) -> None:
    hits = [float(i % 3 > 0) for i in range(60)]
    assert effective_num_pairs(hits, with_prompts(60, num_prompts)) == num_prompts


def test_all_right_is_as_sure_as_there_are_prompts() -> None:
    assert clustered_share([1.0] * 100, with_prompts(100, 50)).low == pytest.approx(wilson_interval(1.0, 50)[0])


def test_the_interval_is_about_that_of_a_bootstrap_over_prompts() -> None:
    rng = random.Random(0)
    by_prompt = {}
    for prompt in range(120):
        chance = rng.choice([0.5, 0.95])
        by_prompt[prompt] = [float(rng.random() < chance) for _ in range(rng.choice([1, 4, 8]))]
    means = []
    for _ in range(2000):
        drawn = [hit for prompt in rng.choices(range(120), k=120) for hit in by_prompt[prompt]]
        means.append(sum(drawn) / len(drawn))
    low, high = statistics.quantiles(means, n=40)[0], statistics.quantiles(means, n=40)[-1]
    hits = [hit for hits in by_prompt.values() for hit in hits]
    found = clustered_share(hits, [prompt for prompt, hits in by_prompt.items() for _ in hits])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.012)
    plain_low, plain_high = wilson_interval(found.value or 0.0, len(hits))
    assert high - low > 1.15 * (plain_high - plain_low), "the bootstrap itself finds the plain interval too narrow"


def test_it_holds_the_true_share_as_often_as_it_says() -> None:
    rng = random.Random(1)
    num_held = 0
    for _ in range(400):
        hits, prompts = [], []
        for prompt in range(60):
            is_easy = rng.random() < 0.6
            for _ in range(5):
                hits.append(float(rng.random() < (0.95 if is_easy else 0.45)))
                prompts.append(prompt)
        found = clustered_share(hits, prompts)
        assert found.low is not None and found.high is not None
        num_held += found.low <= 0.75 <= found.high
    # 0.95 ± 3 standard errors of 400 trials.
    assert 0.95 - 0.033 <= num_held / 400 <= 0.95 + 0.033


@settings(max_examples=80)
@given(hits=HITS, num_prompts=st.integers(1, 40), seed=st.integers(0, 9))
def test_bounds_order_and_swapping(hits: list[float], num_prompts: int, seed: int) -> None:
    prompts = with_prompts(len(hits), num_prompts)
    found = clustered_share(hits, prompts)
    assert found.value is not None and found.low is not None and found.high is not None
    # As low and high are Wilson's, the share itself lies inside, but for rounding.
    assert 0.0 <= found.low <= found.value + 1e-12 and found.value - 1e-12 <= found.high <= 1.0
    assert 0 < effective_num_pairs(hits, prompts) <= len(hits)
    shuffled = list(zip(hits, prompts, strict=True))
    random.Random(seed).shuffle(shuffled)
    assert clustered_share(*map(list, zip(*shuffled, strict=True))) == found
    swapped = clustered_share([1 - hit for hit in hits], prompts)
    assert swapped.value == pytest.approx(1 - found.value)
    assert (swapped.low, swapped.high) == pytest.approx((1 - found.high, 1 - found.low), abs=1e-9)
    assert math.isfinite(found.high - found.low)
