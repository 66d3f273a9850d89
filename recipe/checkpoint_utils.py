"""A run's checkpoints.jsonl, and starting or resuming a training client from it.

A run is resumed from its newest checkpoint that is whole. One that is damaged or gone is named in a warning, an older
one is used, and the steps after that are done again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mint.atomic_files import check_writable, storage_errors
from mint.errors import CheckpointError, InvalidRequest, NotFound
from recipe import journal
from recipe.lora_targets import LoraTargets

if TYPE_CHECKING:
    import mint

logger = logging.getLogger(__name__)

CHECKPOINTS_FILE = "checkpoints.jsonl"
UNUSABLE_FILE = "checkpoints_unusable.jsonl"
FINAL_NAME = "final"


@dataclass(frozen=True)
class RunIdentity:
    """What must not change when a run is resumed."""

    base_model: str
    lora_rank: int
    renderer_name: str | None = None


@dataclass(frozen=True)
class CheckpointRecord:
    """One line of checkpoints.jsonl.

    step: optimizer steps (RL: iterations) done, which is also the index of the next one.
    state_path: mint:// path with optimizer, for resuming. sampler_path: mint:// path of weights only.
    loop_state: whatever the stage needs to go on exactly. extra: keys this version does not know, kept as they are.
    """

    name: str
    step: int
    state_path: str | None = None
    sampler_path: str | None = None
    loop_state: dict[str, Any] = field(default_factory=dict)
    base_model: str | None = None
    renderer: str | None = None
    lora_rank: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this record: known keys without the empty ones, then `extra`."""
        known = {name: getattr(self, name) for name in _KNOWN_KEYS}
        return {key: value for key, value in known.items() if value is not None} | self.extra

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CheckpointRecord:
        """The record of a JSON object; InvalidRequest when `name` or `step` is missing or a value has another type."""
        missing = [key for key in ("name", "step") if key not in values]
        if missing:
            raise InvalidRequest(f"checkpoint record {values!r} has no {' and no '.join(missing)}; remove the line")
        for key, kinds in _TYPES.items():
            if key in values and (not isinstance(values[key], kinds) or isinstance(values[key], bool)):
                raise InvalidRequest(
                    f"checkpoint record {values!r}: {key} is of type {type(values[key]).__name__}; remove the line"
                )
        known = {key: values[key] for key in _KNOWN_KEYS if key in values}
        return cls(**known, extra={key: value for key, value in values.items() if key not in _KNOWN_KEYS})

    @property
    def is_final(self) -> bool:
        """True for the checkpoint a stage saves when it is done."""
        return self.name == FINAL_NAME


_TYPES: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "step": (int,),
    "state_path": (str, type(None)),
    "sampler_path": (str, type(None)),
    "loop_state": (dict,),
    "base_model": (str, type(None)),
    "renderer": (str, type(None)),
    "lora_rank": (int, type(None)),
}
_KNOWN_KEYS = tuple(f.name for f in dataclasses.fields(CheckpointRecord) if f.name != "extra")


def load_records(log_path: str | Path) -> list[CheckpointRecord]:
    """Every recorded checkpoint of a run, oldest first; [] for a new run. A half-written last line is left out."""
    path = Path(log_path).expanduser() / CHECKPOINTS_FILE
    return [CheckpointRecord.from_dict(values) for values in journal.read_lines(path)]


def get_last_checkpoint(log_path: str | Path, required_key: str = "state_path") -> CheckpointRecord | None:
    """The newest record that has `required_key` (a field name or an extra key), or None."""
    for record in reversed(load_records(log_path)):
        value = getattr(record, required_key) if required_key in _KNOWN_KEYS else record.extra.get(required_key)
        if value is not None:
            return record
    return None


