"""Sizes, names and habits that every file keeps. A rule bends only with an entry, and a reason, in its exceptions."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

from tests.repository.source_tree import CODE_FOLDERS, PACKAGES, files_in, functions_in, short, tree_of

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
LONG_FILES: dict[str, str] = {}  # path: reason
LONG_FUNCTIONS: dict[str, str] = {}  # "path function": reason

VAGUE_NAMES = {"utils", "common", "helpers", "misc", "base"}
SHARED_NAMES = {
    "train": "each stage's loop",
    "types": "each package's data types",
    "data": "each stage's data",
    "losses": "the API's losses in the engine, Bradley-Terry in the preference stage, DPO and its family beside it",
    "config": "each stage's settings, where they have a file of their own",
    "advice": "the demo task: its generator in mint.builtin, its environment in envs",
    "registry": "renderers by name; engines by options, private to mint.engine",
    "__init__": "packages",
    "__main__": "packages that run as a command",
}


def test_files_stay_short() -> None:
    lengths = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files_in(*CODE_FOLDERS)}
    assert len(lengths) > 50
    too_long = {path: n for path, n in lengths.items() if n > MAX_FILE_LINES and path not in LONG_FILES}
    assert too_long == {}, f"split these by what they do, at {MAX_FILE_LINES} lines at the latest"
    assert [path for path in LONG_FILES if lengths.get(path, 0) <= MAX_FILE_LINES] == [], "exceptions no longer needed"


def test_functions_stay_short() -> None:
    too_long: dict[str, int] = {}
    for path in files_in(*CODE_FOLDERS):
        for function in functions_in(tree_of(path)):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > MAX_FUNCTION_LINES and f"{short(path)} {function.name}" not in LONG_FUNCTIONS:
                too_long[f"{short(path, function)} {function.name}"] = length
    assert too_long == {}, f"a function stops at {MAX_FUNCTION_LINES} lines"


def test_file_names_are_nouns_that_can_be_searched_for() -> None:
    vague = [short(path) for path in files_in(*CODE_FOLDERS) if path.stem in VAGUE_NAMES]
    assert vague == [], "name the file after what is in it"
    homes: dict[str, list[str]] = defaultdict(list)
    for path in files_in(*PACKAGES):
        homes[path.stem].append(short(path))
    repeated = {stem: paths for stem, paths in homes.items() if len(paths) > 1 and stem not in SHARED_NAMES}
    assert repeated == {}, "a file name is unique across the packages"


def test_every_test_file_holds_tests_and_every_test_is_in_one() -> None:
    for path in files_in("tests"):
        names = [function.name for function in functions_in(tree_of(path)) if function.name.startswith("test_")]
        if path.stem.startswith("test_"):
            assert names, f"{short(path)}: pytest collects nothing here; add a test or rename the file"
        else:
            assert not names, f"{short(path)}: pytest never runs {names[0]}; call the file test_*.py"


def test_no_two_tests_of_a_file_share_a_name() -> None:
    for path in files_in("tests"):
        names = [node.name for node in tree_of(path).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        repeated = {name for name in names if names.count(name) > 1}
        assert not repeated, f"{short(path)}: the later {repeated} hides the earlier"


def swallowed_exceptions(tree: ast.Module) -> list[ast.ExceptHandler]:
    """Handlers whose whole body is `pass` or `...`."""

    def does_nothing(statement: ast.stmt) -> bool:
        is_ellipsis = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        return isinstance(statement, ast.Pass) or is_ellipsis

    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    return [handler for handler in handlers if all(does_nothing(statement) for statement in handler.body)]


def test_no_exception_is_swallowed() -> None:
    found = [short(path, node) for path in files_in(*CODE_FOLDERS) for node in swallowed_exceptions(tree_of(path))]
    assert found == [], "handle the error or let it through"


@pytest.mark.parametrize(
    ("body", "num_found"), [("pass", 1), ("...", 1), ("'ignored'", 1), ("raise", 0), ("x = 0", 0), ("print(1)", 0)]
)
def test_the_check_for_swallowed_exceptions_sees_them(body: str, num_found: int) -> None:
    tree = ast.parse(f"try:\n    f()\nexcept ValueError:\n    {body}\n")
    assert len(swallowed_exceptions(tree)) == num_found


def test_no_comment_puts_work_off() -> None:
    found: list[str] = []
    for path in files_in(*CODE_FOLDERS):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.COMMENT and re.search(r"\b(TODO|FIXME|XXX|HACK)\b", token.string):
                found.append(f"{short(path)}:{token.start[0]} {token.string}")
    assert found == [], "do it, or open an issue"


def axes_of(path: Path) -> set[str]:
    """The axis letters on the names of a file: {'T', 'B'} for `logprobs_BT`."""
    letters: set[str] = set()
    for node in ast.walk(tree_of(path)):
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
        match = re.fullmatch(r"[a-z][a-z0-9_]*_([A-Z]{1,4})", name)
        letters |= set(match.group(1)) if match else set()
    return letters


def test_files_that_put_axes_on_names_start_with_their_legend() -> None:
    missing: dict[str, set[str]] = {}
    for path in files_in(*PACKAGES):
        legend = ast.get_docstring(tree_of(path)) or ""
        undefined = {letter for letter in axes_of(path) if not re.search(rf"_[A-Z]*{letter}", legend)}
        if undefined:
            missing[short(path)] = undefined
    assert missing == {}, "say in the file's docstring what each axis letter stands for"


def test_public_things_have_docstrings() -> None:
    missing: list[str] = []
    for path in files_in(*PACKAGES):
        tree = tree_of(path)
        if not ast.get_docstring(tree) and path.stat().st_size:
            missing.append(short(path))
        for node in tree.body:
            is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if is_definition and not node.name.startswith("_") and not ast.get_docstring(node):
                missing.append(f"{short(path, node)} {node.name}")
    assert missing == [], "one line on what it is, then only what the signature cannot say"


def test_every_config_checks_its_types() -> None:
    unchecked = [
        f"{short(path, node)} {node.name}"
        for path in files_in(*PACKAGES, "recipes", "benchmarks")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        for decorator in map(ast.unparse, node.decorator_list)
        if decorator.startswith("chz.chz") and "typecheck=True" not in decorator
    ]
    assert unchecked == [], "write @chz.chz(typecheck=True): without it the constructor takes any type"
