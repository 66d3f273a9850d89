"""Attacks by using too much: each ends at its limit and costs the program what it has not answered, and no one else."""

from __future__ import annotations

from envs.sandbox import IsolationLevel, Limits, Sandbox
from tests.envs.sandbox.attacks import attack, needs, needs_linux, values

pytestmark = needs_linux


def test_fork_bomb(sandbox: Sandbox) -> None:
    program = """
import os, time
def spread():
    count = 0
    while True:
        try:
            if os.fork() == 0:
                time.sleep(1000)
        except OSError:
            return count
        count += 1
def bomb():
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""
    limits = Limits(cpu_seconds=0.3, wall_seconds=5.0, processes=6)
    result = attack(sandbox, program, "spread()", "bomb()", "1", limits=limits)
    num_children = limits.processes - 1 if sandbox.isolation.level == IsolationLevel.NAMESPACES else 0
    assert values(result) == [num_children, "<missing>", "<missing>"]
    assert result.end in ("cpu time", "wall time")


def test_memory_bomb(sandbox: Sandbox) -> None:
    program = """
def at_once():
    return len(bytearray(1 << 36))
def bit_by_bit():
    kept = []
    while True:
        kept.append(bytearray(1 << 22))
def honest():
    return len(bytearray(1 << 22))
"""
    result = attack(sandbox, program, "at_once()", "bit_by_bit()", "honest()", limits=Limits(memory_bytes=128 << 20))
    assert values(result) == ["<raised>", "<raised>", 1 << 22]
    assert [call.message for call in result.calls[:2]] == ["MemoryError: ", "MemoryError: "]


def test_endless_loop_costs_the_calls_from_there_on(sandbox: Sandbox) -> None:
    result = attack(sandbox, "def f(n):\n    while n:\n        pass\n    return n", "f(0)", "f(1)", "f(0)")
    assert (values(result), result.end) == ([0, "<missing>", "<missing>"], "cpu time")
    assert 0.3 <= result.cpu_seconds < 1.5


def test_endless_loop_while_loading(sandbox: Sandbox) -> None:
    result = attack(sandbox, "while True:\n    pass\n", "1")
    assert (result.loaded.kind, values(result), result.end) == ("missing", ["<missing>"], "cpu time")


def test_endless_output(sandbox: Sandbox) -> None:
    program = "def f():\n    while True:\n        print('x' * 1000)\n"
    result = attack(sandbox, program, "1", "f()", limits=Limits(output_bytes=1 << 16))
    assert (values(result), result.end) == (["<missing>"] * 2, "output")
    assert 1 << 16 < len(result.output) <= (1 << 16) + (1 << 16)


def test_endless_reports(sandbox: Sandbox) -> None:
    program = "import os\ndef f():\n    while True:\n        os.write(3, b'x' * 1000)\n"
    result = attack(sandbox, program, "f()")
    assert (values(result), result.end) == (["<missing>"], "output")


def test_huge_result(sandbox: Sandbox) -> None:
    result = attack(sandbox, "def f():\n    return 'x' * (1 << 22)", "f()")
    assert (values(result), result.end) == (["<missing>"], "output")


def test_sleeping_ends_by_the_clock(sandbox: Sandbox) -> None:
    limits = Limits(cpu_seconds=0.1, wall_seconds=0.4)
    result = attack(sandbox, "import time\ndef f():\n    time.sleep(1000)", "f()", limits=limits)
    assert (values(result), result.end) == (["<missing>"], "wall time")


def test_huge_integers(sandbox: Sandbox) -> None:
    program = "def power(n):\n    return 10**n\ndef forever():\n    return 7**(10**10) % 10\n"
    result = attack(sandbox, program, "power(5000)", "str(power(5000))", "forever()", "power(1)")
    assert values(result)[:2] == [10**5000, "<raised>"]
    assert "4300 digits" in result.calls[1].message
    assert values(result)[2] in ("<missing>", "<raised>")  # out of time or out of memory


def test_deep_recursion(sandbox: Sandbox) -> None:
    program = """
import sys
def down(n):
    return down(n + 1)
def far_down():
    sys.setrecursionlimit(10**9)
    return down(0)
def nest():
    value = []
    for _ in range(10**5):
        value = [value]
    return value
"""
    result = attack(
        sandbox, program, "down(0)", "nest()", "far_down()", limits=Limits(cpu_seconds=0.5, memory_bytes=128 << 20)
    )
    assert values(result)[:2] == ["<raised>", "<not plain>"]
    assert values(result)[2] in ("<raised>", "<missing>")  # out of memory, or of stack
    assert result.calls[0].message.startswith("RecursionError")


def test_large_files_and_limits_that_cannot_be_raised(sandbox: Sandbox) -> None:
    program = """
import resource
def grow():
    with open('big', 'wb') as file:
        file.write(bytes(1 << 20))
        file.write(bytes(1 << 30))
def lift():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
    result = attack(sandbox, program, "grow()", "lift()", limits=Limits(file_bytes=1 << 20))
    assert values(result) == ["<raised>", "<raised>"]


def test_the_temporary_folder_is_small_and_forgotten(sandbox: Sandbox) -> None:
    needs(sandbox, IsolationLevel.NAMESPACES)
    program = """
import os
def fill():
    written = 0
    try:
        for i in range(10**6):
            with open(f'{i}', 'wb') as file:
                file.write(bytes(4096))
            written += 4096
    except OSError:
        return written
def count():
    return len(os.listdir('.'))
"""
    limits = Limits(temporary_bytes=1 << 20)
    result = attack(sandbox, program, "count()", "fill()", "count() > 100", limits=limits)
    assert values(result)[0] == 0 and 1 << 19 < values(result)[1] <= 1 << 20 and values(result)[2] is True
    assert values(attack(sandbox, program, "count()", limits=limits)) == [0]
