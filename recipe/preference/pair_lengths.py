"""How long the replies of pairs are, in characters and in tokens, and how length goes with preference.

Axes: _N preference pair.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from recipe.preference.clustered_share import ShareEstimate, clustered_share
from recipe.preference.length_balance import length_balanced
from recipe.preference.readouts import Readout
from recipe.preference.types import PreferencePair
from renderers import Renderer, get_text

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class LengthSkew:
    """How the length of replies goes with the preference, in characters; ties are left out.

    longer_is_chosen: what "the longer reply is better" gets right, replies of equal length counting half.
    difference: quantiles (QUANTILES) of the chosen reply's length less the rejected one's. num_balanced: pairs that
    are left when each pair whose longer reply is chosen needs a counterpart (`length_balance`).
    """

    longer_is_chosen: ShareEstimate
    num_equally_long: int
    median_chosen: float
    median_rejected: float
    difference: dict[str, float]
    num_balanced: int


@dataclass(frozen=True)
class TokenLengths:
    """Tokens of the longer reply of each pair as training renders it, prompt and judge's question included.

    too_long_lines: pairs beyond the limit. Training refuses them or leaves them out; it cuts nothing.
    """

    model: str
    renderer: str
    readout: str
    limit: int
    longest: int
    quantiles: dict[str, float]
    too_long_lines: list[int]


def length_difference(pair: PreferencePair) -> int:
    """Characters of the chosen reply less those of the rejected one."""
    return len(get_text(pair.chosen)) - len(get_text(pair.rejected))


def length_skew(pairs_N: Sequence[PreferencePair], prompts_N: Sequence[Hashable]) -> LengthSkew | None:
    """Lengths of the preferred reply against the other; None where all pairs are ties.

    prompts_N: equal for pairs of one prompt, whose lengths are alike.
    """
    preferences = [i for i, pair in enumerate(pairs_N) if not pair.is_tie]
    if not preferences:
        return None
    differences = [length_difference(pairs_N[i]) for i in preferences]
    return LengthSkew(
        longer_is_chosen=clustered_share(
            [longer_wins(difference) for difference in differences], [prompts_N[i] for i in preferences]
        ),
        num_equally_long=differences.count(0),
        median_chosen=statistics.median(len(get_text(pairs_N[i].chosen)) for i in preferences),
        median_rejected=statistics.median(len(get_text(pairs_N[i].rejected)) for i in preferences),
        difference=_quantiles(differences),
        num_balanced=len(length_balanced(differences, [""] * len(differences))),
    )


def longer_wins(difference: int) -> float:
    """1 where the longer reply is the chosen one, 0 where it is not, one half where both are as long."""
    return 0.5 if difference == 0 else float(difference > 0)


def token_lengths(
    pairs_N: Sequence[PreferencePair],
    lines_N: Sequence[int],
    readout: Readout,
    renderer: Renderer,
    *,
    model: str,
    limit: int,
) -> TokenLengths:
    """Render every pair with the readout, as training does, and count. lines_N: how the pairs are named."""
    longest_N = [
        max(
            len(readout.render(conversation, renderer).tokens)
            for conversation in (pair.chosen_conversation, pair.rejected_conversation)
        )
        for pair in pairs_N
    ]
    return TokenLengths(
        model=model,
        renderer=renderer.name,
        readout=readout.name,
        limit=limit,
        longest=max(longest_N),
        quantiles=_quantiles(longest_N),
        too_long_lines=[line for line, length in zip(lines_N, longest_N, strict=True) if length > limit],
    )


def _quantiles(values: Sequence[int]) -> dict[str, float]:
    return {f"{quantile:g}": float(np.quantile(values, quantile)) for quantile in QUANTILES}
