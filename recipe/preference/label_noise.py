"""How many labels are likely to be wrong: what repeated labels say, and what a model of words says.

Both speak of labels that are wrong by chance. A preference that all annotators share, for length say, is no noise here,
however wrong it may be: no data of this kind can tell it from what is good.

Axes: _N preference pair.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipe.preference.clustered_share import ShareEstimate, clustered_share
from recipe.preference.losses import wilson_interval
from recipe.preference.pair_findings import NumberedPair
from recipe.preference.types import PreferencePair
from recipe.preference.word_model import NUM_FOLDS, cross_fitted_margins, word_differences
from renderers import get_text

MIN_PAIRS_FOR_MODEL = 100
"""With fewer pairs a model of words learns too little to say anything about them."""

MAX_PAIRS_FOR_MODEL = 10_000
"""Of more pairs the model of words sees those of as many prompts as have about so many: enough for a share."""

CONFIDENT_SHARE = 0.1
"""The pairs of which the model is surest, as a share of all."""

_NUM_SUSPICIOUS = 20


@dataclass(frozen=True)
class RepeatedLabels:
    """What labels of the same two replies say about each other.

    disagreement: probability that two labels of the same replies differ. noise: the share of wrong labels that makes
    two independent ones differ so often, 2ε(1 − ε) = disagreement, with its 95 % interval. Copies of a row count as
    agreement, so a file that repeats rows has more noise than this. None where no replies have two labels.
    """

    num_reply_pairs: int
    num_labels: int
    disagreement: float | None
    noise: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class SuspiciousPair:
    """A pair whose label the model finds unlikely; `label_probability` is what it gives the label."""

    position: int
    label_probability: float


@dataclass(frozen=True)
class WordModelNoise:
    """What a cross-fitted model of words says about the labels of `num_pairs` pairs.

    accuracy: share of labels that it predicts. confident_error: share of labels that contradict it among the tenth of
    the pairs of which it is surest. Where labels are wrong at random, whatever the pair, that is at least the share of
    wrong labels: a pair contradicts the model when either is wrong and the other is not, so the error is
    ε + m(1 − 2ε) >= ε with m the model's own errors, which are fewest there. suspicious: likeliest wrong, worst first.
    """

    num_pairs: int
    accuracy: ShareEstimate
    confident_error: ShareEstimate
    suspicious: list[SuspiciousPair]


def repeated_labels(pairs_N: Sequence[NumberedPair]) -> RepeatedLabels:
    """The agreement of labels on equal replies to equal prompts; ties are left out."""
    votes: dict[tuple[int, int, int], Counter[int]] = defaultdict(Counter)
    for pair in pairs_N:
        if not pair.is_tie and pair.chosen != pair.rejected:
            votes[pair.replies][pair.chosen] += 1
    counts = [list(of_replies.values()) for of_replies in votes.values() if of_replies.total() > 1]
    if not counts:
        return RepeatedLabels(0, 0, None, None, None, None)
    num_comparisons = sum(math.comb(sum(sides), 2) for sides in counts)
    num_different = sum(math.prod(sides) for sides in counts if len(sides) == 2)
    disagreement = num_different / num_comparisons
    low, high = wilson_interval(disagreement, len(counts))
    return RepeatedLabels(
        num_reply_pairs=len(counts),
        num_labels=sum(sum(sides) for sides in counts),
        disagreement=disagreement,
        noise=_noise_of(disagreement),
        low=_noise_of(low),
        high=_noise_of(high),
    )


def word_model_noise(
    pairs_N: Sequence[PreferencePair], numbered_N: Sequence[NumberedPair], seed: int = 0
) -> WordModelNoise | None:
    """Fit, judge and sum up. None for fewer than MIN_PAIRS_FOR_MODEL preferences, or all of one prompt; ties stay out.

    The prompt numbers in `numbered_N` decide which pairs are judged together: nearly equal prompts should share one.
    """
    positions = [i for i, pair in enumerate(numbered_N) if not pair.is_tie and pair.chosen != pair.rejected]
    prompts = list(dict.fromkeys(numbered_N[i].prompt for i in positions))
    if len(positions) < MIN_PAIRS_FOR_MODEL or len(prompts) < 2:
        return None
    random.Random(seed).shuffle(prompts)
    num_prompts = max(math.ceil(len(prompts) * min(1.0, MAX_PAIRS_FOR_MODEL / len(positions))), 2)
    fold_of = {prompt: i_prompt % NUM_FOLDS for i_prompt, prompt in enumerate(prompts[:num_prompts])}
    positions = [i for i in positions if numbered_N[i].prompt in fold_of]
    differences = word_differences(
        [
            (numbered_N[i].chosen, get_text(pairs_N[i].chosen), numbered_N[i].rejected, get_text(pairs_N[i].rejected))
            for i in positions
        ]
    )
    margins_N = cross_fitted_margins(differences, np.array([fold_of[numbered_N[i].prompt] for i in positions]))
    hits_N = (np.sign(margins_N) + 1) / 2
    prompts_N = [numbered_N[i].prompt for i in positions]
    surest = np.argsort(-np.abs(margins_N), kind="stable")[: math.ceil(CONFIDENT_SHARE * len(positions))].tolist()
    worst = [i for i in np.argsort(margins_N, kind="stable")[:_NUM_SUSPICIOUS].tolist() if margins_N[i] < 0]
    return WordModelNoise(
        num_pairs=len(positions),
        accuracy=clustered_share(hits_N.tolist(), prompts_N),
        confident_error=clustered_share([1 - float(hits_N[i]) for i in surest], [prompts_N[i] for i in surest]),
        suspicious=[SuspiciousPair(positions[i], 1 / (1 + math.exp(-margins_N[i]))) for i in worst],
    )


def _noise_of(disagreement: float) -> float:
    """The solution ε <= 1/2 of 2ε(1 − ε) = disagreement; 1/2 where labels differ more often than by chance."""
    return (1 - math.sqrt(max(1 - 2 * disagreement, 0.0))) / 2
