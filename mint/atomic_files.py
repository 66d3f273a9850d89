"""Files and folders that are complete or absent, even when the process is killed, the disk is full or the power goes.

What cannot be written is a StorageError that names the file and says what to do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from mint.errors import StorageError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


@contextmanager
def storage_errors(path: Path) -> Generator[None]:
    """Within the block, an OSError is about writing `path` and becomes a StorageError that says so."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}; {_advice(error)}") from error


def _advice(error: OSError) -> str:
    if error.errno in _NO_SPACE:
        return "free space on that disk and start the same command again; what was saved before is complete"
    if error.errno in _NOT_ALLOWED:
        return "make its folder writable for this user, or choose another (log_path for runs, MINT_HOME for storage)"
    if error.errno in _NOT_THERE:
        return "its folder was removed, moved or unmounted; put it back and start the same command again"
    if error.errno == errno.ELOOP:
        return "it is a symbolic link, which is not followed here; put the file itself there"
    return "look after that disk and start the same command again; what was saved before is complete"


def check_writable(folder: Path) -> None:
    """StorageError when files cannot be made in `folder`, or, before it exists, in the folder it would be made in."""
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if os.path.exists(parent))
    with storage_errors(folder):
        if not os.path.isdir(nearest):
            raise NotADirectoryError(errno.ENOTDIR, f"{nearest} is not a folder")
        if not os.access(nearest, os.W_OK | os.X_OK):
            code = errno.EROFS if os.statvfs(nearest).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(code, os.strerror(code))


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file at `path` by one that holds `data`, flushed to disk; readers see the old or the new content."""
    unfinished = path.with_name(f".{path.name}~{secrets.token_hex(4)}")
    with storage_errors(path):
        try:
            _write_new(unfinished, data)
            unfinished.replace(path)
        finally:
            with suppress(OSError):  # whatever stopped the writing is the error to report
                unfinished.unlink(missing_ok=True)
        flush(path.parent)


def write_flushed(path: Path, data: bytes) -> None:
    """Write `data` to a new file and flush it to disk."""
    with storage_errors(path):
        _write_new(path, data)


def append_flushed(path: Path, data: bytes) -> None:
    """Append `data` to a file and flush it to disk; where that fails, the file keeps the length it had.

    A symbolic link is refused, so that a folder from elsewhere cannot direct the writing to another file.
    """
    with storage_errors(path):
        is_new = not os.path.lexists(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        try:
            length = os.fstat(descriptor).st_size
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, length)
                raise
        finally:
            os.close(descriptor)
        if is_new:
            flush(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; a disk that fills up half-way is an OSError, not a short count."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _write_new(path: Path, data: bytes) -> None:
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
    the file cannot be made (no right to write there, no space). A symbolic link is refused.
    """
    try:
        with storage_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except StorageError as error:
        cause = error.__cause__
        if wait or not isinstance(cause, OSError) or cause.errno not in (*_NOT_ALLOWED, *_NO_SPACE):
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
