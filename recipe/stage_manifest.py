"""stage_manifest.json: what a stage was made from, and what it made.

Written when a stage begins, with the checkpoints null, and again when it is complete, with the checkpoints in it. A
stage that is started again is compared with it: a stage whose parent or reward has changed is refused, since half of it
would belong to one and half to the other. Checkpoints count as the same when their weights are, whatever they are
called. Nothing in the file depends on the clock or on log_path, so that equal runs write equal bytes, the names of
checkpoints aside.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mint.atomic_files import check_writable, write_atomically
from mint.errors import InvalidRequest, MintError, StorageError
from recipe.config_record import config_to_json

if TYPE_CHECKING:
    import mint
    from recipe.checkpoint_utils import CheckpointRecord, RunIdentity
    from renderers import Renderer

logger = logging.getLogger(__name__)

MANIFEST_FILE = "stage_manifest.json"
_VERSIONED = ("mint-recipes", "torch", "transformers", "peft", "numpy")
# Where the run is, and what follows from stages before it: parent and reward say the latter.
_NOT_HASHED = re.compile(r"(.*\.)?(log_path|load_checkpoint_path|base_url|scorer)(\..*)?")


class StageChanged(InvalidRequest):
    """A stage in a folder began from another checkpoint, or with another reward, than it is given now."""


@dataclass(frozen=True)
class Origin:
    """Checkpoints that a stage builds on.

    paths: mint:// paths, in order; [] where it builds on none. sha256: of all their weights, in hexadecimal; None where
    that is not known (a server does not tell) and where there are none.
    """

    paths: list[str]
    sha256: str | None = None

    def is_same(self, other: Origin) -> bool:
        """Whether both are the same weights, as far as can be told."""
        if self.paths == other.paths:
            return True
        return bool(self.paths) and self.sha256 is not None and self.sha256 == other.sha256


@dataclass(frozen=True)
class StageManifest:
    """The file. stop_token_ids or stop_strings: what ends a reply; both [] where the stage has no renderer of its own.

    data_sha256: of the examples, training and held out; of the dataset's settings where `data_is_hashed_by` says so.
    parent: the state the stage started from; None: a new adapter. reward: the preference model's checkpoints; [] for
    the rule-based reward and for stages without one. config_sha256: of all settings but folders and earlier stages'
    checkpoints. state_path, sampler_path: None until the stage is complete.
    """

    stage: str
    base_model: str
    lora_rank: int
    renderer: str | None
    stop_token_ids: list[int]
    stop_strings: list[str]
    seed: int
    data_sha256: str
    data_is_hashed_by: str
    config_sha256: str
    parent: str | None
    parent_sha256: str | None
    reward: list[str]
    reward_sha256: str | None
    versions: dict[str, str]
    state_path: str | None = None
    sampler_path: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the stage had come to its end."""
        return self.state_path is not None

    @property
    def parent_origin(self) -> Origin:
        """The parent, to be compared."""
        return Origin([] if self.parent is None else [self.parent], self.parent_sha256)

    @property
    def reward_origin(self) -> Origin:
        """The reward, to be compared."""
        return Origin(self.reward, self.reward_sha256)


async def open_manifest(
    stage: str,
    config: Any,
    identity: RunIdentity,
    renderer: Renderer | None,
    data_sha256: str,
    service: mint.ServiceClient,
    *,
    record: CheckpointRecord | None,
    reward_paths: Sequence[str] = (),
    data_is_hashed_by: str = "examples",
) -> StageManifest:
    """The manifest of a stage that is about to begin or to go on in config.log_path, not written yet.

    record: the checkpoint it goes on from; None: it begins. Raises StageChanged where the folder holds a stage with
    another parent or reward, and warns where its data were others.
    """
    parent = config.load_checkpoint_path
    stop = list(renderer.get_stop_sequences()) if renderer is not None else []
    manifest = StageManifest(
        stage=stage,
        base_model=identity.base_model,
        lora_rank=identity.lora_rank,
        renderer=identity.renderer_name,
        stop_token_ids=[item for item in stop if isinstance(item, int)],
        stop_strings=[item for item in stop if isinstance(item, str)],
        seed=config.seed,
        data_sha256=data_sha256,
        data_is_hashed_by=data_is_hashed_by,
        config_sha256=config_sha256(config_to_json(config)),
        parent=parent,
        parent_sha256=await weights_sha256([parent] if parent else [], service),
        reward=list(reward_paths),
        reward_sha256=await weights_sha256(reward_paths, service),
        versions=_versions(),
    )
    recorded = read_manifest(config.log_path)
    if record is not None and recorded is not None:
        _check_unchanged(stage, Path(config.log_path).expanduser(), recorded, manifest)
    return manifest


