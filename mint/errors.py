"""What can go wrong, as exceptions. tinker's own error classes are importable from here too (loaded on first use)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class MintError(Exception):
    """Base of every error raised by this project on purpose."""


class InvalidRequest(MintError, ValueError):
    """Something the caller gave breaks a rule; the message names the value, the rule and the fix."""


class NotFound(MintError, ValueError):
    """A model, checkpoint, training run or name that does not exist."""


class CheckpointError(MintError, ValueError):
    """A checkpoint that is incomplete, damaged, or belongs to another model or LoRA shape."""


class StorageError(MintError, OSError):
    """A file or folder that cannot be written: full disk, read-only or vanished folder. What was saved before stays."""


class NonFiniteError(MintError, ArithmeticError):
    """A loss or gradient is NaN or infinite; nothing was updated."""


def nearest_name(name: str, known: Iterable[str]) -> str:
    """' Did you mean X?' for the closest known name, or '' when none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    import tinker

    value = getattr(tinker, name, None)
    if isinstance(value, type) and issubclass(value, Exception):
        return value
    raise AttributeError(f"module 'mint.errors' has no attribute {name!r}")