async def save_checkpoint(
    training_client: mint.TrainingClient,
    name: str,
    log_path: str | Path,
    *,
    step: int,
    identity: RunIdentity,
    kind: Literal["state", "sampler", "both"] = "both",
    ttl_seconds: int | None = None,
    loop_state: dict[str, Any] | None = None,
) -> CheckpointRecord:
    """Save a checkpoint and then record it in checkpoints.jsonl.

    step: the index of the next step. ttl_seconds: the checkpoint may be removed after this time; None keeps it.
    The line is written only once every part is complete, so a recorded checkpoint can always be loaded.
    """
    if kind not in ("state", "sampler", "both"):
        raise InvalidRequest(f"kind={kind!r}: must be 'state', 'sampler' or 'both'")
    state = training_client.save_state(name, ttl_seconds=ttl_seconds) if kind != "sampler" else None
    sampler = training_client.save_weights_for_sampler(name, ttl_seconds=ttl_seconds) if kind != "state" else None
    record = CheckpointRecord(
        name=name,
        step=step,
        state_path=(await state).path if state is not None else None,
        sampler_path=(await sampler).path if sampler is not None else None,
        loop_state=dict(loop_state or {}),
        base_model=identity.base_model,
        renderer=identity.renderer_name,
        lora_rank=identity.lora_rank,
    )
    folder = Path(log_path).expanduser()
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(journal.append_line, folder / CHECKPOINTS_FILE, record.to_dict())
    return record


def check_resume_identity(
    record: CheckpointRecord, *, base_model: str, lora_rank: int, renderer_name: str | None
) -> None:
    """Raise InvalidRequest when the run that wrote `record` had another model, LoRA rank or renderer."""
    wanted = {
        "model_name": (record.base_model, base_model),
        "lora_rank": (record.lora_rank, lora_rank),
        "renderer_name": (record.renderer, renderer_name),
    }
    for key, (recorded, configured) in wanted.items():
        if not _is_same(recorded, configured):
            raise InvalidRequest(
                f"{key}={configured!r}, but the run in this log_path was made with {key}={recorded!r} "
                f"(checkpoint {record.name!r} at step {record.step}); set {key}={recorded!r} to resume it, or use "
                "another log_path to start a new run"
            )


async def find_resume_record(
    log_path: str | Path, identity: RunIdentity, service: mint.ServiceClient
) -> CheckpointRecord | None:
    """The record to resume from, or None for a new run.

    That is the newest whose checkpoint is whole: on local storage every byte is compared with what was saved, a server
    is asked whether it has it. Each newer one is named in a warning. Changes nothing on disk. Where a server has none,
    it is the newest: some servers cannot be asked, and opening it will tell.

    Raises InvalidRequest when the run was made with another identity, CheckpointError when checkpoints are recorded and
    none of them can be used, and StorageError when an unfinished run's log_path cannot be written.
    """
    folder = Path(log_path).expanduser()
    records = [record for record in load_records(folder) if record.state_path is not None]
    problems: list[str] = []
    for record in reversed(records):
        check_resume_identity(
            record,
            base_model=identity.base_model,
            lora_rank=identity.lora_rank,
            renderer_name=identity.renderer_name,
        )
        problem = await _problem_with(record, service)
        if problem is None:
            if problems:
                logger.warning("%s: going on from the older checkpoint %r, step %d", folder, record.name, record.step)
            if not record.is_final:
                check_writable(folder)
            return record
        logger.warning("%s: checkpoint %r, step %d, is not used: %s", folder, record.name, record.step, problem)
        problems.append(problem)
    if problems and not _is_embedded(service):
        return records[-1]
    if problems:
        raise CheckpointError(
            f"{folder / CHECKPOINTS_FILE} lists {len(problems)} checkpoints and none can be used; the newest: "
            f"{problems[0]}. Put the files back, or use another log_path to start a new run; nothing was changed"
        )
    check_writable(folder)
    return None


async def _problem_with(record: CheckpointRecord, service: mint.ServiceClient) -> str | None:
    """What is wrong with a recorded checkpoint, or None. Of a final one the weights for sampling count too: a finished
    stage hands them on."""
    assert record.state_path is not None, f"record {record.name!r} has no state_path"
    paths = [record.state_path]
    if record.is_final and record.sampler_path is not None:
        paths.append(record.sampler_path)
    for path in paths:
        try:
            await _check_checkpoint(path, service)
        except (CheckpointError, NotFound, InvalidRequest) as error:
            return str(error)
    return None


