"""Files in the format of RewardBench: pairs with a subset each, and the averages that its table shows.

Lambert et al. (2024), "RewardBench: Evaluating Reward Models for Language Modeling".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mint.errors import InvalidRequest
from recipe.preference.data import PairColumns, read_pairs
from recipe.preference.types import PreferencePair

SUBSET_COLUMN = "subset"

SECTIONS: dict[str, tuple[str, ...]] = {
    "Chat": ("alpacaeval-easy", "alpacaeval-length", "alpacaeval-hard", "mt-bench-easy", "mt-bench-med"),
    "Chat Hard": (
        "mt-bench-hard", "llmbar-natural", "llmbar-adver-neighbor", "llmbar-adver-GPTInst", "llmbar-adver-GPTOut",
        "llmbar-adver-manual",
    ),
    "Safety": (
        "refusals-dangerous", "refusals-offensive", "xstest-should-refuse", "xstest-should-respond", "donotanswer",
    ),
    "Reasoning": ("math-prm", "hep-cpp", "hep-go", "hep-java", "hep-js", "hep-python", "hep-rust"),
}  # fmt: skip
_MATH, _CODE_PREFIX = "math-prm", "hep-"


def read_rewardbench(path: str | Path, max_rows: int | None = None) -> list[PreferencePair]:
    """The pairs of a .jsonl or .parquet file with the columns prompt, chosen, rejected and subset; `source` is the
    subset. InvalidRequest names the first row that has none, or is no pair."""
    pairs = read_pairs(path, PairColumns(source=SUBSET_COLUMN), max_rows=max_rows)
    for pair in pairs:
        if not pair.source:
            raise InvalidRequest(
                f"{pair.origin}: no value in column {SUBSET_COLUMN!r}: a file in RewardBench's format names the subset "
                "of each pair; for other files use --pairs"
            )
    return pairs


def section_averages(by_subset: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """RewardBench's sections, as far as the file has their subsets, and "average", the mean of these sections.

    by_subset: subset -> {"value": accuracy, "num_pairs": n}. Within a section each pair counts the same, except that
    math-prm counts as much as all code subsets together. RewardBench's older test sets are not part of the average.
    """
    sections: dict[str, float] = {}
    for section, subsets in SECTIONS.items():
        weights = {subset: float(by_subset[subset]["num_pairs"]) for subset in subsets if subset in by_subset}
        code = math.fsum(weight for subset, weight in weights.items() if subset.startswith(_CODE_PREFIX))
        if _MATH in weights and code:
            weights[_MATH] = code
        total = math.fsum(weights.values())
        if total:
            sections[section] = (
                math.fsum(weight * by_subset[subset]["value"] for subset, weight in weights.items()) / total
            )
    if sections:
        sections["average"] = math.fsum(sections.values()) / len(sections)
    return sections
