"""JSON-lines files that survive a kill: each line is flushed to disk, and a half-written last line is dropped."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mint.atomic_files import append_flushed, flush, storage_errors, write_all
from mint.errors import CheckpointError

logger = logging.getLogger(__name__)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append `record` as one JSON line and wait until it is on disk. A half-written last line is cut off first.

    StorageError where it cannot be written; the file then has the lines it had.
    """
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    with storage_errors(path):
        _drop_partial_line(path)
    append_flushed(path, line.encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every record of the file, oldest first; [] where there is no file.

    A malformed last line is the trace of a killed process and is left out with a warning. A malformed line before
    the last is damage and raises CheckpointError with its number.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    is_complete = lines[-1] == b""
    numbered = [(i_line, line) for i_line, line in enumerate(lines, start=1) if line.strip()]
    records: list[dict[str, Any]] = []
    for i_line, line in numbered:
        is_last = i_line == numbered[-1][0]
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
        except (ValueError, RecursionError) as error:
            if is_last:
                logger.warning("%s: line %d is half-written and is left out", path, i_line)
                break
            raise CheckpointError(
                f"{path}: line {i_line} is not a JSON object ({error}); repair or remove the line"
            ) from error
        if is_last and not is_complete:
            # A record without its newline may have lost its tail and still parse (a cut-off number does).
            logger.warning("%s: line %d has no line end and is left out", path, i_line)
            break
        records.append(record)
    return records


def rewrite_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file's content in one atomic move."""
    text = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
    replace_file(path, text)


def replace_file(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place, so that a reader sees the old file or the new one.

    StorageError where it cannot be written; the old file then stays.
    """
    temporary = path.with_name(path.name + ".partial")
    with storage_errors(path):
        temporary.unlink(missing_ok=True)  # a killed process's, or a link that is not to be followed
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                write_all(descriptor, text.encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        finally:
            with suppress(OSError):  # whatever stopped the writing is the error to report
                temporary.unlink(missing_ok=True)
        flush(path.parent)


def _drop_partial_line(path: Path) -> None:
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
        logger.warning("%s: a half-written last line is dropped", path)
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
