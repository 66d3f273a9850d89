"""The sandbox as callers see it: results, levels and the least of them, limits, many programs at a time."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from envs.sandbox import IsolationLevel, Limits, Sandbox, SandboxConfig, SandboxUnavailable, pool, shared_sandbox
from envs.sandbox.zygote_process import ZygoteFailure
from mint.errors import InvalidRequest

ROOT = Path(__file__).resolve().parents[3]
ANY_LEVEL = SandboxConfig(minimum_isolation="none", num_workers=2)


async def test_values_messages_and_output_come_back(sandbox: Sandbox) -> None:
    program = "def f(x):\n    print('called with', x)\n    return {x: (1.5, [None])}\n"
    result = await sandbox.run(program, ["f('a')", "f([])", "f", "missing"])
    assert [call.kind for call in result.calls] == ["value", "raised", "not plain", "raised"]
    assert result.calls[0].value == {"a": (1.5, [None])}
    assert result.calls[1].message == "TypeError: unhashable type: 'list'"
    assert result.calls[3].message == "NameError: name 'missing' is not defined"
    assert (result.end, result.exit_code, result.loaded.kind) == ("ended", 0, "value")
    assert result.output == "called with a\ncalled with []\n"
    assert 0 < result.cpu_seconds < 1


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("x = ", "SyntaxError: "),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("\x00", "SyntaxError: "),
        ("\ud800", ""),
    ],
)
async def test_a_program_that_cannot_be_loaded_leaves_its_calls_unanswered(
    sandbox: Sandbox, program: str, message: str
) -> None:
    result = await sandbox.run(program, ["1", "2"])
    assert result.loaded.kind == "raised" and result.loaded.message.startswith(message)
    assert [call.kind for call in result.calls] == ["missing", "missing"]


async def test_the_main_guard_does_not_run_and_imports_work(sandbox: Sandbox) -> None:
    program = "import math, collections, re\nran = __name__ == '__main__'\ndef f(): return math.gcd(12, 18)"
    assert [call.value for call in (await sandbox.run(program, ["f()", "ran"])).calls] == [6, False]


async def test_the_same_program_gives_the_same_result(sandbox: Sandbox) -> None:
    program = "import random\ndef f(): return list({'a', 'b', 'c', 'd', 'e'}), random.random()"
    results = await asyncio.gather(*(sandbox.run(program, ["f()"]) for _ in range(6)))
    assert len({repr(result.calls) for result in results}) == 1


async def test_a_busy_machine_changes_no_verdict() -> None:
    """Six programs that need three quarters of their processor time each, at once, on two workers."""
    sandbox = Sandbox(SandboxConfig(minimum_isolation="none", num_workers=6))
    limits = Limits(cpu_seconds=0.4, wall_seconds=60)
    program = "import time\ndef f(seconds):\n    while time.process_time() < seconds:\n        pass\n    return 1\n"
    within = [sandbox.run(program, ["f(0.25)"], limits) for _ in range(6)]
    beyond = [sandbox.run(program, ["f(5)"], limits) for _ in range(2)]
    results = await asyncio.gather(*within, *beyond)
    sandbox.close()
    assert [result.calls[0].kind for result in results] == ["value"] * 6 + ["missing"] * 2
    assert [result.end for result in results[6:]] == ["cpu time"] * 2


async def test_calls_must_be_expressions(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="call 'x = 1': must be a Python expression such as 'f\\(1, 2\\)'"):
        await sandbox.run("", ["x = 1"])


async def test_no_more_programs_run_at_a_time_than_there_are_workers() -> None:
    sandbox = Sandbox(ANY_LEVEL)
    limits = Limits(cpu_seconds=0.1, wall_seconds=0.5)
    started = time.monotonic()
    await asyncio.gather(*(sandbox.run("import time\ntime.sleep(60)", (), limits) for _ in range(4)))
    seconds = time.monotonic() - started
    sandbox.close()
    assert seconds >= 1.0  # two rounds of two


def test_a_sandbox_serves_several_event_loops() -> None:
    sandbox = Sandbox(ANY_LEVEL)
    values = [asyncio.run(sandbox.run("", [f"{i} + 1"])).calls[0].value for i in range(2)]
    sandbox.close()
    assert values == [1, 2]


async def test_an_interpreter_that_dies_is_replaced() -> None:
    sandbox = Sandbox(ANY_LEVEL)
    first = sandbox._idle[0]
    first._process.kill()
    # The process that answers ends with the one that was killed, also where it was just being forked.
    hung_up = select.poll()
    hung_up.register(first._process.stdout, 0)
    assert hung_up.poll(10_000)
    assert (await sandbox.run("", ["6 * 7"])).calls[0].value == 42
    assert first not in sandbox._idle and len(sandbox._idle) == 1
    sandbox.close()


async def test_a_closed_sandbox_says_so_and_leaves_no_process() -> None:
    sandbox = Sandbox(ANY_LEVEL)
    processes = [zygote._process for zygote in sandbox._idle]
    sandbox.close()
    assert all(process.poll() is not None for process in processes)
    with pytest.raises(SandboxUnavailable, match="the sandbox is closed; make a new one"):
        sandbox.run_blocking("", ["1"])


def test_the_interpreters_end_with_the_process_that_uses_them(tmp_path: Path) -> None:
    script = """
