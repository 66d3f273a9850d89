"""The warm interpreter: isolated once, it forks a supervisor for each program and never sees a program itself.

Started by envs.sandbox.zygote_process with the level of isolation to reach. Its first reply says whether it is reached.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import platform
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

from . import libc, namespaces, syscall_filter
from .supervisor import serve_one, write_frame

# What programs import most. At the lower levels and for root, others may be out of reach of the user they run as.
_WARM_MODULES = (
    *("array", "bisect", "calendar", "cmath", "collections", "copy", "csv", "datetime", "decimal", "difflib", "enum"),
    *("fractions", "functools", "hashlib", "heapq", "io", "itertools", "json", "math", "numbers", "operator", "queue"),
    *("random", "re", "statistics", "string", "struct", "textwrap", "threading", "time", "traceback", "typing"),
    *("unicodedata", "uuid", "zlib", "_strptime", "encodings.idna"),
)


def main() -> None:
    """Isolate, then serve requests from standard input until it closes."""
    level, has_syscall_filter = sys.argv[2], sys.argv[3] == "filter"
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then closes our input
    for name in _WARM_MODULES:
        importlib.import_module(name)
    try:
        _isolate(level, has_syscall_filter)
    except (OSError, AttributeError) as error:  # AttributeError: a C library without the function
        _reply(replies, {"failure": f"{error}"})
        return
    _reply(replies, {"level": level, "user": os.getuid() or namespaces.NOBODY})
    gc.freeze()
    while _fork_supervisor(requests, replies, level):
        pass


def _isolate(level: str, has_syscall_filter: bool) -> None:
    """Reach the level, and try on a process of its own that the filter can be installed."""
    if level != "limits":
        libc.load()
    if level == "namespaces":
        namespaces.enter()
    if level != "limits":
        libc.forget_capabilities()
    if has_syscall_filter:
        # Built once, here, for all programs.
        syscall_filter.build_filter(platform.machine(), level == "namespaces")
        _try_in_child(lambda: _install_filter(level))


def _install_filter(level: str) -> None:
    libc.forbid_new_privileges()
    syscall_filter.install(has_namespaces=level == "namespaces")


def _try_in_child(action: Callable[[], None]) -> None:
    """Do something in a process of its own. OSError where it fails there."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
        except OSError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    message = os.read(reader, 1000).decode()
    os.close(reader)
    os.waitpid(child, 0)
    if message:
        raise OSError(message)


def _fork_supervisor(requests: int, replies: int, level: str) -> bool:
    """Have one request served by a fresh process; False when there are no more."""
    alive, held = os.pipe()  # The end that is held closes with this process.
    supervisor = os.fork()
    if supervisor == 0:
        status = 2  # should it end in an exception
        try:
            os.close(held)
            if level != "limits":
                libc.die_with_parent(signal.SIGKILL)
            if _has_hung_up(alive):  # the parent died before it could be asked to take this process along
                os._exit(status)
            os.close(alive)
            status = 0 if serve_one(requests, replies, level) else 1
        finally:
            os._exit(status)
    os.close(alive)
    _, status = os.waitpid(supervisor, 0)
    os.close(held)
    return status == 0


def _has_hung_up(reader: int) -> bool:
    poll = select.poll()
    poll.register(reader, 0)
    return bool(poll.poll(0))


def _reply(replies: int, content: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the trainer is gone, and nobody waits for the answer
        write_frame(replies, json.dumps(content).encode())
