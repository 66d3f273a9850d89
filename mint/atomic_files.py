"""Files and folders that are complete or absent, even when the process is killed or the power goes."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file at `path` by one that holds `data`, flushed to disk; readers see the old or the new content."""
    unfinished = path.with_name(f".{path.name}~{secrets.token_hex(4)}")
    try:
        write_flushed(unfinished, data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    flush(path.parent)


def write_flushed(path: Path, data: bytes) -> None:
    """Write `data` to a new file and flush it to disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a link (never what it points to) or a folder with all it holds, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Generator[bool]:
    """Hold an exclusive lock on the file `path`, created when absent, until the block or the process ends.

    Yields True with the lock held. With wait=False it yields False instead when somebody else holds the lock, or when
    this user may not write there.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if wait or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
