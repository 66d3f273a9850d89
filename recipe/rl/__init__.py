"""Reinforcement learning: `train.main`, the short way in (`rl_core.run_grpo`), and the parts of the loop."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipe.rl import advantages, datums, kl, metrics, rl_core, rollouts, train, types

_MODULES = ("advantages", "datums", "kl", "metrics", "rl_core", "rollouts", "train", "types")

__all__ = ["advantages", "datums", "kl", "metrics", "rl_core", "rollouts", "train", "types"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"recipe.rl.{name}")
    raise AttributeError(f"module 'recipe.rl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
