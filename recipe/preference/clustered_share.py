"""The share of pairs that are ordered rightly, with an interval that knows that pairs of one prompt are alike.

Pure functions. Axes: _N preference pair.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from recipe.preference.losses import wilson_interval

MIN_PROMPTS_TO_MEASURE_CLUSTERING = 20
"""With fewer prompts, how alike the pairs of one prompt are cannot be measured, and each prompt is one trial."""


@dataclass(frozen=True)
class ShareEstimate:
    """A share of `num_pairs` pairs and its 95 % interval; all three are None where there are no pairs."""

    value: float | None
    low: float | None
    high: float | None
    num_pairs: int


def clustered_share(hits_N: Sequence[float], prompts_N: Sequence[Hashable]) -> ShareEstimate:
    """The mean of `hits_N` (1 right, 0 wrong, 0.5 undecided) and its 95 % interval, whatever the order of the pairs.

    Wilson's interval, on the number of independent pairs that would tell as much as these (`effective_num_pairs`).
    Where each prompt has one pair that is the plain Wilson interval.
    """
    if not hits_N:
        return ShareEstimate(None, None, None, 0)
    value = math.fsum(hits_N) / len(hits_N)
    low, high = wilson_interval(value, effective_num_pairs(hits_N, prompts_N))
    return ShareEstimate(value, low, high, len(hits_N))


def effective_num_pairs(hits_N: Sequence[float], prompts_N: Sequence[Hashable]) -> float:
    """N divided by the design effect: the variance of the mean with pairs of one prompt taken together, over the
    variance p(1 − p)/(N − 1) of as many independent pairs.

    Rao and Scott (1992), "A simple method for the analysis of clustered binary data". Never above N. It is the number
    of prompts where the design effect cannot be measured: below MIN_PROMPTS_TO_MEASURE_CLUSTERING, and where all pairs
    are right or all are wrong.
    """
    num_pairs = len(hits_N)
    share = math.fsum(hits_N) / num_pairs
    residuals: dict[Hashable, list[float]] = defaultdict(list)
    for hit, prompt in zip(hits_N, prompts_N, strict=True):
        residuals[prompt].append(hit - share)
    num_prompts = len(residuals)
    if num_prompts < MIN_PROMPTS_TO_MEASURE_CLUSTERING or share in (0.0, 1.0):
        return num_prompts
    between = math.fsum(math.fsum(of_prompt) ** 2 for of_prompt in residuals.values())
    clustered_variance = num_prompts / (num_prompts - 1) * between / num_pairs**2
    design_effect = clustered_variance / (share * (1 - share) / (num_pairs - 1))
    return num_pairs / max(design_effect, 1.0)
