"""Repetition, variety and rank correlation, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mint.errors import InvalidRequest
from recipe.rl.reply_statistics import distinct_share, rank_correlation, ranks, repeated_share


def test_repeated_ngrams_of_one_reply() -> None:
    # a b c d a b c d: five 4-grams, of which the last says what the first did.
    assert repeated_share(["a", "b", "c", "d", "a", "b", "c", "d"]) == pytest.approx(1 / 5)
    assert repeated_share(["x"] * 7) == pytest.approx(3 / 4)
    assert repeated_share(["all", "words", "of", "this", "differ"]) == 0.0
    assert repeated_share(["too", "short"]) == 0.0


def test_distinct_ngrams_of_many_replies() -> None:
    assert distinct_share([["a", "b", "c"], ["a", "b"]]) == pytest.approx(2 / 3)
    assert distinct_share([["a", "b"], ["a", "b"], ["a", "b"]]) == pytest.approx(1 / 3)
    assert distinct_share([["a"], []]) == 1.0


def test_ranks_share_the_places_of_equal_values() -> None:
    assert ranks([10.0, 30.0, 20.0]).tolist() == [1.0, 3.0, 2.0]
    assert ranks([5.0, 1.0, 5.0, 5.0]).tolist() == [3.0, 1.0, 3.0, 3.0]
    with pytest.raises(InvalidRequest, match="must be finite, got nan"):
        ranks([1.0, float("nan")])


def test_rank_correlation_by_hand() -> None:
    # Without ties: 1 - 6 * sum d^2 / (n (n^2 - 1)), here with d = (0, 1, 1, 0).
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(1 - 6 * 2 / 60)
    assert rank_correlation([1, 2, 3], [10, 100, 1000]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # With ties it is Pearson's correlation of the ranks.
    one, other = [1.0, 1.0, 2.0, 3.0], [1.0, 2.0, 2.0, 4.0]
    expected = np.corrcoef([1.5, 1.5, 3.0, 4.0], [1.0, 2.5, 2.5, 4.0])[0, 1]
    assert rank_correlation(one, other) == pytest.approx(expected)
    assert rank_correlation([1.0, 1.0], [1.0, 2.0]) == 0.0
    with pytest.raises(InvalidRequest, match="2 values cannot be paired with 3"):
        rank_correlation([1, 2], [1, 2, 3])
