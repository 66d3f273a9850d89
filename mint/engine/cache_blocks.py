"""Pieces of a tensor that stay in a processor's cache while several operations go over them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

BLOCK_NUMBERS = 2**18
"""Numbers of one block: a float32 copy is 1 MiB, about what a core caches for itself."""


def cache_blocks(x: Tensor) -> Iterator[slice]:
    """Slices of the first axis; on another device than a CPU, all of it at once."""
    size = max(1, len(x))
    if x.device.type == "cpu":
        size = max(1, BLOCK_NUMBERS * len(x) // max(x.numel(), 1))
    return (slice(start, start + size) for start in range(0, len(x), size))
