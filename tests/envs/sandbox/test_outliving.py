"""Attacks by staying: nothing of a program is left when it has ended, not a process, not a value."""

from __future__ import annotations

import time

from envs.sandbox import IsolationLevel, Sandbox
from tests.envs.sandbox.attacks import NAME_ITSELF, attack, escapees, needs, needs_linux, values

pytestmark = needs_linux


def test_threads_end_with_the_program(sandbox: Sandbox) -> None:
    needs(sandbox, IsolationLevel.NAMESPACES)
    program = NAME_ITSELF + "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
    started = time.monotonic()
    result = attack(sandbox, program, "threading.active_count()")
    assert (values(result), result.end) == ([2], "ended")
    assert time.monotonic() - started < 8
    assert escapees() == []


def test_daemons_end_with_the_program(sandbox: Sandbox) -> None:
    program = f"""{NAME_ITSELF}
import os, time
def daemonise():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 100)
            time.sleep(1000)
        os._exit(0)
    os.wait()
    return 'away'
"""
    has_processes = sandbox.isolation.level == IsolationLevel.NAMESPACES
    assert values(attack(sandbox, program, "daemonise()")) == ["away" if has_processes else "<raised>"]
    assert escapees() == []


def test_masking_signals_does_not_help(sandbox: Sandbox) -> None:
    program = f"""{NAME_ITSELF}
import signal
def resist():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True:
        pass
"""
    result = attack(sandbox, program, "resist()")
    assert (values(result), result.end) == (["<missing>"], "cpu time")
    assert escapees() == []


def test_a_program_leaves_nothing_to_the_next(sandbox: Sandbox) -> None:
    program = """
import builtins, json, os
left_behind = builtins.left_behind = json.left_behind = True
os.environ['left_behind'] = 'yes'
try:
    open('left_behind', 'w').close()
except OSError:
    pass
"""
    attack(sandbox, program)
    look = "import builtins, json, os\n"
    calls = ["hasattr(builtins, 'left_behind')", "hasattr(json, 'left_behind')", "'left_behind' in os.environ"]
    result = attack(sandbox, look, *calls, "os.listdir('.')")
    assert values(result) == [False, False, False, []]
