"""A preference model that only counts words: cheap, cross-fitted, and a yardstick for what the labels can be worth.

A reply's score is linear in its words; P(chosen over rejected) = σ(score difference), the Bradley-Terry model. Each
pair is judged by a model that was fitted without any pair of its prompt, so what is learned is not what is judged.

Axes: _N preference pair, _W word bucket, _E entry of a sparse matrix.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

NUM_BUCKETS = 1 << 16
NUM_FOLDS = 5
# Words and marks, in any script; "12" and "?" are words here.
_WORD = re.compile(r"\w+|[^\w\s]")
# Strength of the pull towards 0, per pair: the usual C = 1 of a logistic regression on rows of length 1.
_PENALTY = 1.0
_MAX_ITERATIONS = 40


class WordCounts:
    """Word buckets of replies, each distinct text counted once; the weight of a bucket is log1p of its count."""

    def __init__(self) -> None:
        self._bucket_of: dict[str, int] = {}
        self._counts: dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}

    def of(self, number: int, text: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(buckets, weights) of the text with this number."""
        if number not in self._counts:
            bucket_of = self._bucket_of
            words = _WORD.findall(text.casefold())
            for word in set(words) - bucket_of.keys():
                bucket_of[word] = zlib.crc32(word.encode("utf-8", "surrogatepass")) % NUM_BUCKETS
            buckets, counts = np.unique(
                np.fromiter((bucket_of[word] for word in words), np.int64, len(words)), return_counts=True
            )
            self._counts[number] = (buckets, np.log1p(counts.astype(np.float64)))
        return self._counts[number]


@dataclass(frozen=True)
class WordDifferences:
    """Words of the chosen reply less those of the rejected one: a sparse matrix, a row of length 1 per pair."""

    rows_E: NDArray[np.int64]
    columns_E: NDArray[np.int64]
    values_E: NDArray[np.float64]
    num_pairs: int

    def margins(self, weights_W: NDArray[np.float64]) -> NDArray[np.float64]:
        """margins_N: the matrix times the weights."""
        return _sums(self.rows_E, self.values_E * weights_W[self.columns_E], self.num_pairs)

    def sum_of_rows(self, factors_N: NDArray[np.float64]) -> NDArray[np.float64]:
        """sum_W: the rows times their factors, added up."""
        return _sums(self.columns_E, self.values_E * factors_N[self.rows_E], NUM_BUCKETS)

    def subset(self, is_wanted_N: NDArray[np.bool_]) -> WordDifferences:
        """The wanted rows."""
        is_wanted_E = is_wanted_N[self.rows_E]
        places_E = (np.cumsum(is_wanted_N) - 1)[self.rows_E[is_wanted_E]]
        return WordDifferences(
            places_E, self.columns_E[is_wanted_E], self.values_E[is_wanted_E], int(is_wanted_N.sum())
        )


def word_differences(replies_N: Sequence[tuple[int, str, int, str]]) -> WordDifferences:
    """The differences of pairs given as (number of chosen, its text, number of rejected, its text)."""
    counts = WordCounts()
    rows: list[NDArray[np.int64]] = []
    columns: list[NDArray[np.int64]] = []
    values: list[NDArray[np.float64]] = []
    for i_pair, (chosen, chosen_text, rejected, rejected_text) in enumerate(replies_N):
        buckets_a, weights_a = counts.of(chosen, chosen_text)
        buckets_b, weights_b = counts.of(rejected, rejected_text)
        buckets, place = np.unique(np.concatenate([buckets_a, buckets_b]), return_inverse=True)
        weights = _sums(place, np.concatenate([weights_a, -weights_b]), len(buckets))
        is_used = weights != 0
        weights = weights[is_used]
        rows.append(np.full(len(weights), i_pair, dtype=np.int64))
        columns.append(buckets[is_used])
        values.append(weights / np.linalg.norm(weights) if len(weights) else weights)
    return WordDifferences(np.concatenate(rows), np.concatenate(columns), np.concatenate(values), len(replies_N))


def cross_fitted_margins(differences: WordDifferences, folds_N: NDArray[np.int64]) -> NDArray[np.float64]:
    """margins_N: log-odds of each label from the model that was fitted without its fold; above 0 agrees with it."""
    margins_N = np.zeros(differences.num_pairs)
    for fold in np.unique(folds_N):
        is_test_N = folds_N == fold
        weights_W = fit(differences.subset(~is_test_N))
        margins_N[is_test_N] = differences.subset(is_test_N).margins(weights_W)
    return margins_N


def fit(differences: WordDifferences) -> NDArray[np.float64]:
    """weights_W of the logistic regression without intercept, so that swapping a pair swaps its verdict."""
    weights_W = torch.zeros(NUM_BUCKETS, dtype=torch.float64)
    optimizer = torch.optim.LBFGS([weights_W], max_iter=_MAX_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        margins_N = torch.from_numpy(differences.margins(weights_W.numpy()))
        slopes_W = torch.from_numpy(differences.sum_of_rows(-torch.sigmoid(-margins_N).numpy()))
        weights_W.grad = (slopes_W + _PENALTY * weights_W) / differences.num_pairs
        penalty = 0.5 * _PENALTY * weights_W.square().sum()
        return (torch.nn.functional.softplus(-margins_N).sum() + penalty) / differences.num_pairs

    optimizer.step(loss)
    return weights_W.numpy()


def _sums(places: NDArray[np.int64], values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The sum of the values of each place."""
    return np.bincount(places, values, size).astype(np.float64, copy=False)
