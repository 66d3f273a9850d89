"""What can be seen of replies without judging them: repetition, variety, and how two scores order them. No I/O.

Axes: _N replies.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from mint.errors import InvalidRequest


def repeated_share(tokens: Sequence[Hashable], n: int = 4) -> float:
    """Share of a reply's n-grams that stood in it before: 1 − different / all; 0 where it is shorter than n."""
    num_ngrams = len(tokens) - n + 1
    return 0.0 if num_ngrams < 1 else 1.0 - len(set(_ngrams(tokens, n))) / num_ngrams


def distinct_share(replies_N: Sequence[Sequence[Hashable]], n: int = 2) -> float:
    """distinct-n (Li et al., arXiv:1510.03055): different n-grams of all replies over all of them; 1 where none are.

    It falls when a policy says the same to everybody, and by itself the more replies are looked at: compare equal
    numbers of replies.
    """
    ngrams = [ngram for reply in replies_N for ngram in _ngrams(reply, n)]
    return len(set(ngrams)) / len(ngrams) if ngrams else 1.0


def ranks(values_N: Sequence[float] | np.ndarray) -> np.ndarray:
    """Ranks from 1 to N; equal values share the mean of their places."""
    values_N = np.asarray(values_N, dtype=np.float64)
    if not np.isfinite(values_N).all():
        raise InvalidRequest(f"values to be ranked must be finite, got {values_N[~np.isfinite(values_N)][0]}")
    _, group_N, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    last_place = np.cumsum(counts)
    return (last_place - (counts - 1) / 2)[group_N]


def rank_correlation(one_N: Sequence[float] | np.ndarray, other_N: Sequence[float] | np.ndarray) -> float:
    """Spearman's correlation: that of the ranks, ties sharing theirs; 0 where one side has a single value."""
    ranks_one_N, ranks_other_N = ranks(one_N), ranks(other_N)
    if len(ranks_one_N) != len(ranks_other_N):
        raise InvalidRequest(f"{len(ranks_one_N)} values cannot be paired with {len(ranks_other_N)}")
    centred_one_N, centred_other_N = (r - r.mean() for r in (ranks_one_N, ranks_other_N))
    norm = float(np.sqrt((centred_one_N**2).sum() * (centred_other_N**2).sum()))
    return float((centred_one_N * centred_other_N).sum()) / norm if norm > 0 else 0.0


def _ngrams(tokens: Sequence[Hashable], n: int) -> list[tuple[Hashable, ...]]:
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
