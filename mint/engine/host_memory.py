"""Freed memory stays with the process on a CPU, and oneDNN keeps few of its programs.

glibc gives every block above 32 MiB back to the system when it is freed, and the next one comes as fresh pages that the
kernel clears one by one: in a training step of a small model this takes a good part of the time. PyTorch's tuning guide
advises another allocator for that reason; the C library's own settings do the same without one.

oneDNN compiles a program for every shape of a product, half a MiB each; it and PyTorch's binding to it keep 1,024 each.
Micro-batches seldom have a number of tokens that was there before, so all but the newest are kept in vain, and lie
between the freed blocks, which then do not fit the next ones.
"""

from __future__ import annotations

import ctypes
import os
import sys

# The names of malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_LARGEST = 2**31 - 1
_LARGE_MODELS_BLOCK = 2**22
_KEPT_PROGRAMS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": 256, "LRU_CACHE_CAPACITY": 128}
"""oneDNN's, and the binding's. A micro-batch of many short rows uses nearly as many in attention."""
_LARGE_MODELS_PROGRAMS = 64
"""Of each: they are larger, and compiling one takes less of the time."""


def keep_freed_memory(is_large_model: bool) -> bool:
    """Let glibc reuse freed blocks. False where the C library is another.

    It concerns the whole process, so it is done when a model is loaded for the CPU. Of a large model, blocks of 4 MiB
    and more go back all the same: clearing their pages is little beside the products, and what does not fit again
    would be a good part of the memory. One arena, because those of other threads cannot hold blocks above 64 MiB.
    oneDNN looks at its variable with the first product; where a program made one before, it keeps what it wants.
    """
    for name, capacity in _KEPT_PROGRAMS.items():
        os.environ.setdefault(name, str(_LARGE_MODELS_PROGRAMS if is_large_model else capacity))
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {
        _M_ARENA_MAX: 1,
        _M_MMAP_THRESHOLD: _LARGE_MODELS_BLOCK if is_large_model else _LARGEST,
        _M_TRIM_THRESHOLD: _LARGEST,
        _M_TOP_PAD: 2**26,
    }
    return all([mallopt(name, value) == 1 for name, value in settings.items()])
