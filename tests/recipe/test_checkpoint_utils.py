"""checkpoints.jsonl: records, resume checks, and saving."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import tinker

import mint
from mint.errors import CheckpointError, InvalidRequest
from recipe.checkpoint_utils import (
    CheckpointRecord,
    RunIdentity,
    check_resume_identity,
    find_resume_record,
    get_last_checkpoint,
    load_records,
    open_training_client,
    save_checkpoint,
)

RECORD = CheckpointRecord(
    "000010", 10, state_path="mint://r/weights/000010", base_model="mint-tiny", renderer="qwen3", lora_rank=8
)


def write(folder: Path, text: str) -> None:
    (folder / "checkpoints.jsonl").write_text(text, encoding="utf-8")


def test_unknown_keys_survive_reading_and_writing() -> None:
    values = {"name": "a", "step": 1, "loop_state": {"cursor": 3}, "batch": 7, "note": None}
    assert CheckpointRecord.from_dict(values).extra == {"batch": 7, "note": None}
    assert CheckpointRecord.from_dict(values).to_dict() == values


def test_last_checkpoint_is_the_newest_with_the_required_path(tmp_path: Path) -> None:
    write(
        tmp_path,
        '{"name": "a", "step": 1, "state_path": "mint://r/weights/a"}\n'
        '{"name": "b", "step": 2, "sampler_path": "mint://r/sampler_weights/b"}\n',
    )
    last_state, last_sampler = get_last_checkpoint(tmp_path), get_last_checkpoint(tmp_path, "sampler_path")
    assert last_state is not None and last_state.name == "a"
    assert last_sampler is not None and last_sampler.name == "b"
    assert get_last_checkpoint(tmp_path, "batch") is None


async def test_new_folder_has_no_records(service: mint.ServiceClient, tmp_path: Path) -> None:
    assert load_records(tmp_path / "new") == []
    assert await find_resume_record(tmp_path / "new", RunIdentity("mint-tiny", 8, "qwen3"), service) is None


def test_half_written_last_record_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, '{"name": "a", "step": 1}\n{"name": "b", "st')
    with caplog.at_level(logging.WARNING):
        assert [record.name for record in load_records(tmp_path)] == ["a"]
    assert "line 2 is half-written" in caplog.text


def test_record_without_a_step_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="has no step"):
        CheckpointRecord.from_dict({"name": "a"})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"base_model": "other"},
            "model_name='other', but the run in this log_path was made with model_name='mint-tiny'",
        ),
        ({"lora_rank": 16}, "lora_rank=16, but the run in this log_path was made with lora_rank=8"),
        ({"renderer_name": "role_colon"}, "renderer_name='role_colon', but .* renderer_name='qwen3'.*another log_path"),
    ],
)
def test_resume_with_another_model_rank_or_renderer_is_refused(changed: dict[str, Any], message: str) -> None:
    same: dict[str, Any] = {"base_model": "mint-tiny", "lora_rank": 8, "renderer_name": "qwen3"}
    check_resume_identity(RECORD, **same)
    with pytest.raises(InvalidRequest, match=message):
        check_resume_identity(RECORD, **{**same, **changed})


def test_two_names_of_one_folder_are_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    record = CheckpointRecord("a", 1, base_model=str(tmp_path / "model"))
    check_resume_identity(record, base_model="model", lora_rank=8, renderer_name=None)


async def test_saved_checkpoint_is_recorded_with_paths_that_load(
    service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    identity = RunIdentity(str(tiny_model_dir), 4, "qwen3")
    client = await open_training_client(service, identity, seed=1)
    saved = await save_checkpoint(
        client, "000003", tmp_path, step=3, identity=identity, ttl_seconds=3600, loop_state={"cursor": [1, 2]}
    )
    assert load_records(tmp_path) == [saved]
    assert (saved.step, saved.loop_state, saved.lora_rank) == (3, {"cursor": [1, 2]}, 4)
    assert saved.state_path is not None and saved.state_path.startswith("mint://")
    assert saved.sampler_path is not None
    await service.create_sampling_client_async(model_path=saved.sampler_path)
    record = await find_resume_record(tmp_path, identity, service)
    await open_training_client(service, identity, seed=1, record=record)


async def test_failed_save_leaves_no_record(service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path) -> None:
    identity = RunIdentity(str(tiny_model_dir), 4)
    client = await open_training_client(service, identity, seed=1)
    await save_checkpoint(client, "same", tmp_path, step=1, kind="state", identity=identity)
    with pytest.raises(mint.MintError):
        await save_checkpoint(client, "same", tmp_path, step=2, kind="state", identity=identity)
    assert [record.step for record in load_records(tmp_path)] == [1]


async def test_loading_weights_of_another_rank_is_refused(
    service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    identity = RunIdentity(str(tiny_model_dir), 4)
    client = await open_training_client(service, identity, seed=1)
    saved = await save_checkpoint(client, "a", tmp_path, step=1, kind="state", identity=identity)
    with pytest.raises(InvalidRequest, match=r"lora_rank=8, but load_checkpoint_path='mint://.*has lora_rank=4"):
        await open_training_client(
            service, RunIdentity(str(tiny_model_dir), 8), seed=1, load_checkpoint_path=saved.state_path
        )


class Server:
    """A remote service that has some checkpoints, refuses others, and fails for some reason of its own on the rest."""

    def __init__(self, known: set[str], failure: Exception | None = None) -> None:
        self.known = known
        self.failure = failure

    def create_rest_client(self) -> Server:
        return self

    async def get_weights_info_by_tinker_path(self, path: str) -> None:
        if path not in self.known:
            raise self.failure or answer(tinker.NotFoundError, "no such weights")

    async def create_training_client_from_state_with_optimizer_async(self, path: str, user_metadata: Any) -> str:
        await self.get_weights_info_by_tinker_path(path)
        return path


def answer(kind: type[tinker.APIError], text: str) -> Exception:
    """An error of the SDK without the HTTP exchange that it usually comes from."""
    return kind.__new__(kind, text)


async def resumed_on(server: Any, log_path: Path) -> Any:
    write(
        log_path,
        '{"name": "a", "step": 1, "state_path": "tinker://r/weights/a"}\n'
        '{"name": "b", "step": 2, "state_path": "tinker://r/weights/b"}\n',
    )
    identity = RunIdentity("some-model", 8)
    record = await find_resume_record(log_path, identity, server)
    return await open_training_client(server, identity, seed=0, record=record)


async def test_a_checkpoint_that_a_server_no_longer_has_is_named_and_an_older_one_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        opened = await resumed_on(Server({"tinker://r/weights/a"}), tmp_path)
    assert opened == "tinker://r/weights/a"
    assert "checkpoint 'b', step 2, is not used: the server cannot give tinker://r/weights/b" in caplog.text
    assert (
        await resumed_on(Server({"tinker://r/weights/a", "tinker://r/weights/b"}), tmp_path) == "tinker://r/weights/b"
    )


async def test_a_server_without_any_of_the_checkpoints_says_so_where_one_is_opened(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot give tinker://r/weights/b .*remove its line from checkpoints"):
        await resumed_on(Server(set()), tmp_path)


async def test_a_server_that_cannot_be_reached_says_nothing_about_a_checkpoint(tmp_path: Path) -> None:
    lost = answer(tinker.APIConnectionError, "connection lost")
    with pytest.raises(tinker.APIConnectionError):
        await resumed_on(Server({"tinker://r/weights/a"}, lost), tmp_path)
