"""Noise that was put in is found, noise that cannot be seen is not claimed."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.preference.label_noise import repeated_labels, word_model_noise
from recipe.preference.pair_findings import NumberedPair, TextNumbers, number_pairs
from recipe.preference.types import PreferencePair
from recipe.preference.word_model import NUM_BUCKETS, fit, word_differences


def _votes(*counts: tuple[int, int]) -> list[NumberedPair]:
    """A prompt for each (labels for a, labels for b)."""
    return [
        NumberedPair(i, chosen, 3 - chosen, False)
        for i, (num_a, num_b) in enumerate(counts)
        for chosen in [1] * num_a + [2] * num_b
    ]


def test_disagreement_and_noise_of_repeated_labels_by_hand() -> None:
    # Comparisons 1 + 1 + 3, different 0 + 1 + 2: disagreement 3/5 is more than chance, so noise is one half.
    assert repeated_labels(_votes((2, 0), (1, 1), (2, 1), (1, 0))).disagreement == pytest.approx(3 / 5)
    # 8 of 25 comparisons differ: 2ε(1 − ε) = 0.32 for ε = 0.2.
    found = repeated_labels([*_votes(*[(1, 1)] * 8, *[(2, 0)] * 17)])
    assert found.noise == pytest.approx(0.2)
    assert found.low is not None and found.high is not None and found.low < 0.2 < found.high
    assert (found.num_reply_pairs, found.num_labels) == (25, 50)


def test_single_labels_and_ties_say_nothing() -> None:
    ties = [NumberedPair(0, 1, 2, True)] * 5
    assert repeated_labels([*_votes((1, 0), (0, 1)), *ties]).noise is None
    assert repeated_labels([]).num_reply_pairs == 0


def test_noise_that_was_put_in_is_found_in_repeated_labels() -> None:
    rng = random.Random(0)
    counts: list[tuple[int, int]] = []
    for _ in range(3000):
        num_right = sum(rng.random() >= 0.15 for _ in range(3))
        counts.append((num_right, 3 - num_right))
    found = repeated_labels(_votes(*counts))
    assert found.noise == pytest.approx(0.15, abs=0.015)
    assert found.low is not None and found.high is not None and found.low < 0.15 < found.high


def _made_pairs(num_pairs: int, noise: float, seed: int = 0) -> tuple[list[PreferencePair], set[int]]:
    """Good replies have more good words. The positions of the flipped labels are returned too."""
    rng = random.Random(seed)
    pairs: list[PreferencePair] = []
    flipped: set[int] = set()
    for i in range(num_pairs):
        good, bad = (
            " ".join(rng.choice(words) + str(rng.randrange(8)) for _ in range(30))
            for words in (["fine", "well", "so"], ["poor", "vague", "so"])
        )
        replies = [{"role": "assistant", "content": text} for text in (good, bad)]
        if rng.random() < noise:
            flipped.add(i)
            replies.reverse()
        pairs.append(PreferencePair([{"role": "user", "content": f"question {i // 2}"}], *replies))  # type: ignore
    return pairs, flipped


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_noise_that_was_put_in_is_found_by_the_model_of_words(noise: float) -> None:
    pairs, flipped = _made_pairs(1200, noise)
    found = word_model_noise(pairs, number_pairs(pairs, TextNumbers()))
    assert found is not None and found.confident_error.value is not None
    assert found.confident_error.value == pytest.approx(noise, abs=0.07)
    assert found.accuracy.value == pytest.approx(1 - noise, abs=0.05)
    assert {pair.position for pair in found.suspicious} <= flipped
    assert len(found.suspicious) == (20 if noise else 0)
    probabilities = [pair.label_probability for pair in found.suspicious]
    assert probabilities == sorted(probabilities) and all(p < 0.5 for p in probabilities)


def test_labels_without_any_rule_are_as_good_as_chance() -> None:
    pairs, _ = _made_pairs(1200, 0.5)
    found = word_model_noise(pairs, number_pairs(pairs, TextNumbers()))
    assert found is not None and found.accuracy.low is not None and found.accuracy.high is not None
    assert found.accuracy.low - 0.02 < 0.5 < found.accuracy.high + 0.02


def test_a_model_is_not_asked_about_pairs_of_a_prompt_it_has_seen() -> None:
    """Each prompt has words of its own: they help only where the same prompt is on both sides."""
    rng = random.Random(1)
    pairs: list[PreferencePair] = []
    for i in range(150):
        words = [f"own{i}a", f"own{i}b"]
        rng.shuffle(words)
        replies = [{"role": "assistant", "content": word} for word in words]
        pairs += [PreferencePair([{"role": "user", "content": f"q{i}"}], *replies)] * 2  # type: ignore
    found = word_model_noise(pairs, number_pairs(pairs, TextNumbers()))
    assert found is not None and found.accuracy.value == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("num_pairs", [0, 99])
def test_few_pairs_are_not_judged(num_pairs: int) -> None:
    pairs, _ = _made_pairs(num_pairs, 0.0)
    assert word_model_noise(pairs, number_pairs(pairs, TextNumbers())) is None


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("cd")), min_size=1, max_size=8))
def test_the_fit_is_where_the_slope_of_the_loss_is_zero(replies: list[tuple[str, str]]) -> None:
    """Against the definition written with autograd on a dense matrix."""
    differences = word_differences([(ord(a), a, ord(b), b) for a, b in replies])
    dense = torch.zeros(len(replies), NUM_BUCKETS, dtype=torch.float64)
    dense[differences.rows_E, differences.columns_E] = torch.from_numpy(differences.values_E)
    weights = torch.from_numpy(fit(differences)).requires_grad_()
    loss = torch.nn.functional.softplus(-(dense @ weights)).sum() + 0.5 * weights.square().sum()
    loss.backward()
    assert weights.grad is not None and weights.grad.abs().max() < 1e-3


def test_a_row_is_the_difference_of_log_counts_at_length_one() -> None:
    differences = word_differences([(0, "Tea tea milk", 1, "milk")])
    assert differences.values_E.tolist() == [1.0]
    differences = word_differences([(0, "tea tea", 1, "milk"), (2, "milk", 2, "milk")])
    expected = sorted(
        [math.log(3) / math.hypot(math.log(3), math.log(2)), -math.log(2) / math.hypot(math.log(3), math.log(2))]
    )
    assert sorted(differences.values_E.tolist()) == pytest.approx(expected)
    assert np.array_equal(differences.margins(np.ones(NUM_BUCKETS))[1:], [0.0])
