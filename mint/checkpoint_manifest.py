"""manifest.json: what a checkpoint is and which bytes belong to it.

Nothing in it depends on the clock, the run's name or the machine, so that equal runs write equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from mint.errors import CheckpointError, InvalidRequest

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class LoraShape:
    """Which adapter a checkpoint holds. Two adapters fit each other exactly when their shapes are equal."""

    rank: int
    alpha: float
    train_attn: bool
    train_mlp: bool
    train_unembed: bool


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint: its size in bytes and the SHA-256 of its content, in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """base_model: name or folder of the frozen weights.  step: optimizer steps taken.  parent: the checkpoint that
    training started from.  renderer: the chat format, where it is known.  extra: further keys, kept as they are."""

    base_model: str
    lora: LoraShape
    step: int
    parent: str | None = None
    renderer: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: Mapping[str, FileEntry] = field(default_factory=dict[str, FileEntry])

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together, the manifest itself not counted."""
        return sum(entry.bytes for entry in self.files.values())

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], files: Mapping[str, FileEntry]) -> Manifest:
        """From what the engine knows: base_model, lora, step, and optionally parent, renderer and further JSON."""
        return cls._read({**fields, "files": {name: asdict(entry) for name, entry in files.items()}})

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> Manifest:
        known = {"base_model", "lora", "step", "parent", "renderer", "files"}
        missing = {"base_model", "lora", "step", "files"} - values.keys()
        if missing:
            raise InvalidRequest(f"manifest: {', '.join(sorted(missing))} missing")
        try:
            return cls(
                base_model=_typed(values, "base_model", str),
                lora=_lora_shape(_typed(values, "lora", dict)),
                step=_typed(values, "step", int),
                parent=_typed_or_none(values, "parent"),
                renderer=_typed_or_none(values, "renderer"),
                extra={key: value for key, value in values.items() if key not in known},
                files={name: FileEntry(**entry) for name, entry in _typed(values, "files", dict).items()},
            )
        except TypeError as error:
            raise InvalidRequest(f"manifest: {error}") from error

    def to_json(self) -> bytes:
        """The bytes of manifest.json: sorted keys, and a checksum over everything else in it."""
        values = {
            **self.extra,
            "format_version": FORMAT_VERSION,
            "base_model": self.base_model,
            "lora": asdict(self.lora),
            "step": self.step,
            "parent": self.parent,
            "renderer": self.renderer,
            "files": {name: asdict(entry) for name, entry in self.files.items()},
        }
        return json_bytes({**values, "manifest_sha256": _sha256(json_bytes(values))})

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Manifest:
        """Read and check the bytes of manifest.json. CheckpointError, starting with `where`, when they are wrong."""
        try:
            parsed = json.loads(data)
            canonical = json_bytes(parsed)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{where}: {MANIFEST_NAME} is not JSON ({error}); it is damaged") from error
        if not isinstance(parsed, dict):
            raise CheckpointError(f"{where}: {MANIFEST_NAME} holds no object; it is damaged")
        values = cast("dict[str, Any]", parsed)
        version = values.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise CheckpointError(
                f"{where}: {MANIFEST_NAME} has format_version={version}, this version reads up to {FORMAT_VERSION}; "
                "upgrade mint-recipes"
            )
        is_canonical = canonical == data
        checksum = values.pop("manifest_sha256", None)
        if version != FORMAT_VERSION or not is_canonical or checksum != _sha256(json_bytes(values)):
            raise CheckpointError(f"{where}: {MANIFEST_NAME} does not match its own checksum; it is damaged")
        del values["format_version"]
        try:
            return cls._read(values)
        except InvalidRequest as error:
            raise CheckpointError(f"{where}: {error}") from error


def json_bytes(value: Any) -> bytes:
    """JSON with sorted keys and a final newline: the same value always gives the same bytes. NaN is refused."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def entry_of_bytes(data: bytes) -> FileEntry:
    """The manifest's line for a file with this content."""
    return FileEntry(bytes=len(data), sha256=_sha256(data))


def entry_of_file(path: Path) -> FileEntry:
    """The manifest's line for the file at `path`, read in pieces."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(bytes=file.tell(), sha256=digest)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _lora_shape(values: Mapping[str, Any]) -> LoraShape:
    shape = LoraShape(**values)
    kinds = {"rank": int, "alpha": (int, float), "train_attn": bool, "train_mlp": bool, "train_unembed": bool}
    for name, kind in kinds.items():
        value = values[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidRequest(f"manifest: lora.{name}={value!r} is of the wrong type")
    if shape.rank < 1:
        raise InvalidRequest(f"manifest: lora.rank={shape.rank}: must be at least 1")
    return shape


def _typed(values: Mapping[str, Any], key: str, kind: type[Any]) -> Any:
    value = values[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InvalidRequest(f"manifest: {key}={value!r} must be of type {kind.__name__}")
    return value


def _typed_or_none(values: Mapping[str, Any], key: str) -> str | None:
    return None if values.get(key) is None else _typed(values, key, str)
