"""Learning from preferences without a preference model: DPO and its family. `recipe.preference.dpo.train` is the stage.

Names are imported the first time they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipe.preference.dpo import config, labelled_replies, losses, train
    from recipe.preference.dpo.config import Config, LossConfig
    from recipe.preference.dpo.labelled_replies import (
        FileLabelledReplyDatasetBuilder,
        LabelledReply,
        LabelledReplyDatasetBuilder,
        ListLabelledReplyDatasetBuilder,
    )

_MODULES = ("config", "labelled_replies", "losses", "train")
_HOME_OF = {
    "Config": "config",
    "FileLabelledReplyDatasetBuilder": "labelled_replies",
    "LabelledReply": "labelled_replies",
    "LabelledReplyDatasetBuilder": "labelled_replies",
    "ListLabelledReplyDatasetBuilder": "labelled_replies",
    "LossConfig": "config",
}

__all__ = [
    "Config",
    "FileLabelledReplyDatasetBuilder",
    "LabelledReply",
    "LabelledReplyDatasetBuilder",
    "ListLabelledReplyDatasetBuilder",
    "LossConfig",
    "config",
    "labelled_replies",
    "losses",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"recipe.preference.dpo.{name}")
    if name in _HOME_OF:
        return getattr(import_module(f"recipe.preference.dpo.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'recipe.preference.dpo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
