"""Checkpoints on disk: complete or absent, checked when read, confined to their run's folder.

    <home>/runs/<run id>/run.json
    <home>/runs/<run id>/weights/<name>/{manifest.json, ...}            resumable state
    <home>/runs/<run id>/sampler_weights/<name>/{manifest.json, ...}    weights for sampling

A checkpoint is written under a temporary name in the folder it will live in, flushed to disk with its manifest last,
and renamed. Writers hold the run's lock, which the operating system drops when a process dies; so a temporary folder
seen by the next holder of the lock is a dead process's, and is removed. When a checkpoint expires is kept in
expires.json, outside what the manifest covers. No torch here.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mint.atomic_files import check_writable, file_lock, flush, remove, storage_errors, write_atomically
from mint.checkpoint_folder import EXPIRY_NAME, compare, expiry_bytes, expiry_of, read_manifest, reading, seal
from mint.checkpoint_manifest import (
    MANIFEST_NAME,
    LoraShape,
    Manifest,
    entry_of_bytes,
    entry_of_file,
    json_bytes,
)
from mint.checkpoint_path import KINDS, CheckpointPath, check_name, is_name
from mint.errors import CheckpointError, InvalidRequest, NotFound, nearest_name

logger = logging.getLogger(__name__)

RUN_NAME = "run.json"

# Folders on their way in or out: <prefix><name>~<random>. Names of checkpoints hold no "~" and start with no dot.
_UNFINISHED = ".unfinished~"  # being written: removed when found
_REPLACED = ".replaced~"  # the old one while an overwrite renames: put back when found without its successor
_DELETED = ".deleted~"  # being deleted: removed when found


@dataclass(frozen=True)
class CheckpointInfo:
    """One checkpoint as listings show it. created_at and expires_at are seconds since the epoch. Where its manifest or
    expiry cannot be read, `problem` says why and manifest may be None."""

    path: CheckpointPath
    manifest: Manifest | None
    created_at: float
    size_bytes: int
    expires_at: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class RunInfo:
    """One training run. last_request_at: seconds since the epoch of its newest checkpoint, else of its creation."""

    run_id: str
    base_model: str
    lora: LoraShape
    last_request_at: float
    user_metadata: Mapping[str, str] | None
    checkpoints: tuple[CheckpointInfo, ...]


class CheckpointStore:
    """All runs and checkpoints under one home folder: `home`, else $MINT_HOME, else ~/.mint. Safe for use from several
    threads and processes. Creating the object touches nothing on disk. `clock` decides when checkpoints expire."""

    def __init__(self, home: str | os.PathLike[str] | None = None, clock: Callable[[], float] = time.time) -> None:
        chosen = home or os.environ.get("MINT_HOME") or Path.home() / ".mint"
        self.home = Path(chosen).expanduser().absolute()
        self._clock = clock

    @property
    def runs_folder(self) -> Path:
        """The folder that holds one folder a run."""
        return self.home / "runs"

    def check_writable(self) -> None:
        """StorageError when runs cannot be stored here: worth asking before long work."""
        check_writable(self.runs_folder)

    def register_run(
        self, run_id: str, *, base_model: str, lora: LoraShape, user_metadata: Mapping[str, str] | None = None
    ) -> None:
        """Record a training run, so that it is listed before its first checkpoint. InvalidRequest when it exists."""
        with self._locked(run_id, create=True) as folder:
            if (folder / RUN_NAME).exists():
                raise InvalidRequest(f"training run {run_id!r} exists already in {self.runs_folder}")
            self._write_run(folder, base_model, lora, user_metadata)

    def run(self, run_id: str) -> RunInfo:
        """One run with its checkpoints; NotFound when there is none of that name."""
        folder = self._run_folder(run_id)
        if not (folder / RUN_NAME).is_file():
            raise self._no_run(run_id)
        try:
            values = json.loads((folder / RUN_NAME).read_bytes())
            base_model, lora = str(values["base_model"]), LoraShape(**values["lora"])
            created_at, user_metadata = float(values["created_at"]), values["user_metadata"]
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"training run {run_id!r}: {folder / RUN_NAME} is damaged ({error!r}); restore that file, or delete "
                "its folder"
            ) from error
        checkpoints = tuple(self.checkpoints(run_id))
        last_request_at = max([created_at, *(checkpoint.created_at for checkpoint in checkpoints)])
        return RunInfo(run_id, base_model, lora, last_request_at, user_metadata, checkpoints)

    def runs(self) -> list[RunInfo]:
        """All runs, the most recently used first. One whose run.json is damaged is left out, with a warning."""
        found: list[RunInfo] = []
        for folder in _named_folders(self.runs_folder):
            if (folder / RUN_NAME).is_file():
                try:
                    found.append(self.run(folder.name))
                except CheckpointError as error:
                    logger.warning("%s; it is not listed", error)
        return sorted(found, key=lambda run: (-run.last_request_at, run.run_id))

    @contextmanager
    def writing(
        self,
        path: str | CheckpointPath,
        manifest_fields: Mapping[str, Any],
        *,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
    ) -> Generator[Path]:
        """Yields an empty folder to write the checkpoint's files into (no subfolders); when the block ends, they become
        the checkpoint `path` in one step. When the block raises, nothing is left and an old checkpoint stays.

        manifest_fields: base_model, lora, step, optionally parent, renderer and further JSON (see Manifest). An
        existing name is an InvalidRequest unless `overwrite`. The run is recorded when it was not. Blocks while another
        writer is at work in the same run, so do not nest two of one run.
        """
        path = CheckpointPath.parse(path)
        expires_at = self._expiry(ttl_seconds)
        shape = Manifest.from_fields(manifest_fields, {})
        with self._locked(path.run_id, create=True) as run_folder:
            self._clean(run_folder)
            kind_folder = self._confined(run_folder / path.kind, run_folder)
            target = kind_folder / path.name
            if os.path.lexists(target) and not overwrite:
                raise InvalidRequest(f"checkpoint {path} exists already; choose another name or pass overwrite=True")
            if not (run_folder / RUN_NAME).exists():
                self._write_run(run_folder, shape.base_model, shape.lora, None)
            unfinished = _aside(target, _UNFINISHED)
            with storage_errors(target):
                kind_folder.mkdir(exist_ok=True)
                flush(run_folder)
                unfinished.mkdir()
            try:
                yield unfinished
                with storage_errors(target):
                    seal(unfinished, manifest_fields, expires_at)
                    _put_in_place(unfinished, target)
            finally:
                with suppress(OSError):  # what cannot be removed now, the run's next writer removes
                    remove(unfinished)

    def manifest(self, path: str | CheckpointPath) -> Manifest:
        """The manifest, itself checked; the files it names are not. NotFound or CheckpointError."""
        path = CheckpointPath.parse(path)
        return read_manifest(path, self._folder(path))

    def read(self, path: str | CheckpointPath, file_name: str) -> bytes:
        """The content of one file, checked against the manifest: what is returned is what was checked."""
        path = CheckpointPath.parse(path)
        folder = self._folder(path)
        entry = read_manifest(path, folder).files.get(file_name)
        if entry is None:
            raise CheckpointError(f"checkpoint {path} has no {file_name}")
        with reading(path, file_name):
            data = self._file(path, folder, file_name).read_bytes()
        compare(path, file_name, entry, entry_of_bytes(data))
        return data

    def verify(self, path: str | CheckpointPath) -> dict[str, Path]:
        """Read every file and compare it with the manifest; CheckpointError names the first that is wrong. Returns
        where each file of the checkpoint is, the manifest included."""
        path = CheckpointPath.parse(path)
        folder = self._folder(path)
        files: dict[str, Path] = {MANIFEST_NAME: self._file(path, folder, MANIFEST_NAME)}
        for file_name, entry in sorted(read_manifest(path, folder).files.items()):
            files[file_name] = self._file(path, folder, file_name)
            with reading(path, file_name):
                compare(path, file_name, entry, entry_of_file(files[file_name]))
        return files

    def info(self, path: str | CheckpointPath) -> CheckpointInfo:
        """What listings show of one checkpoint; NotFound when it is absent or expired."""
        path = CheckpointPath.parse(path)
        return self._info(path, self._folder(path))

    def checkpoints(self, run_id: str | None = None) -> list[CheckpointInfo]:
        """The complete, unexpired checkpoints of one run or of all, the oldest first. Expired ones are deleted."""
        if run_id is not None and not self._run_folder(run_id).is_dir():
            raise self._no_run(run_id)
        found: list[CheckpointInfo] = []
        names = [run_id] if run_id else [folder.name for folder in _named_folders(self.runs_folder)]
        for run_folder in map(self._run_folder, names):
            with file_lock(run_folder / ".lock", wait=False) as is_locked:
                if is_locked:
                    self._clean(run_folder)
            for kind in KINDS:
                for folder in _named_folders(self._confined(run_folder / kind, run_folder)):
                    with suppress(FileNotFoundError):  # deleted by somebody else while it is being looked at
                        if (folder / MANIFEST_NAME).exists() and not self._is_expired(folder):
                            found.append(self._info(CheckpointPath(run_folder.name, kind, folder.name), folder))
        return sorted(found, key=lambda info: (info.created_at, info.path))

    def delete(self, path: str | CheckpointPath) -> None:
        """Remove a checkpoint, damaged or not; it disappears in one step. NotFound when there is none."""
        path = CheckpointPath.parse(path)
        with self._locked(path.run_id) as run_folder:
            folder = self._confined(run_folder / path.kind, run_folder) / path.name
            if not os.path.lexists(folder):
                raise self._no_checkpoint(path)
            with storage_errors(folder):
                _delete(folder)

    def set_ttl(self, path: str | CheckpointPath, ttl_seconds: int | None) -> None:
        """Let a checkpoint expire `ttl_seconds` from now, or never (None)."""
        path = CheckpointPath.parse(path)
        expires_at = self._expiry(ttl_seconds)
        with self._locked(path.run_id):
            folder = self._folder(path)
            if expires_at is None:
                with storage_errors(folder / EXPIRY_NAME):
                    remove(folder / EXPIRY_NAME)
            else:
                write_atomically(folder / EXPIRY_NAME, expiry_bytes(expires_at))

    def storage_bytes(self, run_id: str | None = None) -> int:
        """Bytes on disk of one run or of all, everything in their folders counted."""
        root = self._run_folder(run_id) if run_id else self.runs_folder
        return sum(path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())

    # Folders

    def _run_folder(self, run_id: str) -> Path:
        folder = self.runs_folder / check_name(run_id, "run id")
        if not _is_inside(folder, self.runs_folder):
            raise CheckpointError(
                f"{folder} is a link that leaves {self.runs_folder}; put the run's folder itself there"
            )
        return folder

    def _confined(self, inner: Path, run_folder: Path) -> Path:
        if not _is_inside(inner, run_folder):
            raise CheckpointError(f"{inner} is a link that leaves {run_folder}; put the files themselves there")
        return inner

    def _folder(self, path: CheckpointPath) -> Path:
        run_folder = self._run_folder(path.run_id)
        folder = self._confined(run_folder / path.kind / path.name, run_folder)
        if not folder.is_dir() and list(folder.parent.glob(f"{_REPLACED}{path.name}~*")):
            with self._locked(path.run_id):  # an overwrite is between its two renames, or was cut off there
                self._clean(run_folder)
        if not folder.is_dir():
            raise self._no_checkpoint(path)
        if not (folder / MANIFEST_NAME).exists():
            raise CheckpointError(
                f"checkpoint {path} is incomplete: {MANIFEST_NAME} is missing; delete it and save again"
            )
        expires_at = expiry_of(folder)
        if expires_at is not None and expires_at <= self._clock():
            raise NotFound(f"checkpoint {path} expired; save it again with a longer ttl_seconds or none")
        return folder

    def _file(self, path: CheckpointPath, folder: Path, file_name: str) -> Path:
        if not is_name(file_name):
            raise CheckpointError(
                f"checkpoint {path}: {MANIFEST_NAME} names {file_name!r}, which is not a plain file name"
            )
        file = self._confined(folder / file_name, self._run_folder(path.run_id))
        if not file.is_file():
            raise CheckpointError(f"checkpoint {path}: {file_name} is missing")
        return file

    @contextmanager
    def _locked(self, run_id: str, *, create: bool = False) -> Generator[Path]:
        folder = self._run_folder(run_id)
        if create and not folder.is_dir():
            with storage_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                flush(folder.parent)
        if not folder.is_dir():
            raise self._no_run(run_id)
        with file_lock(folder / ".lock"):
            yield folder

    def _clean(self, run_folder: Path) -> None:
        """Remove what dead processes left and what has expired. The caller holds the run's lock."""
        for kind in KINDS:
            kind_folder = self._confined(run_folder / kind, run_folder)
            for left_over in sorted(kind_folder.glob(".*~*")):
                name = left_over.name.partition("~")[2].rpartition("~")[0]
                if left_over.name.startswith(_REPLACED) and not os.path.lexists(kind_folder / name):
                    left_over.rename(kind_folder / name)
                else:
                    remove(left_over)
            for folder in _named_folders(kind_folder):
                if self._is_expired(folder):
                    _delete(folder)

    def _info(self, path: CheckpointPath, folder: Path) -> CheckpointInfo:
        created_at = (folder / MANIFEST_NAME).lstat().st_mtime
        size_bytes = sum(file.lstat().st_size for file in folder.iterdir())
        manifest = None
        try:
            self._confined(folder, self._run_folder(path.run_id))
            manifest = read_manifest(path, folder)
            return CheckpointInfo(path, manifest, created_at, size_bytes, expiry_of(folder))
        except CheckpointError as error:
            return CheckpointInfo(path, manifest, created_at, size_bytes, problem=str(error))

    # Expiry, run.json and messages

    def _expiry(self, ttl_seconds: int | None) -> float | None:
        if ttl_seconds is None:
            return None
        if ttl_seconds <= 0:
            raise InvalidRequest(f"ttl_seconds={ttl_seconds}: must be positive, or None to keep the checkpoint")
        return self._clock() + ttl_seconds

    def _is_expired(self, folder: Path) -> bool:
        try:
            expires_at = expiry_of(folder)
        except CheckpointError:
            return False  # unreadable: kept, and reported by `info` and `checkpoints`
        return expires_at is not None and expires_at <= self._clock()

    def _write_run(
        self, folder: Path, base_model: str, lora: LoraShape, user_metadata: Mapping[str, str] | None
    ) -> None:
        values = {
            "base_model": base_model,
            "lora": asdict(lora),
            "created_at": self._clock(),
            "user_metadata": dict(user_metadata) if user_metadata is not None else None,
        }
        write_atomically(folder / RUN_NAME, json_bytes(values))

    def _no_run(self, run_id: str) -> NotFound:
        known = [folder.name for folder in _named_folders(self.runs_folder)]
        return NotFound(f"no training run {run_id!r} in {self.runs_folder}.{nearest_name(run_id, known)}")

    def _no_checkpoint(self, path: CheckpointPath) -> NotFound:
        known = [folder.name for folder in _named_folders(self.runs_folder / path.run_id / path.kind)]
        return NotFound(f"no checkpoint {path} in {self.home}.{nearest_name(path.name, known)}")


def _is_inside(inner: Path, outer: Path) -> bool:
    """Whether `inner` lies in `outer` once links are followed; one that leads in a circle lies nowhere."""
    try:
        return inner.resolve().is_relative_to(outer.resolve())
    except (OSError, RuntimeError):
        return False


def _named_folders(parent: Path) -> list[Path]:
    """The folders in `parent` whose names are valid, sorted; none when it does not exist."""
    if not parent.is_dir():
        return []
    return sorted(child for child in parent.iterdir() if is_name(child.name) and child.is_dir())


def _aside(target: Path, prefix: str) -> Path:
    return target.with_name(f"{prefix}{target.name}~{secrets.token_hex(4)}")


def _put_in_place(unfinished: Path, target: Path) -> None:
    """Rename a complete checkpoint to its name; one that stands there goes only once the new one is in its place."""
    replaced = _aside(target, _REPLACED) if os.path.lexists(target) else None
    if replaced is not None:
        target.rename(replaced)
    unfinished.rename(target)
    flush(target.parent)
    if replaced is not None:
        remove(replaced)


def _delete(folder: Path) -> None:
    aside = _aside(folder, _DELETED)
    folder.rename(aside)
    flush(folder.parent)
    remove(aside)
