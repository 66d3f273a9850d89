"""Workers of pytest-xdist: only where a command asks for them, and without more threads than there are cores."""

from __future__ import annotations

import os
import tomllib

import torch

from tests.repository.source_tree import ROOT


def test_a_plain_pytest_starts_no_workers() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    options = config["tool"]["pytest"]["ini_options"]["addopts"]
    assert [option for option in options if option.startswith(("-n", "--numprocesses", "--dist", "--tx"))] == []


def test_all_workers_together_have_no_more_threads_than_cores() -> None:
    num_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    assert torch.get_num_threads() * num_workers <= max(os.cpu_count() or 1, num_workers)
