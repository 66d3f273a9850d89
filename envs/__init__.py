"""Environments: what an episode is, and tasks to train on.

Names are imported the first time they are used, so `import envs` costs nothing, and what needs only the protocol knows
no task.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.arithmetic import AdditionDatasetBuilder, AdditionEnv
    from envs.group_dataset import GroupDataset
    from envs.math_env import MathDatasetBuilder, MathEnv
    from envs.message_env import EnvFromMessageEnv, MessageEnv, MessageEnvGroupBuilder, MessageStepResult
    from envs.problem_env import ProblemEnv
    from envs.rlhf import ListRLHFDatasetBuilder, PreferenceEnv, RLHFDataset, RLHFDatasetBuilder, RLHFEnvGroupBuilder
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

_HOME_OF = {
    "Action": "envs.types",
    "ActionExtra": "envs.types",
    "AdditionDatasetBuilder": "envs.arithmetic",
    "AdditionEnv": "envs.arithmetic",
    "ConversationScorer": "envs.types",
    "Env": "envs.types",
    "EnvFromMessageEnv": "envs.message_env",
    "EnvGroupBuilder": "envs.types",
    "GroupDataset": "envs.group_dataset",
    "ListRLHFDatasetBuilder": "envs.rlhf",
    "Logs": "envs.types",
    "MathDatasetBuilder": "envs.math_env",
    "MathEnv": "envs.math_env",
    "MessageEnv": "envs.message_env",
    "MessageEnvGroupBuilder": "envs.message_env",
    "MessageStepResult": "envs.message_env",
    "Metrics": "envs.types",
    "Observation": "envs.types",
    "PreferenceEnv": "envs.rlhf",
    "ProblemEnv": "envs.problem_env",
    "RLDataset": "envs.types",
    "RLDatasetBuilder": "envs.types",
    "RLHFDataset": "envs.rlhf",
    "RLHFDatasetBuilder": "envs.rlhf",
    "RLHFEnvGroupBuilder": "envs.rlhf",
    "StepResult": "envs.types",
    "TokensWithLogprobs": "envs.types",
    "Trajectory": "envs.types",
    "Transition": "envs.types",
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
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'envs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
