"""Environments: what an episode is, and tasks to train on.

The protocol is imported with the package; tasks (RLHFDatasetBuilder, AdditionDatasetBuilder, ...) the first time they
are used, so that what needs only the protocol knows no task.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from envs.group_dataset import GroupDataset
from envs.message_env import EnvFromMessageEnv, MessageEnv, MessageEnvGroupBuilder, MessageStepResult
from envs.problem_env import ProblemEnv
from envs.types import (
    Action,
    ActionExtra,
    ConversationScorer,
    Env,
    EnvGroupBuilder,
    Logs,
    Metrics,
    Observation,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    TokensWithLogprobs,
    Trajectory,
    Transition,
)

if TYPE_CHECKING:
    from envs.arithmetic import AdditionDatasetBuilder, AdditionEnv
    from envs.math_env import MathDatasetBuilder, MathEnv
    from envs.rlhf import ListRLHFDatasetBuilder, PreferenceEnv, RLHFDataset, RLHFDatasetBuilder, RLHFEnvGroupBuilder

_TASK_MODULES = {
    "AdditionDatasetBuilder": "envs.arithmetic",
    "AdditionEnv": "envs.arithmetic",
    "ListRLHFDatasetBuilder": "envs.rlhf",
    "MathDatasetBuilder": "envs.math_env",
    "MathEnv": "envs.math_env",
    "PreferenceEnv": "envs.rlhf",
    "RLHFDataset": "envs.rlhf",
    "RLHFDatasetBuilder": "envs.rlhf",
    "RLHFEnvGroupBuilder": "envs.rlhf",
}

__all__ = [
    "Action",
    "ActionExtra",
    "AdditionDatasetBuilder",
    "AdditionEnv",
    "ConversationScorer",
    "Env",
    "EnvFromMessageEnv",
    "EnvGroupBuilder",
    "GroupDataset",
    "ListRLHFDatasetBuilder",
    "Logs",
    "MathDatasetBuilder",
    "MathEnv",
    "MessageEnv",
    "MessageEnvGroupBuilder",
    "MessageStepResult",
    "Metrics",
    "Observation",
    "PreferenceEnv",
    "ProblemEnv",
    "RLDataset",
    "RLDatasetBuilder",
    "RLHFDataset",
    "RLHFDatasetBuilder",
    "RLHFEnvGroupBuilder",
    "StepResult",
    "TokensWithLogprobs",
    "Trajectory",
    "Transition",
]


def __getattr__(name: str) -> Any:
    if name in _TASK_MODULES:
        return getattr(import_module(_TASK_MODULES[name]), name)
    raise AttributeError(f"module 'envs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
