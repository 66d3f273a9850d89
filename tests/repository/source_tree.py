"""What the rules of the repository are checked against: its Python files, as text and as syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mint", "renderers", "envs", "recipe")
CODE_FOLDERS = (*PACKAGES, "recipes", "benchmarks", "tests")


def files_in(*folders: str) -> list[Path]:
    """The Python files under these folders of the project, sorted; folders that do not exist hold none."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if "__pycache__" not in path.parts)


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def short(path: Path, node: ast.AST | None = None) -> str:
    """`folder/file.py` or `folder/file.py:line`, as an editor opens it."""
    name = path.relative_to(ROOT).as_posix()
    return f"{name}:{getattr(node, 'lineno', 1)}" if node is not None else name


def functions_in(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported_modules(node: ast.AST) -> list[str]:
    """The absolute names of the modules that an import statement names; none for other nodes."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def imports_when_loaded(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """Modules that importing the file imports: not those inside functions or under `if TYPE_CHECKING`."""
    found: list[tuple[ast.AST, str]] = []
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
            continue
        found.extend((node, name) for name in imported_modules(node))
        pending.extend(ast.iter_child_nodes(node))
    return found
