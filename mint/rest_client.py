"""RestClient: lists and manages training runs and checkpoints, on local storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeVar

from mint.checkpoint_archive import write_archive
from mint.checkpoint_path import KINDS, CheckpointPath
from mint.checkpoint_store import CheckpointInfo, CheckpointStore, RunInfo
from mint.errors import InvalidRequest, nearest_name
from mint.futures import APIFuture

if TYPE_CHECKING:
    from mint import types

T = TypeVar("T")
AccessScope = Literal["owned", "accessible"]

_CHECKPOINT_TYPES: dict[str, Literal["training", "sampler"]] = {"weights": "training", "sampler_weights": "sampler"}


@dataclass(frozen=True)
class CheckpointArchiveUrl:
    """Where the archive of a checkpoint can be read: a file:// URL, valid until `expires` (None: for good)."""

    url: str
    expires: datetime | None = None


class RestClient:
    """The tinker SDK's RestClient over a `CheckpointStore`: the same methods, arguments and results.

    Each method returns an APIFuture that is done; errors (NotFound, InvalidRequest, CheckpointError) are raised by its
    `.result()` or `await`. Each has an `_async` form. Paths are `mint://...`; `tinker://...` is read as the same.
    access_scope makes no difference here: everything on this machine is owned.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def list_training_runs(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: AccessScope = "owned",
        project_id: str | None = None,
    ) -> APIFuture[types.TrainingRunsResponse]:
        """Training runs, the most recently used first. Local runs belong to no project, so project_id must be None."""
        del access_scope

        def listed() -> types.TrainingRunsResponse:
            from mint import types

            if project_id is not None:
                raise InvalidRequest(f"project_id={project_id!r}: local runs have no project; leave it out")
            runs = self._store.runs()
            page, cursor = _page(runs, limit, offset)
            return types.TrainingRunsResponse(training_runs=[_training_run(run) for run in page], cursor=cursor)

        return _done(listed)

    async def list_training_runs_async(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: AccessScope = "owned",
        project_id: str | None = None,
    ) -> types.TrainingRunsResponse:
        """Async form of `list_training_runs`."""
        return await self.list_training_runs(limit, offset, access_scope, project_id)

    def get_training_run(
        self, training_run_id: str, access_scope: AccessScope = "owned"
    ) -> APIFuture[types.TrainingRun]:
        """One training run by its id."""
        del access_scope
        return _done(lambda: _training_run(self._store.run(training_run_id)))

    async def get_training_run_async(
        self, training_run_id: str, access_scope: AccessScope = "owned"
    ) -> types.TrainingRun:
        """Async form of `get_training_run`."""
        return await self.get_training_run(training_run_id, access_scope)

    def get_training_run_by_tinker_path(
        self, tinker_path: str, access_scope: AccessScope = "owned"
    ) -> APIFuture[types.TrainingRun]:
        """The training run that a checkpoint belongs to."""
        del access_scope
        return _done(lambda: _training_run(self._store.run(CheckpointPath.parse(tinker_path).run_id)))

    async def get_training_run_by_tinker_path_async(
        self, tinker_path: str, access_scope: AccessScope = "owned"
    ) -> types.TrainingRun:
        """Async form of `get_training_run_by_tinker_path`."""
        return await self.get_training_run_by_tinker_path(tinker_path, access_scope)

    def get_weights_info_by_tinker_path(self, tinker_path: str) -> APIFuture[types.WeightsInfoResponse]:
        """Base model and LoRA shape of a checkpoint."""

        def info() -> types.WeightsInfoResponse:
            from mint import types

            manifest = self._store.manifest(tinker_path)
            return types.WeightsInfoResponse(
                base_model=manifest.base_model,
                is_lora=True,
                lora_rank=manifest.lora.rank,
                train_unembed=manifest.lora.train_unembed,
                train_mlp=manifest.lora.train_mlp,
                train_attn=manifest.lora.train_attn,
            )

        return _done(info)

    async def get_weights_info_by_tinker_path_async(self, tinker_path: str) -> types.WeightsInfoResponse:
        """Async form of `get_weights_info_by_tinker_path`."""
        return await self.get_weights_info_by_tinker_path(tinker_path)

    def verify_checkpoint_from_tinker_path(self, tinker_path: str) -> APIFuture[None]:
        """Read every file of a checkpoint and compare it with what was saved; the error names the file that is wrong.
        Only here: a server looks after its own storage."""
        return _done(lambda: self._verify(tinker_path))

    async def verify_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """Async form of `verify_checkpoint_from_tinker_path`; the event loop goes on meanwhile."""
        await asyncio.to_thread(self._verify, tinker_path)

    def _verify(self, tinker_path: str) -> None:
        self._store.verify(tinker_path)

    def get_weights_sha256_by_tinker_path(self, tinker_path: str) -> APIFuture[str]:
        """SHA-256 of the adapter's weights as they were saved, in hexadecimal: equal for equal weights, whatever the
        checkpoint is called. Only here: a server does not tell."""
        return _done(lambda: self._store.manifest(tinker_path).files["adapter_model.safetensors"].sha256)

    async def get_weights_sha256_by_tinker_path_async(self, tinker_path: str) -> str:
        """Async form of `get_weights_sha256_by_tinker_path`."""
        return await self.get_weights_sha256_by_tinker_path(tinker_path)

    def list_checkpoints(self, training_run_id: str) -> APIFuture[types.CheckpointsListResponse]:
        """The checkpoints of one training run, both kinds, the oldest first."""

        def listed() -> types.CheckpointsListResponse:
            from mint import types

            found = self._store.checkpoints(training_run_id)
            return types.CheckpointsListResponse(checkpoints=[_checkpoint(info) for info in found])

        return _done(listed)

    async def list_checkpoints_async(self, training_run_id: str) -> types.CheckpointsListResponse:
        """Async form of `list_checkpoints`."""
        return await self.list_checkpoints(training_run_id)

    def list_user_checkpoints(self, limit: int = 100, offset: int = 0) -> APIFuture[types.CheckpointsListResponse]:
        """The checkpoints of all training runs, the newest first."""

        def listed() -> types.CheckpointsListResponse:
            from mint import types

            page, cursor = _page(self._store.checkpoints()[::-1], limit, offset)
            return types.CheckpointsListResponse(checkpoints=[_checkpoint(info) for info in page], cursor=cursor)

        return _done(listed)

    async def list_user_checkpoints_async(self, limit: int = 100, offset: int = 0) -> types.CheckpointsListResponse:
        """Async form of `list_user_checkpoints`."""
        return await self.list_user_checkpoints(limit, offset)

    def delete_checkpoint(self, training_run_id: str, checkpoint_id: str) -> APIFuture[None]:
        """Delete a checkpoint by run and id (`weights/<name>` or `sampler_weights/<name>`)."""
        return _done(lambda: self._store.delete(_path(training_run_id, checkpoint_id)))

    async def delete_checkpoint_async(self, training_run_id: str, checkpoint_id: str) -> None:
        """Async form of `delete_checkpoint`."""
        await self.delete_checkpoint(training_run_id, checkpoint_id)

    def delete_checkpoint_from_tinker_path(self, tinker_path: str) -> APIFuture[None]:
        """Delete a checkpoint by its path."""
        return _done(lambda: self._store.delete(tinker_path))

    async def delete_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """Async form of `delete_checkpoint_from_tinker_path`."""
        await self.delete_checkpoint_from_tinker_path(tinker_path)

    def set_checkpoint_ttl_from_tinker_path(self, tinker_path: str, ttl_seconds: int | None) -> APIFuture[None]:
        """Let a checkpoint expire `ttl_seconds` from now (any positive number), or never (None)."""
        return _done(lambda: self._store.set_ttl(tinker_path, ttl_seconds))

    async def set_checkpoint_ttl_from_tinker_path_async(self, tinker_path: str, ttl_seconds: int | None) -> None:
        """Async form of `set_checkpoint_ttl_from_tinker_path`."""
        await self.set_checkpoint_ttl_from_tinker_path(tinker_path, ttl_seconds)

    def get_checkpoint_archive_url(self, training_run_id: str, checkpoint_id: str) -> APIFuture[CheckpointArchiveUrl]:
        """Write the checkpoint as a .tar.gz under <home>/archives, after checking it, and say where it is."""
        return _done(lambda: self._archive(_path(training_run_id, checkpoint_id)))

    async def get_checkpoint_archive_url_async(self, training_run_id: str, checkpoint_id: str) -> CheckpointArchiveUrl:
        """Async form of `get_checkpoint_archive_url`."""
        return await self.get_checkpoint_archive_url(training_run_id, checkpoint_id)

    def get_checkpoint_archive_url_from_tinker_path(self, tinker_path: str) -> APIFuture[CheckpointArchiveUrl]:
        """Like `get_checkpoint_archive_url`, by the checkpoint's path."""
        return _done(lambda: self._archive(CheckpointPath.parse(tinker_path)))

    async def get_checkpoint_archive_url_from_tinker_path_async(self, tinker_path: str) -> CheckpointArchiveUrl:
        """Async form of `get_checkpoint_archive_url_from_tinker_path`."""
        return await self.get_checkpoint_archive_url_from_tinker_path(tinker_path)

    def _archive(self, path: CheckpointPath) -> CheckpointArchiveUrl:
        target = self._store.home / "archives" / path.run_id / path.kind / f"{path.name}.tar.gz"
        return CheckpointArchiveUrl(write_archive(self._store, path, target).as_uri())


