"""Recipes are scripts, so a test loads one by its file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def load_recipe(name: str) -> ModuleType:
    """The script recipes/<name>.py as a module."""
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # chz looks a class's module up by name
    spec.loader.exec_module(module)
    return module
