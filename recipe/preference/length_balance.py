"""Pairs among which length says nothing: each pair whose longer reply is the chosen one has a counterpart.

Pure functions. Axes: _N preference pair.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_LENGTH_RATIO = 1.25
"""Two length differences match where neither is larger than the other by more than this factor."""


def length_balanced(
    length_differences_N: Sequence[int], keys_N: Sequence[str], max_ratio: float = MAX_LENGTH_RATIO
) -> list[int]:
    """Positions, in order, of as many pairs as can be matched on length difference.

    length_differences_N: length of the chosen reply less that of the rejected one. keys_N: decide between pairs with
    the same difference, so that the choice does not depend on the order of the pairs.

    Each pair whose chosen reply is longer by d is matched with one whose chosen reply is shorter by d' with
    1/max_ratio <= d/d' <= max_ratio; the others are left out. Pairs of equal length stay. On what is returned, "the
    longer reply is better" is right exactly half the time, and so is any guess from the sign of the difference.
    """
    assert max_ratio >= 1.0, f"max_ratio={max_ratio}: a ratio of the larger to the smaller is at least 1"
    positions_N = range(len(length_differences_N))
    by_size = sorted(positions_N, key=lambda i: (abs(length_differences_N[i]), keys_N[i]))
    longer = [i for i in by_size if length_differences_N[i] > 0]
    shorter = [i for i in by_size if length_differences_N[i] < 0]
    kept = [i for i in positions_N if length_differences_N[i] == 0]
    i_longer = i_shorter = 0
    # Smallest first: a difference that is too small for the smallest one left on the other side fits none there.
    while i_longer < len(longer) and i_shorter < len(shorter):
        longer_by = length_differences_N[longer[i_longer]]
        shorter_by = -length_differences_N[shorter[i_shorter]]
        if longer_by > max_ratio * shorter_by:
            i_shorter += 1
        elif shorter_by > max_ratio * longer_by:
            i_longer += 1
        else:
            kept += [longer[i_longer], shorter[i_shorter]]
            i_longer, i_shorter = i_longer + 1, i_shorter + 1
    return sorted(kept)
