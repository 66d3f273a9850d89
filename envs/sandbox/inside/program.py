"""One untrusted program, in the process that is made for it.

What it reports goes line by line, as JSON, into a pipe: first whether the program could be loaded, then the value of
each call. The program can write into that pipe too. That gains it nothing: a line says what a call returned, and what a
call returns is the program's to choose. Whether the value is right is decided elsewhere.
"""

from __future__ import annotations

import builtins
import json
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from . import libc, namespaces, syscall_filter
from .plain_values import NotPlainError, to_json

STARTED = ["started"]
_MAX_MESSAGE = 300


def run(request: dict[str, Any], level: str, reports: int, output: int, folder: str) -> NoReturn:
    """Close the doors, load the program, make the calls, and end the process."""
    os.setsid()
    _keep_only(reports, output)
    os.chdir(folder)
    give_up_rights(level, request["has_syscall_filter"], request["limits"])
    os.environ.clear()
    os.environ.update(HOME=folder, TMPDIR=folder, LANG="C.UTF-8")
    random.seed(0)
    # The supervisor takes a process that never says this for a failure of the sandbox, not of the program.
    _report(3, STARTED)
    _load_and_call(request["program"], request["calls"], 3)
    os._exit(0)


def give_up_rights(level: str, has_syscall_filter: bool, limits: dict[str, Any]) -> None:
    """Limits, user id, capabilities and the filter of system calls: from here on everything is untrusted."""
    _set_limits(level, limits)
    if level != "namespaces" and os.getuid() == 0:
        os.setgroups([])
        os.setgid(namespaces.NOBODY)
        os.setuid(namespaces.NOBODY)
    if sys.platform.startswith("linux"):
        libc.drop_capabilities()
        libc.forbid_new_privileges()
        # Last but for the filter: changing the user would undo it.
        libc.die_with_parent(signal.SIGKILL)
    if has_syscall_filter:
        syscall_filter.install(has_namespaces=level == "namespaces")


def _set_limits(level: str, limits: dict[str, Any]) -> None:
    memory = limits["memory_bytes"]
    # One second past the supervisor's own limit: this one is for processes that the program starts.
    cpu_seconds = int(limits["cpu_seconds"]) + 1
    bounds = {
        "AS": memory,
        "CORE": 0,
        "CPU": cpu_seconds,
        "FSIZE": limits["file_bytes"],
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
        "NOFILE": limits["open_files"],
        # In a user namespace the warm interpreter and the supervisor count too. Elsewhere all processes of the user
        # count, which is no number to rely on, so none can be started.
        "NPROC": limits["processes"] + 2 if level == "namespaces" else 0,
        "SIGPENDING": 64,
    }
    for name, bound in bounds.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None:
            _, hard = resource.getrlimit(kind)
            bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.setrlimit(kind, (bound, bound))


def _keep_only(reports: int, output: int) -> None:
    """Open files: 0 is /dev/null, 1 and 2 the output, 3 the reports. Signals are as in a new process."""
    # High numbers first, so that no dup2 below closes one that is still needed.
    high_reports, high_output = os.dup(reports), os.dup(output)
    while min(high_reports, high_output) <= 3:
        high_reports, high_output = os.dup(high_reports), os.dup(high_output)
    os.dup2(high_output, 1)
    os.dup2(high_output, 2)
    os.dup2(high_reports, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _load_and_call(source: str, calls: list[str], reports: int) -> None:
    flush = sys.stdout.flush
    namespace: dict[str, Any] = {"__name__": "program", "__builtins__": builtins}
    loaded = _attempt(lambda: exec(compile(source, "<program>", "exec", dont_inherit=True), namespace))
    _report(reports, loaded)
    if loaded[0] == "value":
        for call in calls:
            code = compile(call, "<call>", "eval", dont_inherit=True)
            _report(reports, _attempt(lambda code=code: eval(code, namespace)))
    flush()


def _attempt(action: Callable[[], Any]) -> list[Any]:
    """["value", json], ["raised", message] or ["not plain", message]."""
    try:
        return ["value", to_json(action())]
    except NotPlainError as error:
        return ["not plain", str(error)[:_MAX_MESSAGE]]
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the program decides nothing here
        return ["raised", _describe(error)]


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as second:
        text = f"its message raised {type(second).__name__}"
    return f"{type(error).__name__}: {text}"[:_MAX_MESSAGE]


def _report(reports: int, line: list[Any]) -> None:
    data = json.dumps(line, ensure_ascii=True).encode() + b"\n"
    while data:
        data = data[os.write(reports, data) :]
