"""Commands that other packages add to `mint`: found by entry points, loaded when used, broken one at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = '''
"""A package with commands."""
print("greetings is imported")


def command(parser):
    parser.description = "say hello, 100 % of the time\\nat length"
    parser.add_argument("name")
    parser.add_argument("--code", type=int)
    parser.set_defaults(run=run)


def run(options):
    from mint.errors import NotFound

    print(f"hello {options.name}, home {options.home}")
    if options.name == "nobody":
        raise NotFound("nobody is here")
    if options.name == "stop":
        raise KeyboardInterrupt
    return options.code
'''
ENTRIES = """
[mint.commands]
hello = greetings:command
greet.say.hello = greetings:command
greet.check = greetings:command
broken = greetings:missing
gone = no_such_module:command
twice = greetings:command
runs = greetings:command
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder to import from, with a package that adds commands, as an installer would write it."""
    (tmp_path / "greetings.py").write_text(MODULE, encoding="utf-8")
    for name, entries in (("greetings", ENTRIES), ("rival", "[mint.commands]\ntwice = greetings:run\n")):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (folder / "entry_points.txt").write_text(entries, encoding="utf-8")
    return tmp_path


def mint(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(packages), "MINT_HOME": str(packages / "storage"), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "mint.cli", *arguments],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("words", [["hello"], ["greet", "check"], ["greet", "say", "hello"]])
def test_a_command_gets_its_arguments_and_its_exit_code_counts(packages: Path, words: list[str]) -> None:
    done = mint(packages, "--home", "there", *words, "you", "--code", "3")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == "greetings is imported\nhello you, home there\n"
    assert mint(packages, *words, "you").returncode == 0


def test_errors_of_a_command_are_one_line(packages: Path) -> None:
    done = mint(packages, "hello", "nobody")
    assert (done.returncode, done.stderr) == (1, "mint: nobody is here\n")
    wrong = mint(packages, "greet", "check", "you", "--cod", "x")
    assert wrong.returncode == 2 and "usage: mint greet check" in wrong.stderr
    stopped = mint(packages, "hello", "stop")
    assert (stopped.returncode, stopped.stderr) == (130, "mint: interrupted\n")


def test_other_commands_import_no_plugin_and_keep_their_names(packages: Path) -> None:
    done = mint(packages, "runs")
    assert (done.returncode, done.stdout) == (0, f"no training runs in {packages}/storage/runs\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "`mint broken` cannot be loaded from greetings:missing (AttributeError: module 'greetings' has no"),
        (
            "gone",
            "cannot be loaded from no_such_module:command (ModuleNotFoundError: No module named 'no_such_module')",
        ),
        ("twice", "`mint twice` is two commands, greetings:command and greetings:run: uninstall one of the packages"),
    ],
)
def test_a_broken_command_is_one_line_and_breaks_nothing_else(packages: Path, name: str, message: str) -> None:
    done = mint(packages, name, "x")
    assert done.returncode == 1 and done.stderr.startswith("mint: ") and done.stderr.count("\n") == 1
    assert message in done.stderr
    if name != "twice":
        assert "install the package greetings again, or remove it" in done.stderr


def test_help_shows_one_line_of_each_command_and_names_the_broken(packages: Path) -> None:
    done = mint(packages, "--help")
    assert done.returncode == 0
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "hello      say hello, 100 % of the time" in lines
    assert "greet      see `mint greet --help`" in lines
    assert any(line.startswith("gone       `mint gone` cannot be loaded") for line in lines)
    group = mint(packages, "greet", "--help")
    assert group.returncode == 0 and "check     say hello, 100 % of the time" in group.stdout
    own = mint(packages, "greet", "say", "hello", "--help")
    assert own.returncode == 0 and "usage: mint greet say hello [-h] [--code CODE] name" in own.stdout


def test_the_projects_own_commands_load_without_torch() -> None:
    program = (
        "import argparse, sys; from importlib.metadata import entry_points;"
        "own = [e for e in entry_points(group='mint.commands') if e.dist.name == 'mint-recipes'];"
        "[e.load()(argparse.ArgumentParser()) for e in own];"
        "print(sorted(e.name for e in own), {'torch', 'tinker', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "doctor" in done.stdout and done.stdout.endswith(" set()\n")
