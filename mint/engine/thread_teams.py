"""A thread that hands work to the engine lets go of its OpenMP threads.

PyTorch's wheels for Linux divide an operation among the threads of GNU OpenMP, and every thread that calls PyTorch gets
a team of its own, which stays. A team that has nothing to do spins for a few milliseconds before it sleeps, so that the
next operation, microseconds later, finds it awake; but no longer once all teams together have more threads than there
are processors. Then every operation wakes its threads anew. One large tensor operation in the caller's thread is enough
to make the engine half as fast on a small model, for as long as the process lives.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

_OMP_PAUSE_SOFT = 1
"""From omp.h: threads go, settings stay."""


def release_team() -> None:
    """Let the calling thread's team go, if it has one; its next large operation makes a new one.

    Does nothing where PyTorch's OpenMP is another than GNU's.
    """
    for pause in _omp_pauses():
        pause(_OMP_PAUSE_SOFT)


@cache
def _omp_pauses() -> list[Callable[[int], int]]:
    """omp_pause_resource_all (OpenMP 5.0, section 3.2.44) of each GNU OpenMP that is loaded with PyTorch."""
    if not sys.platform.startswith("linux") or not torch.backends.openmp.is_available():
        return []
    mapped = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    paths = [path for path in sorted(mapped) if Path(path).name.startswith("libgomp") and Path(path).exists()]
    pauses = [getattr(ctypes.CDLL(path), "omp_pause_resource_all", None) for path in paths]
    return [pause for pause in pauses if pause is not None]
