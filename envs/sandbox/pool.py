"""Runs untrusted Python programs, several at a time, each in a process of its own behind the best walls there are."""

from __future__ import annotations

import ast
import asyncio
import atexit
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import chz

from envs.sandbox.isolation import Isolation, IsolationLevel, Limits, SandboxConfig
from envs.sandbox.program_result import ProgramResult, read_result
from envs.sandbox.zygote_process import ZygoteFailure, ZygoteProcess
from mint.errors import InvalidRequest, MintError

# A level, and whether system calls are filtered.
Arrangement = tuple[IsolationLevel, bool]
# From strong to weak.
ARRANGEMENTS: tuple[Arrangement, ...] = (
    (IsolationLevel.NAMESPACES, True),
    (IsolationLevel.NAMESPACES, False),
    (IsolationLevel.FILTERED, True),
    (IsolationLevel.LIMITS, False),
)
_shared: dict[tuple[str, int | None], Sandbox] = {}
_shared_lock = threading.Lock()


class SandboxUnavailable(MintError):
    """Programs cannot be run here, or not behind the walls that are asked for."""


class Sandbox:
    """A pool of warm interpreters. Use `run`, from any event loop; `close` ends the interpreters.

    exactly: this arrangement instead of the strongest. Raises SandboxUnavailable where the system gives less than
    config.minimum_isolation.
    """

    def __init__(self, config: SandboxConfig | None = None, exactly: Arrangement | None = None) -> None:
        self._config = config if config is not None else SandboxConfig()
        self._lock = threading.Lock()
        first, self.isolation = _start_first(self._config.minimum_level(), exactly)
        self._idle = [first]
        self._is_closed = False
        self._executor = ThreadPoolExecutor(self._config.count_workers(), thread_name_prefix="sandbox")

    async def run(self, program: str, calls: Sequence[str] = (), limits: Limits | None = None) -> ProgramResult:
        """Load a program, then evaluate each call, an expression such as "f(1, 2)", in its namespace.

        All of this happens in one process that is made for it. A program that fails is a result, not an error.
        Raises InvalidRequest for a call that is no expression and SandboxUnavailable when no interpreter can be had.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self.run_blocking, program, calls, limits)

    def run_blocking(self, program: str, calls: Sequence[str] = (), limits: Limits | None = None) -> ProgramResult:
        """`run`, in the calling thread."""
        for call in calls:
            _check_is_expression(call)
        settings: dict[str, Any] = chz.asdict(limits if limits is not None else Limits())
        try:
            reply = self._attempt(program, list(calls), settings)
        except ZygoteFailure:
            # Once more: the interpreter may have been a victim of something else, such as the system's memory killer.
            try:
                reply = self._attempt(program, list(calls), settings)
            except ZygoteFailure as error:
                raise SandboxUnavailable(f"the sandbox ({self.isolation}) failed twice: {error}") from error
        return read_result(reply, len(calls))

    def close(self) -> None:
        """Wait for the programs that run, then end the interpreters."""
        self._executor.shutdown(cancel_futures=True)
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for zygote in idle:
            zygote.kill()

    def _attempt(self, program: str, calls: list[str], limits: dict[str, Any]) -> dict[str, Any]:
        zygote = self._take()
        try:
            reply = zygote.run(program, calls, limits)
        except BaseException:
            zygote.kill()
            raise
        with self._lock:
            is_kept = not self._is_closed
            if is_kept:
                self._idle.append(zygote)
        if not is_kept:
            zygote.kill()
        return reply

    def _take(self) -> ZygoteProcess:
        with self._lock:
            if self._is_closed:
                raise SandboxUnavailable("the sandbox is closed; make a new one")
            if self._idle:
                return self._idle.pop()
        return ZygoteProcess(self.isolation.level.name.lower(), self.isolation.has_syscall_filter)


def shared_sandbox(config: SandboxConfig) -> Sandbox:
    """The sandbox of this process with these settings, made when first asked for and closed when the process ends."""
    key = (config.minimum_isolation, config.num_workers)
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Sandbox(config)
            atexit.register(_shared[key].close)
        return _shared[key]


def _start_first(minimum: IsolationLevel, exactly: Arrangement | None) -> tuple[ZygoteProcess, Isolation]:
    """An interpreter behind the strongest walls that can be had."""
    missing: list[str] = []
    for level, has_syscall_filter in ARRANGEMENTS if exactly is None else (exactly,):
        if level < minimum:
            continue
        try:
            zygote = ZygoteProcess(level.name.lower(), has_syscall_filter)
        except ZygoteFailure as failure:
            name = level.name.lower() + (" with a filter" if has_syscall_filter else "")
            missing.append(f"{name}: {failure}")
            continue
        return zygote, Isolation(level, has_syscall_filter, zygote.user, tuple(missing))
    raise SandboxUnavailable(
        f"minimum_isolation={minimum.name.lower()}: this system does not give it ({'; '.join(missing)}); see"
        " docs/sandbox.md for what it needs, or set a lower minimum_isolation if you trust the programs"
    )


def _check_is_expression(call: str) -> None:
    try:
        ast.parse(call, mode="eval")
    except (SyntaxError, ValueError) as error:
        raise InvalidRequest(f"call {call!r}: must be a Python expression such as 'f(1, 2)'") from error
