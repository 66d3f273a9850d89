"""Whether a preference model is as often right as it says: Brier score, calibration error and reliability bins.

A margin m (chosen reward less rejected reward, in log-odds) says that the chosen reply is better with probability σ(m).
Pure functions. Axes: _N preference pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MAX_BINS = 10
MIN_PAIRS_PER_BIN = 8


@dataclass(frozen=True)
class ReliabilityBin:
    """Pairs about which the model is about equally sure, that is σ(|m|) from `low` to `high`."""

    low: float
    high: float
    # Mean of σ(|m|): how often the model says it is right.
    mean_predicted: float
    # How often it is; a margin of exactly zero counts half.
    share_right: float
    num_pairs: int


def sigmoid(log_odds: float) -> float:
    """1 / (1 + e^−x), without overflow."""
    if log_odds >= 0:
        return 1.0 / (1.0 + math.exp(-log_odds))
    return math.exp(log_odds) / (1.0 + math.exp(log_odds))


def hit(margin: float) -> float:
    """1 for a positive margin, 0 for a negative one, 0.5 for none."""
    return 0.5 if margin == 0 else float(margin > 0)


def brier_score(margins_N: Sequence[float]) -> float:
    """Mean of (1 − σ(m))²: 0 is sure and right, 0.25 a model that always says one half, 1 sure and wrong.

    Brier (1950), "Verification of forecasts expressed in terms of probability", for the one event "chosen is better".
    """
    assert margins_N, "the Brier score of no pairs is undefined"
    return math.fsum(sigmoid(-margin) ** 2 for margin in margins_N) / len(margins_N)


def reliability_bins(margins_N: Sequence[float], num_bins: int | None = None) -> list[ReliabilityBin]:
    """Bins of about equally many pairs, by how sure the model is, the least sure first.

    num_bins: None is as many as have MIN_PAIRS_PER_BIN pairs each, up to MAX_BINS. Pairs about which the model is
    exactly equally sure share a bin, so the order of the pairs does not matter and there may be fewer bins.
    """
    if not margins_N:
        return []
    if num_bins is None:
        num_bins = max(1, min(MAX_BINS, len(margins_N) // MIN_PAIRS_PER_BIN))
    by_confidence = sorted((sigmoid(abs(margin)), hit(margin)) for margin in margins_N)
    confidences = [confidence for confidence, _ in by_confidence]
    ends: list[int] = []
    for i_bin in range(1, num_bins + 1):
        end = round(i_bin * len(confidences) / num_bins)
        while 0 < end < len(confidences) and confidences[end] == confidences[end - 1]:
            end += 1
        if end > (ends[-1] if ends else 0):
            ends.append(end)
    starts = [0, *ends[:-1]]
    return [_bin(by_confidence[start:end]) for start, end in zip(starts, ends, strict=True)]


def _bin(pairs: Sequence[tuple[float, float]]) -> ReliabilityBin:
    return ReliabilityBin(
        low=pairs[0][0],
        high=pairs[-1][0],
        mean_predicted=math.fsum(confidence for confidence, _ in pairs) / len(pairs),
        share_right=math.fsum(is_right for _, is_right in pairs) / len(pairs),
        num_pairs=len(pairs),
    )


def expected_calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """ECE: the mean over pairs of |mean_predicted − share_right| of their bin; from 0 to 1.

    Naeini, Cooper and Hauskrecht (2015); with bins of equal mass, as Nguyen and O'Connor (2015) advise. With few pairs
    a bin it is above 0 for a perfectly calibrated model too, by chance.
    """
    num_pairs = sum(one.num_pairs for one in bins)
    assert num_pairs, "the calibration error of no pairs is undefined"
    return math.fsum(one.num_pairs * abs(one.mean_predicted - one.share_right) for one in bins) / num_pairs
