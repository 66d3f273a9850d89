"""The library of stages: supervised fine-tuning, preference model, reinforcement learning.

Names are imported the first time they are used, so `import recipe` (or `import mint.recipe as recipe`) costs nothing:
recipe.supervised.train, recipe.preference, recipe.rl.train, recipe.renderers.get_renderer, recipe.MessageEnv, ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import renderers
    from envs.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
    from recipe import checkpoint_utils, completers, evaluators, preference, rl, supervised
    from recipe.model_info import get_recommended_renderer_name
    from recipe.tokenizer_utils import get_tokenizer

_MODULES = {
    "checkpoint_utils": "recipe.checkpoint_utils",
    "completers": "recipe.completers",
    "evaluators": "recipe.evaluators",
    "preference": "recipe.preference",
    "renderers": "renderers",
    "rl": "recipe.rl",
    "supervised": "recipe.supervised",
}
_HOME_OF = {
    "EnvFromMessageEnv": "envs.message_env",
    "MessageEnv": "envs.message_env",
    "MessageStepResult": "envs.message_env",
    "get_recommended_renderer_name": "recipe.model_info",
    "get_tokenizer": "recipe.tokenizer_utils",
}

__all__ = [
    "EnvFromMessageEnv",
    "MessageEnv",
    "MessageStepResult",
    "checkpoint_utils",
    "completers",
    "evaluators",
    "get_recommended_renderer_name",
    "get_tokenizer",
    "preference",
    "renderers",
    "rl",
    "supervised",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'recipe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
