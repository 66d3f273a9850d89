"""Freed memory stays with the process on a CPU, in large pages.

glibc gives every block above 32 MiB back to the system when it is freed, and the next one comes as fresh pages of 4 KiB
that the kernel clears one by one: in a training step this can take as long as the arithmetic on them. PyTorch's tuning
guide advises another allocator for that reason; the C library's and PyTorch's own settings do the same without one.
"""

from __future__ import annotations

import ctypes
import os
import sys

# The names of malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let glibc reuse freed blocks of any size, and PyTorch ask for large pages. False where the C library is another.

    It concerns the whole process, so it is done once a model runs on the CPU. PyTorch looks at its variable when it
    makes its first tensor; where a program made one before, only the reuse is left. One arena, because those of other
    threads cannot hold blocks above 64 MiB.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _LARGEST), (_M_TRIM_THRESHOLD, _LARGEST), (_M_TOP_PAD, 2**26))
    return all([mallopt(name, value) == 1 for name, value in settings])
