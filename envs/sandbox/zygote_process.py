"""A handle on one warm interpreter: start it at a level, give it one program at a time, end it."""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv[1]); from inside.zygote import main; del sys.path[0]; main()"
# A fixed seed of hashes: the order of a set of strings is the same in every process.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
_START_SECONDS = 60.0
_GRACE_SECONDS = 30.0


class ZygoteFailure(Exception):
    """The interpreter or a supervisor failed; no program can cause it."""


class ZygoteProcess:
    """One interpreter, in which one program runs at a time. Raises ZygoteFailure where it cannot be isolated so."""

    def __init__(self, level: str, has_syscall_filter: bool) -> None:
        self._has_syscall_filter = has_syscall_filter
        folder = str(Path(__file__).resolve().parent)
        filter_word = "filter" if has_syscall_filter else "no-filter"
        self._process = subprocess.Popen(
            # -s and -S: no installed packages; -P: no folder of the caller's on the path; -B: nothing is written.
            [sys.executable, "-s", "-S", "-P", "-B", "-c", _BOOTSTRAP, folder, level, filter_word],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )
        try:
            hello = self._read(_START_SECONDS)
            if "failure" in hello:
                raise ZygoteFailure(hello["failure"])
        except ZygoteFailure:
            self.kill()
            raise
        self.user: int = hello["user"]

    def run(self, program: str, calls: list[str], limits: dict[str, Any]) -> dict[str, Any]:
        """The supervisor's reply. Raises ZygoteFailure when there is none; the process is of no use after that."""
        request = {
            "program": program,
            "calls": calls,
            "limits": limits,
            "has_syscall_filter": self._has_syscall_filter,
        }
        data = json.dumps(request).encode()
        assert self._process.stdin is not None
        data = struct.pack(">I", len(data)) + data
        try:
            while data:
                data = data[os.write(self._process.stdin.fileno(), data) :]
        except OSError as error:
            raise ZygoteFailure(f"the interpreter takes no requests: {error}") from error
        reply = self._read(limits["wall_seconds"] + _GRACE_SECONDS)
        if "failure" in reply:
            raise ZygoteFailure(reply["failure"])
        return reply

    def kill(self) -> None:
        """End the interpreter and, with it, a program that runs."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    def _read(self, timeout_seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_seconds
        header = self._read_exactly(4, deadline)
        return json.loads(self._read_exactly(struct.unpack(">I", header)[0], deadline))

    def _read_exactly(self, num_bytes: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        stream, data = self._process.stdout.fileno(), bytearray()
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        while len(data) < num_bytes:
            if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise ZygoteFailure("the interpreter does not answer")
            part = os.read(stream, num_bytes - len(data))
            if not part:
                raise ZygoteFailure("the interpreter ended")
            data += part
        return bytes(data)
