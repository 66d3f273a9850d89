"""How well programs are walled in, how much they may use, and the settings of both."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from math import isfinite
from typing import Literal

import chz

from mint.errors import InvalidRequest

IsolationName = Literal["none", "limits", "filtered", "namespaces"]


class IsolationLevel(IntEnum):
    """Ordered from weak to strong; docs/sandbox.md says what each keeps a program from.

    NONE: as a minimum, take whatever the system gives; no sandbox has this level.
    LIMITS: a process of its own with resource limits.
    FILTERED: LIMITS, and a filter of system calls: no network, no signals, no files changed, no processes.
    NAMESPACES: own processes, file system, network, users, IPC and host name; with the filter as a second wall.
    """

    NONE = 0
    LIMITS = 1
    FILTERED = 2
    NAMESPACES = 3


@dataclass(frozen=True)
class Isolation:
    """What a sandbox has reached, and why not more."""

    level: IsolationLevel
    # Whether system calls are filtered too.
    has_syscall_filter: bool
    # The user id that programs run as, as they see it.
    user: int
    # Why each better arrangement is not there, best first; empty where there is none better.
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        filtered = " with a filter of system calls" if self.has_syscall_filter else ""
        missing = "".join(f"; {reason}" for reason in self.missing)
        return f"{self.level.name.lower()}{filtered}, user {self.user}{missing}"


@chz.chz(typecheck=True)
class Limits:
    """What one program may use."""

    # Processor time of the program's process, over all its threads. Started processes have as much each.
    cpu_seconds: float = 2.0
    # Time on the clock: for programs that sleep. Far more than cpu_seconds, so that a busy machine decides nothing.
    wall_seconds: float = 30.0
    # Address space of a process.
    memory_bytes: int = 512 << 20
    # Processes and threads at one time, the program's own included; only 1 below the level "namespaces".
    processes: int = 8
    # Largest file.
    file_bytes: int = 4 << 20
    # The temporary folder in all; counts only at the level "namespaces", where it lies in memory.
    temporary_bytes: int = 8 << 20
    # Printed text; and, apart from it, the values that all calls return, as JSON.
    output_bytes: int = 256 << 10
    # Open files at one time.
    open_files: int = 64

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        lowest = {
            "cpu_seconds": 0.05,
            "wall_seconds": self.cpu_seconds,
            "memory_bytes": 64 << 20,
            "processes": 1,
            "file_bytes": 0,
            "temporary_bytes": 4096,
            "output_bytes": 1024,
            "open_files": 16,
        }
        for name, least in lowest.items():
            value = getattr(self, name)
            if not (isfinite(value) and value >= least):
                raise InvalidRequest(f"{name}={value}: must be a finite number of at least {least}")


@chz.chz(typecheck=True)
class SandboxConfig:
    """Which sandbox to use."""

    # Refuse to run programs below this level: "none", "limits", "filtered" or "namespaces" (docs/sandbox.md).
    minimum_isolation: IsolationName = "namespaces"
    # Programs that run at one time; None: as many as this process has processors.
    num_workers: int | None = None

    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if self.num_workers is not None and self.num_workers < 1:
            raise InvalidRequest(f"num_workers={self.num_workers}: must be at least 1")

    def minimum_level(self) -> IsolationLevel:
        """`minimum_isolation` as a level."""
        return IsolationLevel[self.minimum_isolation.upper()]

    def count_workers(self) -> int:
        """num_workers, or the number of processors that this process may use."""
        if self.num_workers is not None:
            return self.num_workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