async def _check_checkpoint(path: str, service: mint.ServiceClient) -> None:
    rest = service.create_rest_client()
    if _is_embedded(service):
        await rest.verify_checkpoint_from_tinker_path_async(path)
        return
    with _server_refusals(path):
        await rest.get_weights_info_by_tinker_path(path)


def _is_embedded(service: object) -> bool:
    import mint

    return isinstance(service, mint.ServiceClient)


@contextmanager
def _server_refusals(path: str) -> Generator[None]:
    """Within the block, a server's answer that it cannot give this checkpoint is a CheckpointError. Anything else (no
    connection, no right, a fault of the server) says nothing about the checkpoint and passes."""
    import tinker

    try:
        yield
    except (tinker.BadRequestError, tinker.NotFoundError, tinker.UnprocessableEntityError) as error:
        raise CheckpointError(
            f"the server cannot give {path} ({error}); to go on from an older checkpoint, remove its line from "
            f"{CHECKPOINTS_FILE}"
        ) from error


def set_aside_later_records(log_path: str | Path, step: int) -> None:
    """Move the records of steps after `step` to checkpoints_unusable.jsonl, for a run that goes on from `step`.

    They could not be used, and must not come back half-way through the steps that are done again (a disk that was not
    mounted for a while): metrics.jsonl no longer has their lines. The caller holds the run's lock.
    """
    path = Path(log_path) / CHECKPOINTS_FILE
    records = journal.read_lines(path)
    later = [record for record in records if record["step"] > step]
    if later:
        for record in later:
            journal.append_line(path.with_name(UNUSABLE_FILE), record)
        journal.rewrite_lines(path, [record for record in records if record["step"] <= step])


async def open_training_client(
    service: mint.ServiceClient,
    identity: RunIdentity,
    *,
    seed: int,
    record: CheckpointRecord | None = None,
    load_checkpoint_path: str | None = None,
    lora_targets: LoraTargets | None = None,
) -> mint.TrainingClient:
    """The training client a stage works with.

    record given (see find_resume_record): that checkpoint with its optimizer, to resume the run. Otherwise
    load_checkpoint_path given: those weights and a fresh optimizer. Otherwise: a new adapter drawn with `seed`,
    on `lora_targets` (None: on every matrix).
    Raises InvalidRequest when a loaded checkpoint has another base model or LoRA rank than `identity`.
    """
    metadata = {"renderer_name": identity.renderer_name} if identity.renderer_name else {}
    if record is not None:
        assert record.state_path is not None, f"record {record.name!r} has no state_path to resume from"
        with nullcontext() if _is_embedded(service) else _server_refusals(record.state_path):
            return await service.create_training_client_from_state_with_optimizer_async(
                record.state_path, user_metadata=metadata
            )
    if load_checkpoint_path is None:
        targets = lora_targets or LoraTargets()
        return await service.create_lora_training_client_async(
            identity.base_model,
            rank=identity.lora_rank,
            seed=seed,
            train_mlp=targets.train_mlp,
            train_attn=targets.train_attn,
            train_unembed=targets.train_unembed,
            user_metadata=metadata,
        )
    client = await service.create_training_client_from_state_async(load_checkpoint_path, user_metadata=metadata)
    loaded = await client.get_info_async()
    for key, found, configured in (
        ("model_name", loaded.model_name, identity.base_model),
        ("lora_rank", loaded.lora_rank, identity.lora_rank),
    ):
        if not _is_same(found, configured):
            raise InvalidRequest(
                f"{key}={configured!r}, but load_checkpoint_path={load_checkpoint_path!r} has {key}={found!r}; set "
                f"{key}={found!r} or load another checkpoint"
            )
    return client


def _is_same(recorded: str | int | None, configured: str | int | None) -> bool:
    """True when equal, when one side does not say, and for two names of one folder."""
    if recorded is None or configured is None or recorded == configured:
        return True
    if not isinstance(recorded, str) or not isinstance(configured, str):
        return False
    return Path(recorded).is_dir() and Path(recorded).resolve() == Path(configured).resolve()
