"""The command line of one side of a row: one variant in this process."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.speed.measure import Measured
from benchmarks.speed.workloads import SIZES, Sizes

Run = Callable[[str, Path, Path, str, Sizes, int, int], Measured]
"""(kind, model folder, data folder, variant, sizes, steps, warm-up steps) -> Measured."""


def print_one(description: str | None, kinds: Iterable[str], variants: Iterable[str], run: Run) -> None:
    """Measure what the command line asks for and print it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(kinds))
    parser.add_argument("model_folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("variant", choices=list(variants))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    options = parser.parse_args()
    sizes = SIZES[options.model_folder.name]
    run(options.kind, options.model_folder, options.data, options.variant, sizes, options.steps, options.warmup).print()
