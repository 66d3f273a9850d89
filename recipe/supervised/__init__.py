"""Supervised fine-tuning: `train.Config`, `train.main`, datasets, and conversations as datums."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipe.supervised import data, nll, train, types
    from recipe.supervised.data import (
        FileSFTDatasetBuilder,
        ListSFTDatasetBuilder,
        conversation_to_datum,
        datum_from_model_input_weights,
    )
    from recipe.supervised.types import SupervisedDataset, SupervisedDatasetBuilder

_MODULES = ("data", "nll", "train", "types")
_HOME_OF = {
    "FileSFTDatasetBuilder": "recipe.supervised.data",
    "ListSFTDatasetBuilder": "recipe.supervised.data",
    "SupervisedDataset": "recipe.supervised.types",
    "SupervisedDatasetBuilder": "recipe.supervised.types",
    "conversation_to_datum": "recipe.supervised.data",
    "datum_from_model_input_weights": "recipe.supervised.data",
}

__all__ = [
    "FileSFTDatasetBuilder",
    "ListSFTDatasetBuilder",
    "SupervisedDataset",
    "SupervisedDatasetBuilder",
    "conversation_to_datum",
    "data",
    "datum_from_model_input_weights",
    "nll",
    "train",
    "types",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"recipe.supervised.{name}")
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'recipe.supervised' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
