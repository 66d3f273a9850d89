"""The names that MinT's scripts use, each in a fresh interpreter where nothing was imported before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import recipe

ROOT = Path(__file__).resolve().parents[2]

# name -> the module it is, or is defined in
NAMES = {
    "supervised.train": "recipe.supervised.train",
    "supervised.types": "recipe.supervised.types",
    "supervised.conversation_to_datum": "recipe.supervised.data",
    "rl.train": "recipe.rl.train",
    "rl.types": "recipe.rl.types",
    "renderers.get_renderer": "renderers.registry",
    "MessageEnv": "envs.message_env",
    "MessageStepResult": "envs.message_env",
    "EnvFromMessageEnv": "envs.message_env",
    "get_tokenizer": "recipe.tokenizer_utils",
    "get_recommended_renderer_name": "recipe.model_info",
    "completers": "recipe.completers",
    "preference": "recipe.preference",
    "checkpoint_utils": "recipe.checkpoint_utils",
}


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_name_is_there_without_an_import_before_it() -> None:
    # One interpreter for all, as each takes seconds; every recipe module is forgotten between two names.
    code = f"""
import importlib, sys
for name, home in {NAMES!r}.items():
    for module in [m for m in sys.modules if m.split(".")[0] == "recipe" or m == "mint.recipe"]:
        del sys.modules[module]
    importlib.import_module("mint").__dict__.pop("recipe", None)
    import mint.recipe as recipe
    found = recipe
    for part in name.split("."):
        found = getattr(found, part)
    origin = getattr(found, "__module__", None) or found.__name__
    assert origin == home, (name, origin)
    print(name)
"""
    assert run_python(code).split() == list(NAMES)


def test_importing_the_package_loads_no_stage_and_no_torch() -> None:
    code = "import recipe, sys; print([m for m in sys.modules if m in ('torch', 'tinker', 'chz') or 'recipe.' in m])"
    assert run_python(code).strip() == "[]"


def test_every_listed_name_can_be_had() -> None:
    assert all(getattr(recipe, name) is not None for name in recipe.__all__)
    assert all(getattr(recipe.supervised, name) is not None for name in recipe.supervised.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'recipe' has no attribute 'nothing'"):
        recipe.nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
