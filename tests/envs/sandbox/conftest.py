"""Sandboxes at each level that this machine gives, and a look at which processes there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envs.sandbox import IsolationLevel, Sandbox, SandboxConfig, SandboxUnavailable

ARRANGEMENTS = {
    "namespaces": (IsolationLevel.NAMESPACES, True),
    "namespaces-unfiltered": (IsolationLevel.NAMESPACES, False),
    "filtered": (IsolationLevel.FILTERED, True),
    "limits": (IsolationLevel.LIMITS, False),
}


@pytest.fixture(scope="session", params=ARRANGEMENTS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of each arrangement; skips those that the system does not give."""
    try:
        made = Sandbox(SandboxConfig(minimum_isolation="none", num_workers=2), exactly=ARRANGEMENTS[request.param])
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield made
    made.close()


def processes_named(name: str) -> list[int]:
    """The processes of this machine with this name (at most 15 characters), as /proc shows them."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    return found
