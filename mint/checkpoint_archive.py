"""A checkpoint as one .tar.gz file."""

from __future__ import annotations

import gzip
import secrets
import tarfile
from contextlib import suppress
from pathlib import Path

from mint.atomic_files import flush, storage_errors
from mint.checkpoint_path import CheckpointPath
from mint.checkpoint_store import CheckpointStore


def write_archive(store: CheckpointStore, path: str | CheckpointPath, target: Path) -> Path:
    """Write the checkpoint to `target`, its files at the top level, after checking them against the manifest.

    Equal checkpoints give equal bytes. An archive that stands at `target` is replaced in one step.
    """
    files = store.verify(path)
    unfinished = target.with_name(f".{target.name}~{secrets.token_hex(4)}")
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _pack(files, unfinished)
            flush(unfinished)
            unfinished.replace(target)
        finally:
            with suppress(OSError):  # whatever stopped the writing is the error to report
                unfinished.unlink(missing_ok=True)
    return target


def _pack(files: dict[str, Path], target: Path) -> None:
    with (
        target.open("xb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, file_path in sorted(files.items()):
            member = tarfile.TarInfo(name)  # time, owner and mode stay at their defaults
            member.size = file_path.stat().st_size
            with file_path.open("rb") as file:
                archive.addfile(member, file)
