"""File systems of a few hundred kilobytes and read-only ones, for tests of what happens when a disk is full.

They are tmpfs mounts in a user and mount namespace of a process of its own, so they need no privilege, nobody else sees
them, and they are gone when it ends. Where the system forbids such namespaces, the tests that need them are skipped.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

_IN_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]

# What scripts can call: see `run_with_disks`.
_PRELUDE = """
import json, os, subprocess, sys
from pathlib import Path

def disk(folder, kilobytes):
    Path(folder).mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)], check=True)
    return Path(folder)

def remount(folder, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)

def leave_free(folder, kilobytes):
    filler = Path(folder, "filler")
    filler.unlink(missing_ok=True)
    stat = os.statvfs(folder)
    filler.write_bytes(bytes(max(0, stat.f_bavail * stat.f_frsize - kilobytes * 1024)))
    return filler
"""


@cache
def _can_mount() -> bool:
    command = [*_IN_NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        return False


def run_with_disks(script: str, *arguments: object, timeout: float = 300) -> Any:
    """What `script`, in a process that may mount, prints last, read as JSON.

    The script has sys.argv[1:] = arguments and, besides json, os, sys and Path: disk(folder, kilobytes) mounts a file
    system of that size, remount(folder, options) changes it ("ro", "size=64m"), and leave_free(folder, kilobytes) fills
    it up but for so much by the file that it returns.
    """
    if not _can_mount():
        pytest.skip("this system lets no process mount a small file system of its own (unshare --user --mount)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment.pop("MINT_BASE_URL", None)
    command = [*_IN_NAMESPACE, sys.executable, "-c", _PRELUDE + script, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def files_at_most(num_bytes: int) -> Generator[None]:
    """Within the block no file of this process grows beyond `num_bytes`: works everywhere, for one file at a time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
