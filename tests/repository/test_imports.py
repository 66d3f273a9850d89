"""Imports point one way, and importing a package does nothing beyond it."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from tests.repository.source_tree import (
    PACKAGES,
    ROOT,
    files_in,
    imported_modules,
    imports_when_loaded,
    short,
    tree_of,
)


def run_python(program: str, folder: Path) -> str:
    """What a fresh interpreter, started in `folder`, prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if folder == ROOT:
        environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_directions(config: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter in a process of its own: in this one it would switch off every logger that exists."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", program, "--config", str(config), "--no-cache"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_packages_import_in_one_direction() -> None:
    done = check_directions(ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_check_of_directions_fails_when_they_are_reversed(tmp_path: Path) -> None:
    config = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = 'layers = ["recipe", "envs", "renderers", "mint"]'
    assert layers in config
    (tmp_path / "pyproject.toml").write_text(config.replace(layers, 'layers = ["mint", "renderers", "envs", "recipe"]'))
    done = check_directions(tmp_path / "pyproject.toml")
    assert done.returncode != 0 and "BROKEN" in done.stdout and "Imports point one way" in done.stdout, done.stderr


def test_nothing_imports_the_recipes() -> None:
    entry_points = {"recipes", "tests", "benchmarks"}
    found = [
        short(path, node)
        for folder in (*PACKAGES, "recipes", "benchmarks")
        for path in files_in(folder)
        for node in ast.walk(tree_of(path))
        # Measurements share their task.
        if {name.split(".")[0] for name in imported_modules(node)} & (entry_points - ({folder} & {"benchmarks"}))
    ]
    assert found == [], "recipes are entry points: move what is shared into the package recipe"


def test_the_engine_and_torch_wait_until_they_are_needed() -> None:
    maker = ROOT / "mint" / "builtin" / "make_model.py"  # run by hand to make the built-in model; nothing imports it
    found = [
        f"{short(path, node)} {name}"
        for path in files_in("mint")
        if path != maker and not path.is_relative_to(ROOT / "mint" / "engine")
        for node, name in imports_when_loaded(tree_of(path))
        if name.split(".")[0] in ("torch", "transformers", "peft") or name.startswith("mint.engine")
    ]
    assert found == [], "import it inside the function that needs it"


def test_the_library_of_stages_knows_no_concrete_task() -> None:
    # envs.rlhf is where a preference model's score becomes a reward; what is asked is still the caller's.
    # envs.data_rows reads files, envs.tournament and envs.judges compare replies to any prompt.
    allowed = {
        "envs", "envs.types", "envs.message_env", "envs.rlhf", "envs.data_rows", "envs.tournament", "envs.judges",
    }  # fmt: skip
    found = [
        f"{short(path, node)} {module}"
        for path in files_in("recipe")
        for node in ast.walk(tree_of(path))
        for module in imported_modules(node)[:1]
        if module.split(".")[0] == "envs" and module not in allowed
    ]
    assert found == [], "recipe takes any Env; a recipe or a config picks the task"


PURE_MODULES = (
    "mint/engine/losses.py",
    "recipe/schedules.py",
    "recipe/preference/calibration.py",
    "recipe/preference/dpo/losses.py",
    "recipe/preference/losses.py",
    "recipe/preference/objective.py",
    "recipe/rl/advantages.py",
    "recipe/rl/credit.py",
    "recipe/rl/datums.py",
    "recipe/rl/gspo.py",
    "recipe/rl/kl.py",
    "recipe/rl/kl_coefficient.py",
    "recipe/rl/kl_loss.py",
    "recipe/rl/metrics.py",
    "recipe/rl/reply_statistics.py",
    "recipe/rl/yardstick_alarm.py",
)
PURE_LIBRARIES = {
    "__future__", "chz", "collections", "dataclasses", "enum", "functools", "itertools", "math", "mint.errors",
    "mint.seeds", "mint.types", "numpy", "operator", "recipe.rl.types", "torch", "types", "typing",
}  # fmt: skip


def impurities(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """What a pure module has no use for: imports beyond arithmetic and data types, waiting, files, the console."""
    pure = PURE_LIBRARIES | {path.removesuffix(".py").replace("/", ".") for path in PURE_MODULES}
    found: list[tuple[ast.AST, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "mint":
            found += [(node, f"mint.{alias.name}") for alias in node.names if f"mint.{alias.name}" not in pure]
        else:
            modules = imported_modules(node)[: 1 if isinstance(node, ast.ImportFrom) else None]
            found += [(node, module) for module in modules if module not in pure and module.split(".")[0] not in pure]
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            found.append((node, "waits for something"))
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "print", "input")
        ):
            found.append((node, f"calls {node.func.id}()"))
    return found


@pytest.mark.parametrize("path", PURE_MODULES)
def test_arithmetic_modules_do_no_input_or_output(path: str) -> None:
    found = [f"{short(ROOT / path, node)} {what}" for node, what in impurities(tree_of(ROOT / path))]
    assert found == [], "keep clients, files and waiting out of the arithmetic, so that it can be tested alone"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import os", "os"),
        ("from pathlib import Path", "pathlib"),
        ("import mint", "mint"),
        ("from mint import ServiceClient", "mint.ServiceClient"),
        ("from recipe.rl.rollouts import collect", "recipe.rl.rollouts"),
        ("async def f(): ...", "waits for something"),
        ("print(1)", "calls print()"),
        ("from mint import types", ""),
        ("import numpy.linalg", ""),
        ("from recipe.rl.datums import FloatArray", ""),
    ],
)
def test_the_check_for_input_and_output_sees_it(line: str, what: str) -> None:
    assert [found for _, found in impurities(ast.parse(line))] == ([what] if what else [])


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_the_one_of_this_project(package: str) -> None:
    assert importlib.import_module(package).__file__ == str(ROOT / package / "__init__.py")


@pytest.fixture(scope="module")
def installed() -> None:
    """Skips unless this checkout is installed in the environment, as the README says."""
    try:
        origin = json.loads(distribution("mint-recipes").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        pytest.skip("mint-recipes is not installed here: pip install -c constraints.txt -e '.[dev]'")
    if origin.get("url") != ROOT.as_uri():
        pytest.skip(f"the mint-recipes installed here is {origin.get('url')}, not this checkout")


def test_an_installed_package_comes_from_this_project(installed: None, tmp_path: Path) -> None:
    program = f"import importlib.util as u; print(*[u.find_spec(p).origin for p in {PACKAGES!r}], sep='\\n')"
    assert run_python(program, tmp_path).split() == [str(ROOT / package / "__init__.py") for package in PACKAGES]


@pytest.mark.parametrize("folder", ["recipes", "tests", "benchmarks"])
def test_an_installation_offers_no_entry_points_for_import(installed: None, tmp_path: Path, folder: str) -> None:
    assert run_python(f"import importlib.util as u; print(u.find_spec({folder!r}))", tmp_path) == "None\n"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_of_code_is_a_package(package: str) -> None:
    bare = {path.parent for path in files_in(package) if not (path.parent / "__init__.py").exists()}
    assert bare == set(), "without __init__.py it is left out of import checks"


def test_importing_mint_loads_no_torch_and_changes_no_environment() -> None:
    program = (
        "import os, sys; before = dict(os.environ); import mint, mint.errors, mint.futures, mint.checkpoint_store;"
        "print(sorted({'torch', 'transformers', 'tinker', 'numpy'} & set(sys.modules)), dict(os.environ) == before)"
    )
    assert run_python(program, ROOT) == "[] True\n"


def test_importing_everything_changes_no_environment_and_starts_nothing() -> None:
    """Environment, working folder, threads and the torch settings that change numbers stay as they were."""
    program = (
        "import os, threading, torch, tinker, transformers\n"
        "state = lambda: (dict(os.environ), os.getcwd(), threading.active_count(), torch.get_num_threads(),\n"
        "    torch.get_default_dtype(), torch.initial_seed(), torch.are_deterministic_algorithms_enabled())\n"
        "before = state()\n"
        "import mint, mint.engine.engine, renderers, envs, recipe\n"
        "import recipe.supervised.train, recipe.preference.train, recipe.rl.train\n"
        "print(state() == before)"
    )
    assert run_python(program, ROOT) == "True\n"


def test_mint_recipe_is_the_package_recipe() -> None:
    assert run_python("import mint.recipe as one, recipe as other; print(one is other)", ROOT) == "True\n"
