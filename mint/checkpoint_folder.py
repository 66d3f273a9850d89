"""One checkpoint folder: sealing it, reading its manifest and expiry, comparing its files with what was saved."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mint.atomic_files import flush, write_flushed
from mint.checkpoint_manifest import MANIFEST_NAME, FileEntry, Manifest, entry_of_bytes, entry_of_file, json_bytes
from mint.checkpoint_path import CheckpointPath
from mint.errors import CheckpointError

EXPIRY_NAME = "expires.json"


def seal(folder: Path, manifest_fields: Mapping[str, Any], expires_at: float | None) -> None:
    """Flush what was written, then add expires.json and, last, manifest.json."""
    entries: dict[str, FileEntry] = {}
    for file in sorted(folder.iterdir()):
        assert file.is_file(), f"{file.name}: a checkpoint holds files only"
        assert file.name not in (MANIFEST_NAME, EXPIRY_NAME), f"{file.name} is the store's to write"
        flush(file)
        entries[file.name] = entry_of_file(file)
    if expires_at is not None:
        write_flushed(folder / EXPIRY_NAME, expiry_bytes(expires_at))
    flush(folder)
    write_flushed(folder / MANIFEST_NAME, Manifest.from_fields(manifest_fields, entries).to_json())
    flush(folder)


def read_manifest(path: CheckpointPath, folder: Path) -> Manifest:
    """The manifest of the checkpoint `path`, whose files are in `folder`; CheckpointError when it is damaged."""
    with reading(path, MANIFEST_NAME):
        data = (folder / MANIFEST_NAME).read_bytes()
    return Manifest.from_json(data, f"checkpoint {path}")


@contextmanager
def reading(path: CheckpointPath, file_name: str) -> Generator[None]:
    """Within the block, a file that the disk does not give back is a CheckpointError that names it. One that is gone
    stays a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: {file_name} cannot be read ({error.strerror or error})") from error


def compare(path: CheckpointPath, file_name: str, expected: FileEntry, found: FileEntry) -> None:
    """CheckpointError, naming the file, unless it is what the manifest says."""
    if found.bytes != expected.bytes:
        raise CheckpointError(
            f"checkpoint {path}: {file_name} has {found.bytes} bytes where {expected.bytes} were saved"
        )
    if found.sha256 != expected.sha256:
        raise CheckpointError(f"checkpoint {path}: {file_name} is damaged: its SHA-256 is not the one that was saved")


def expiry_bytes(expires_at: float) -> bytes:
    """The content of expires.json. Its checksum keeps a damaged time from deleting a good checkpoint."""
    return json_bytes({"expires_at": expires_at, "sha256": _time_sha256(expires_at)})


def expiry_of(folder: Path) -> float | None:
    """When the checkpoint in `folder` expires, in seconds since the epoch; None for never."""
    file = folder / EXPIRY_NAME
    if not file.exists():
        return None
    try:
        values = json.loads(file.read_bytes())
        expires_at = float(values["expires_at"])
        if values["sha256"] != _time_sha256(expires_at):
            raise ValueError("it does not match its own checksum")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged ({error!r}); delete it to keep the checkpoint for good") from error
    return expires_at


def _time_sha256(expires_at: float) -> str:
    return entry_of_bytes(repr(expires_at).encode()).sha256
