"""Running an attack, and what the tests of attacks share.

A verdict is a comparison out here with what the calls returned in there; `values` gives those.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from envs.sandbox import IsolationLevel, Limits, ProgramResult, Sandbox

QUICK = Limits(cpu_seconds=0.3, wall_seconds=10.0)
HONEST = "def double(x):\n    return 2 * x\n"
C_LIBRARY = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
# A program that calls itself this is found by `escapees`; other test processes of the machine use another number.
ESCAPEE = f"escape {os.getpid()}"
NAME_ITSELF = C_LIBRARY + f"libc.prctl(15, b'{ESCAPEE}')\n"

needs_linux = pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="needs Linux")


def attack(sandbox: Sandbox, program: str, *calls: str, limits: Limits = QUICK) -> ProgramResult:
    """Run a program, and prove that the next one is served by an interpreter that is as it was."""
    result = sandbox.run_blocking(program, calls, limits)
    after = sandbox.run_blocking(HONEST, ["double(21)", "globals().get('left_behind')"], QUICK)
    assert values(after) == [42, None]
    return result


def values(result: ProgramResult) -> list[Any]:
    """What the calls returned; for those that returned nothing, the kind of failure as `<kind>`."""
    return [call.value if call.kind == "value" else f"<{call.kind}>" for call in result.calls]


def needs(sandbox: Sandbox, level: IsolationLevel) -> None:
    """Skip below the level that claims to withstand the attack."""
    if sandbox.isolation.level < level:
        pytest.skip(f"{sandbox.isolation.level.name.lower()} does not claim to withstand this (docs/sandbox.md)")


def escapees() -> list[int]:
    """The processes of this machine that call themselves ESCAPEE, as /proc shows them."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == ESCAPEE:
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    return found