import os
from envs.sandbox import Sandbox, SandboxConfig
sandbox = Sandbox(SandboxConfig(minimum_isolation="none"))
print(sandbox._idle[0]._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _is_alive(pid):
        time.sleep(0.02)
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


# --- levels ---


def test_levels_are_ordered() -> None:
    levels = IsolationLevel
    assert levels.NONE < levels.LIMITS < levels.FILTERED < levels.NAMESPACES


def test_a_minimum_that_is_not_reached_is_an_error_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pool.ZygoteProcess

    def without_namespaces(level: str, has_syscall_filter: bool) -> Any:
        if level == "namespaces":
            raise ZygoteFailure("unshare(0x5c020000): Operation not permitted")
        return real(level, has_syscall_filter)

    monkeypatch.setattr(pool, "ZygoteProcess", without_namespaces)
    with pytest.raises(SandboxUnavailable) as caught:
        Sandbox(SandboxConfig(minimum_isolation="namespaces"))
    assert str(caught.value).startswith(
        "minimum_isolation=namespaces: this system does not give it (namespaces with a filter: unshare(0x5c020000): "
        "Operation not permitted; namespaces: unshare"
    )
    assert "docs/sandbox.md" in str(caught.value) and "set a lower minimum_isolation" in str(caught.value)
    weaker = Sandbox(SandboxConfig(minimum_isolation="limits"))
    assert weaker.isolation.level < IsolationLevel.NAMESPACES
    assert len(weaker.isolation.missing) >= 2 and "Operation not permitted" in str(weaker.isolation)
    weaker.close()


def test_the_level_is_reported(sandbox: Sandbox) -> None:
    isolation = sandbox.isolation
    assert str(isolation).startswith(isolation.level.name.lower())
    assert isolation.user != 0
    result = sandbox.run_blocking("import os", ["os.getuid()", "os.path.exists('/etc/hostname')"])
    assert result.calls[0].value == isolation.user
    if isolation.level == IsolationLevel.NAMESPACES:
        assert result.calls[1].value is False


def test_the_command_reports_what_this_machine_gives() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "envs.sandbox"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert list(report) == ["strongest", "user", "levels"]
    assert report["strongest"] in report["levels"] and report["levels"][report["strongest"]] == "available"


def test_one_sandbox_is_shared_by_all_who_ask_for_the_same() -> None:
    found: list[Sandbox] = []
    threads = [threading.Thread(target=lambda: found.append(shared_sandbox(ANY_LEVEL))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert shared_sandbox(SandboxConfig(minimum_isolation="none", num_workers=1)) is not found[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpu_seconds": 0.0}, "cpu_seconds=0.0: must be a finite number of at least 0.05"),
        ({"cpu_seconds": 5.0, "wall_seconds": 4.0}, "wall_seconds=4.0: must be a finite number of at least 5.0"),
        ({"wall_seconds": float("inf")}, "wall_seconds=inf: must be a finite number"),
        ({"memory_bytes": 1000}, "memory_bytes=1000: must be a finite number of at least 67108864"),
        ({"processes": 0}, "processes=0"),
    ],
)
def test_bad_limits_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Limits(**settings)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="num_workers=0: must be at least 1"):
        SandboxConfig(num_workers=0)
    with pytest.raises(TypeError):
        SandboxConfig(minimum_isolation="total")  # pyright: ignore[reportArgumentType]