def begin(log_path: str | Path, manifest: StageManifest) -> None:
    """Say what the stage in `log_path` is made from. The caller holds the run's lock."""
    _write(Path(log_path).expanduser(), manifest)


def complete(log_path: str | Path, manifest: StageManifest, record: CheckpointRecord) -> None:
    """Say that the stage has come to its end, with the checkpoint of `record`; where the file says so already it stays.

    A finished stage in a folder that this user may not write stays as it is.
    """
    folder = Path(log_path).expanduser()
    recorded = read_manifest(folder)
    if recorded is not None and recorded.is_complete and recorded.state_path == record.state_path:
        return
    try:
        check_writable(folder)
    except StorageError as error:
        logger.warning("no %s is written: %s", MANIFEST_FILE, error)
        return
    _write(folder, replace(manifest, state_path=record.state_path, sampler_path=record.sampler_path))


def read_manifest(log_path: str | Path) -> StageManifest | None:
    """The manifest in a stage's folder; None where there is none. InvalidRequest for a file that is no manifest."""
    file = Path(log_path).expanduser() / MANIFEST_FILE
    if not file.is_file():
        return None
    try:
        return StageManifest(**json.loads(file.read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"{file}: not a stage's manifest ({error}); remove it, and it is made again") from error


async def weights_sha256(paths: Sequence[str], service: mint.ServiceClient) -> str | None:
    """SHA-256 of the weights at all `paths`, in order; None for none, and where the storage cannot tell."""
    rest = service.create_rest_client()
    if not paths or not hasattr(rest, "get_weights_sha256_by_tinker_path_async"):
        return None
    digest = hashlib.sha256()
    for path in paths:
        try:
            digest.update(bytes.fromhex(await rest.get_weights_sha256_by_tinker_path_async(path)))
        except MintError:
            return None  # whoever loads the checkpoint says what is wrong with it
    return digest.hexdigest()


def config_sha256(record: Mapping[str, Any]) -> str:
    """SHA-256 of a result of `config_to_json`, without folders, checkpoints of earlier stages and memory addresses."""
    values = {name: value for name, value in record["values"].items() if not _NOT_HASHED.fullmatch(name)}
    text = json.dumps({**record, "values": values}, sort_keys=True)
    return hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", text).encode()).hexdigest()


def _check_unchanged(stage: str, folder: Path, recorded: StageManifest, now: StageManifest) -> None:
    for what, old, new in (
        ("started from", recorded.parent_origin, now.parent_origin),
        ("was rewarded by", recorded.reward_origin, now.reward_origin),
    ):
        if not old.is_same(new):
            nothing = "a new adapter" if what == "started from" else "the rule-based reward"
            raise StageChanged(
                f"the {stage} stage in log_path={str(folder)!r} {what} {', '.join(old.paths) or nothing}, and is now "
                f"given {', '.join(new.paths) or nothing}: its checkpoints belong to the former. Give the stage "
                f"another folder ({stage}.log_path=... in a pipeline), move {folder} away to train it anew, or "
                "put back what it had"
            )
    if recorded.data_sha256 != now.data_sha256:
        logger.warning(
            "the data of the %s stage in %s are not those it was started with (SHA-256 %s, now %s); what it has "
            "learned from the former stays in it",
            stage, folder, recorded.data_sha256[:12], now.data_sha256[:12],
        )  # fmt: skip


def _write(folder: Path, manifest: StageManifest) -> None:
    document = json.dumps(asdict(manifest), indent=2, ensure_ascii=False) + "\n"
    if (folder / MANIFEST_FILE).is_file() and (folder / MANIFEST_FILE).read_bytes() == document.encode():
        return
    write_atomically(folder / MANIFEST_FILE, document.encode())


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _VERSIONED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
