"""One request: make the process of a program, watch it, and say how it ended.

The supervisor is trusted. The program cannot see it where there are namespaces: it lives outside the program's own.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from typing import Any

from . import namespaces, program

# How often the clocks are read while a program computes.
_TICK_SECONDS = 0.02
_CHUNK = 1 << 16


def read_frame(fd: int) -> bytes | None:
    """One length-prefixed message; None where the other side has closed."""
    header = _read_exactly(fd, 4)
    return _read_exactly(fd, struct.unpack(">I", header)[0]) if header is not None else None


def write_frame(fd: int, data: bytes) -> None:
    """Write one length-prefixed message."""
    data = struct.pack(">I", len(data)) + data
    while data:
        data = data[os.write(fd, data) :]


def serve_one(requests: int, replies: int, level: str) -> bool:
    """Answer one request; False where there are no more."""
    frame = read_frame(requests)
    if frame is None:
        return False
    request = json.loads(frame)
    try:
        reply = _run(request, level)
    except OSError as error:
        reply = {"failure": f"{type(error).__name__}: {error}"}
    write_frame(replies, json.dumps(reply).encode())
    return True


def _run(request: dict[str, Any], level: str) -> dict[str, Any]:
    if level == "namespaces":
        namespaces.enter_for_program(request["limits"]["temporary_bytes"])
        return _run_in(namespaces.TEMPORARY_FOLDER, request, level)
    folder = tempfile.mkdtemp(prefix="sandbox-")
    try:
        if os.getuid() == 0:
            os.chown(folder, namespaces.NOBODY, namespaces.NOBODY)
        return _run_in(folder, request, level)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_in(folder: str, request: dict[str, Any], level: str) -> dict[str, Any]:
    reports_out, reports_in = os.pipe()
    output_out, output_in = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            program.run(request, level, reports_in, output_in, folder)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(1)
    os.close(reports_in)
    os.close(output_in)
    watch = _Watch(child, reports_out, output_out, request["limits"])
    try:
        end = watch.until_end()
    finally:
        status, usage = watch.reap()
    reports = watch.reports.decode("ascii", errors="replace")
    started = json.dumps(program.STARTED) + "\n"
    if not reports.startswith(started):
        raise OSError(f"{end} before the program began: {watch.output.decode(errors='replace')}")
    return {
        "end": end,
        "exit_code": os.waitstatus_to_exitcode(status) if end == "ended" else None,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "reports": reports.removeprefix(started),
        "output": watch.output.decode(errors="replace"),
    }


class _Watch:
    """The pipes and clocks of one program."""

    def __init__(self, child: int, reports: int, output: int, limits: dict[str, Any]) -> None:
        self.reports, self.output = bytearray(), bytearray()
        self._child = child
        self._limits = limits
        self._sinks = {reports: self.reports, output: self.output}
        for fd in self._sinks:
            os.set_blocking(fd, False)
        self._reaped: tuple[int, resource.struct_rusage] | None = None
        self._pidfd = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
        self._deadline = time.monotonic() + limits["wall_seconds"]

    def until_end(self) -> str:
        """ "ended", or the limit that was reached: "cpu time", "wall time", "output"."""
        while True:
            waited_for = [*self._sinks, *([self._pidfd] if self._pidfd is not None else [])]
            select.select(waited_for, [], [], _TICK_SECONDS)
            has_ended = self._has_ended()
            for fd in list(self._sinks):
                self._drain(fd)
            if max(len(self.reports), len(self.output)) > self._limits["output_bytes"]:
                return "output"
            if has_ended:
                return "ended"
            if self._cpu_seconds() > self._limits["cpu_seconds"]:
                return "cpu time"
            if time.monotonic() > self._deadline:
                return "wall time"

    def reap(self) -> tuple[int, resource.struct_rusage]:
        """End the program, if it has not ended, and everything that it started; its wait status and usage."""
        if self._reaped is None:
            os.kill(self._child, signal.SIGKILL)
            self._reaped = os.wait4(self._child, 0)[1:]
        return self._reaped

    def _has_ended(self) -> bool:
        pid, status, usage = os.wait4(self._child, os.WNOHANG)
        if pid:
            self._reaped = status, usage
        return bool(pid)

    def _drain(self, fd: int) -> None:
        """Read what is there, up to just beyond the limit."""
        sink = self._sinks[fd]
        while len(sink) <= self._limits["output_bytes"]:
            try:
                data = os.read(fd, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                del self._sinks[fd]
                return
            sink += data

    def _cpu_seconds(self) -> float:
        """Of the child's own process, all threads; Linux lets anyone read another process's clock by its number."""
        if not sys.platform.startswith("linux"):
            return 0.0
        return time.clock_gettime((~self._child << 3) | 2)


def _read_exactly(fd: int, num_bytes: int) -> bytes | None:
    parts: list[bytes] = []
    missing = num_bytes
    while missing:
        part = os.read(fd, min(missing, _CHUNK))
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
