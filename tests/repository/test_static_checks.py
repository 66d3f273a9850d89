"""Ruff and pyright, as everyone runs them: `ruff format`, `ruff check`, `pyright` in the project's folder."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.repository.source_tree import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of this environment in the project's folder."""
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600)


def test_ruff_finds_nothing() -> None:
    done = run("ruff", "check", "--no-cache", "--output-format", "concise", ".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_would_format_nothing() -> None:
    done = run("ruff", "format", "--no-cache", "--check", ".")
    assert done.returncode == 0, "run `ruff format`:\n" + done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_pyright_finds_nothing() -> None:
    done = run("pyright", "--pythonpath", sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
