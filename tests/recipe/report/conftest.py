"""A small generated run, the page made of it, and a real browser where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from benchmarks.generated_rollouts import RunShape
from benchmarks.generated_run import write_run
from recipe.report import write_report

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="package")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline of three stages, 60 steps of 4 groups of 3: with faults, cut replies and a hostile reply."""
    folder = tmp_path_factory.mktemp("runs") / "pipeline"
    folder.mkdir()
    write_run(folder, RunShape(num_steps=60, num_groups=4, group_size=3, reply_tokens=24, seed=1))
    return folder


@pytest.fixture(scope="package")
def page_path(run_folder: Path) -> Path:
    """Its report."""
    return write_report(run_folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for one module: Playwright keeps an event loop running, which tests of other modules cannot do with."""
    executable = next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)
    if executable is None:
        pytest.skip(f"no browser: none of {', '.join(CHROMIUM_NAMES)} is installed")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield found
        found.close()