def _done(answer: Callable[[], T]) -> APIFuture[T]:
    try:
        return APIFuture[T].completed(answer())
    except Exception as error:  # handed on: raised where the future's result is asked for, as with a server
        return APIFuture[T].failed(error)


def _path(training_run_id: str, checkpoint_id: str) -> CheckpointPath:
    kind, _, name = checkpoint_id.partition("/")
    if kind not in KINDS:
        form = "weights/<name> or sampler_weights/<name>"
        raise InvalidRequest(f"checkpoint_id={checkpoint_id!r}: must be {form}.{nearest_name(kind, KINDS)}")
    return CheckpointPath(training_run_id, kind, name)


def _page(items: Sequence[T], limit: int, offset: int) -> tuple[Sequence[T], types.Cursor]:
    from mint import types

    if limit < 0 or offset < 0:
        raise InvalidRequest(f"limit={limit}, offset={offset}: neither may be negative")
    return items[offset : offset + limit], types.Cursor(offset=offset, limit=limit, total_count=len(items))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _checkpoint(info: CheckpointInfo) -> types.Checkpoint:
    from mint import types

    return types.Checkpoint(
        checkpoint_id=info.path.checkpoint_id,
        checkpoint_type=_CHECKPOINT_TYPES[info.path.kind],
        time=_time(info.created_at),
        tinker_path=str(info.path),
        size_bytes=info.size_bytes,
        user_metadata=info.manifest.extra.get("user_metadata") if info.manifest else None,
        expires_at=_time(info.expires_at) if info.expires_at is not None else None,
    )


def _training_run(run: RunInfo) -> types.TrainingRun:
    from mint import types

    newest = {info.path.kind: _checkpoint(info) for info in run.checkpoints}
    return types.TrainingRun(
        training_run_id=run.run_id,
        base_model=run.base_model,
        model_owner="local",
        is_lora=True,
        corrupted=any(info.problem is not None for info in run.checkpoints),
        lora_rank=run.lora.rank,
        last_request_time=_time(run.last_request_at),
        last_checkpoint=newest.get("weights"),
        last_sampler_checkpoint=newest.get("sampler_weights"),
        user_metadata=dict(run.user_metadata) if run.user_metadata is not None else None,
    )
