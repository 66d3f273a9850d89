"""The settings that users can name on a command line, one line each; recorded in tests/golden/config_fields.txt by

    python -m tests.repository.config_fields

so that a new, renamed or dropped setting, or another default, shows in the review of a change.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import chz
from chz.util import MISSING

from tests.repository.source_tree import ROOT, files_in

GOLDEN = ROOT / "tests" / "golden" / "config_fields.txt"


def config_classes() -> dict[str, type[Any]]:
    """All chz classes of the packages, by `module.Class`."""
    found: dict[str, type[Any]] = {}
    for path in files_in("renderers", "envs", "recipe"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        for name, value in vars(module).items():
            if inspect.isclass(value) and chz.is_chz(value) and value.__module__ == module.__name__:
                found[f"{module.__name__}.{name}"] = value
    return dict(sorted(found.items()))


def config_fields() -> str:
    """`module.Class.field: type = default`, a line for each field, sorted by class."""
    lines: list[str] = []
    for name, cls in config_classes().items():
        for field in chz.chz_fields(cls).values():
            line = f"{name}.{field.logical_name}: {_name_of(field.x_type)}"
            if field._default_factory is not MISSING:
                line += f" = {_name_of(field._default_factory)}()"
            elif field._default is not MISSING:
                line += f" = {_name_of(field._default) if callable(field._default) else repr(field._default)}"
            lines.append(line)
    return "\n".join(lines) + "\n"


def _name_of(value: Any) -> str:
    """A class or function by its full name, another type as it is written."""
    if not inspect.isclass(value) and not inspect.isroutine(value):
        return str(value).replace("typing.", "")
    return value.__qualname__ if value.__module__ == "builtins" else f"{value.__module__}.{value.__qualname__}"


if __name__ == "__main__":
    GOLDEN.write_text(config_fields(), encoding="utf-8")
    print(f"recorded {len(config_fields().splitlines())} settings in {GOLDEN.relative_to(ROOT)}")
