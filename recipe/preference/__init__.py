"""The preference stage: pairs in, a scorer of replies out. `recipe.preference.train` is the stage itself.

Names are imported the first time they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipe.preference import data, ensemble, losses, objective, readouts, scorer, train, types
    from recipe.preference.data import FilePreferenceDatasetBuilder, ListPreferenceDatasetBuilder
    from recipe.preference.ensemble import EnsembleConfig
    from recipe.preference.objective import PairObjectiveConfig
    from recipe.preference.readouts import SequenceLogprob, Verdict, VerdictAndLikelihood
    from recipe.preference.scorer import EnsembleScorer, PreferenceScorer, ScorerSpec
    from recipe.preference.types import PreferenceDatasetBuilder, PreferencePair

_MODULES = ("data", "ensemble", "losses", "objective", "readouts", "scorer", "train", "types")
_HOME_OF = {
    "EnsembleConfig": "ensemble",
    "EnsembleScorer": "scorer",
    "FilePreferenceDatasetBuilder": "data",
    "ListPreferenceDatasetBuilder": "data",
    "PairObjectiveConfig": "objective",
    "PreferenceDatasetBuilder": "types",
    "PreferencePair": "types",
    "PreferenceScorer": "scorer",
    "ScorerSpec": "scorer",
    "SequenceLogprob": "readouts",
    "Verdict": "readouts",
    "VerdictAndLikelihood": "readouts",
}

__all__ = [
    "EnsembleConfig",
    "EnsembleScorer",
    "FilePreferenceDatasetBuilder",
    "ListPreferenceDatasetBuilder",
    "PairObjectiveConfig",
    "PreferenceDatasetBuilder",
    "PreferencePair",
    "PreferenceScorer",
    "ScorerSpec",
    "SequenceLogprob",
    "Verdict",
    "VerdictAndLikelihood",
    "data",
    "ensemble",
    "losses",
    "objective",
    "readouts",
    "scorer",
    "train",
    "types",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"recipe.preference.{name}")
    if name in _HOME_OF:
        return getattr(import_module(f"recipe.preference.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'recipe.preference' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
