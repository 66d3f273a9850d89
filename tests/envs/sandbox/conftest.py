"""Sandboxes at each level that this machine gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from envs.sandbox import IsolationLevel, Sandbox, SandboxConfig, SandboxUnavailable

ARRANGEMENTS = {
    "namespaces": (IsolationLevel.NAMESPACES, True),
    "namespaces-unfiltered": (IsolationLevel.NAMESPACES, False),
    "filtered": (IsolationLevel.FILTERED, True),
    "limits": (IsolationLevel.LIMITS, False),
}


# Without the second wall: nothing that users run with, so it is proven less often.
_PARAMETERS = [pytest.param(n, marks=[pytest.mark.slow] if n == "namespaces-unfiltered" else []) for n in ARRANGEMENTS]


@pytest.fixture(scope="session", params=_PARAMETERS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of each arrangement; skips those that the system does not give."""
    try:
        made = Sandbox(SandboxConfig(minimum_isolation="none", num_workers=2), exactly=ARRANGEMENTS[request.param])
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield made
    made.close()
