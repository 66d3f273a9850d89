from __future__ import annotations

import asyncio
import inspect
import os
import tarfile
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest
import tinker

from mint.checkpoint_manifest import LoraShape
from mint.checkpoint_store import CheckpointStore
from mint.errors import CheckpointError, InvalidRequest, NotFound
from mint.rest_client import RestClient

LORA = {"rank": 8, "alpha": 32, "train_attn": True, "train_mlp": False, "train_unembed": True}
FIELDS = {"base_model": "mint-tiny", "lora": LORA, "step": 3}
PATHS = ["mint://r1/weights/a", "mint://r1/sampler_weights/a", "mint://r2/weights/b"]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Two runs, three checkpoints, saved one second apart from 1970-01-01 00:00:10 on."""
    store = CheckpointStore(tmp_path, clock=lambda: 5.0)
    store.register_run("r1", base_model="mint-tiny", lora=LoraShape(**LORA), user_metadata={"team": "x"})
    for i, path in enumerate(PATHS):
        with store.writing(path, {**FIELDS, "user_metadata": {"index": str(i)}}) as folder:
            (folder / "data.bin").write_bytes(b"x" * i)
        os.utime(store.runs_folder / path.removeprefix("mint://") / "manifest.json", (10 + i, 10 + i))
    return store


@pytest.fixture
def client(store: CheckpointStore) -> RestClient:
    return RestClient(store)


def public_methods(cls: type) -> dict[str, inspect.Signature]:
    members = inspect.getmembers(cls, inspect.isfunction)
    return {name: inspect.signature(member) for name, member in members if not name.startswith("_")}


def test_methods_take_the_arguments_of_the_sdk() -> None:
    ours, theirs = public_methods(RestClient), public_methods(tinker.RestClient)
    archives = {"get_checkpoint_archive_url", "get_checkpoint_archive_url_from_tinker_path"}
    only_here = archives | {f"{name}_async" for name in archives} | {"get_weights_info_by_tinker_path_async"}
    for name in ("verify_checkpoint_from_tinker_path", "get_weights_sha256_by_tinker_path"):
        only_here |= {name, f"{name}_async"}
    assert ours.keys() - theirs.keys() == only_here
    for name in ours.keys() - only_here:
        expected = [(parameter.name, parameter.default) for parameter in theirs[name].parameters.values()]
        assert [(parameter.name, parameter.default) for parameter in ours[name].parameters.values()] == expected, name


def test_training_runs_come_newest_first_in_pages(client: RestClient) -> None:
    runs = client.list_training_runs().result()
    assert [run.training_run_id for run in runs.training_runs] == ["r2", "r1"]
    page = client.list_training_runs(limit=1, offset=1).result()
    assert [run.training_run_id for run in page.training_runs] == ["r1"]
    assert (page.cursor.offset, page.cursor.limit, page.cursor.total_count) == (1, 1, 2)
    with pytest.raises(InvalidRequest, match="limit=-1"):
        client.list_training_runs(limit=-1).result()


def test_a_training_run_tells_its_model_and_last_checkpoints(client: RestClient) -> None:
    run = client.get_training_run("r1").result()
    assert (run.base_model, run.is_lora, run.lora_rank, run.corrupted) == ("mint-tiny", True, 8, False)
    assert run.user_metadata == {"team": "x"}
    assert run.last_request_time == datetime(1970, 1, 1, 0, 0, 11, tzinfo=UTC)
    assert run.last_checkpoint is not None and run.last_checkpoint.tinker_path == PATHS[0]
    assert run.last_sampler_checkpoint is not None and run.last_sampler_checkpoint.tinker_path == PATHS[1]
    assert client.get_training_run_by_tinker_path("tinker://r1/weights/gone").result() == run


def test_a_run_with_a_damaged_manifest_is_marked_corrupted(client: RestClient, store: CheckpointStore) -> None:
    (store.runs_folder / "r1" / "weights" / "a" / "manifest.json").write_bytes(b"{}")
    assert client.get_training_run("r1").result().corrupted is True


def test_checkpoints_of_a_run_and_of_all_runs(client: RestClient) -> None:
    first, second = client.list_checkpoints("r1").result().checkpoints
    assert (first.checkpoint_id, first.checkpoint_type, first.tinker_path) == ("weights/a", "training", PATHS[0])
    assert (second.checkpoint_id, second.checkpoint_type) == ("sampler_weights/a", "sampler")
    assert second.size_bytes is not None and first.size_bytes is not None and second.size_bytes == first.size_bytes + 1
    assert first.user_metadata == {"index": "0"} and first.expires_at is None
    listed = client.list_user_checkpoints(limit=2).result()
    assert [checkpoint.tinker_path for checkpoint in listed.checkpoints] == [PATHS[2], PATHS[1]]
    assert listed.cursor is not None and listed.cursor.total_count == 3


def test_weights_info_tells_what_a_loader_needs(client: RestClient) -> None:
    info = client.get_weights_info_by_tinker_path("tinker://r2/weights/b").result()
    assert (info.base_model, info.lora_rank) == ("mint-tiny", 8)
    assert (info.train_attn, info.train_mlp, info.train_unembed) == (True, False, True)


def test_a_ttl_set_and_removed_shows_in_the_listing(client: RestClient) -> None:
    client.set_checkpoint_ttl_from_tinker_path(PATHS[2], 3600).result()
    (checkpoint,) = client.list_checkpoints("r2").result().checkpoints
    assert checkpoint.expires_at == datetime(1970, 1, 1, 1, 0, 5, tzinfo=UTC)
    client.set_checkpoint_ttl_from_tinker_path(PATHS[2], None).result()
    assert client.list_checkpoints("r2").result().checkpoints[0].expires_at is None


def test_deleting_by_id_and_by_path(client: RestClient) -> None:
    client.delete_checkpoint("r1", "sampler_weights/a").result()
    client.delete_checkpoint_from_tinker_path("tinker://r2/weights/b").result()
    assert [one.tinker_path for one in client.list_user_checkpoints().result().checkpoints] == [PATHS[0]]
    with pytest.raises(InvalidRequest, match=r"checkpoint_id='weight/a'.*Did you mean 'weights'"):
        client.delete_checkpoint("r1", "weight/a").result()


def test_errors_wait_in_the_future_until_it_is_read(client: RestClient) -> None:
    future = client.get_training_run("nobody")
    with pytest.raises(NotFound, match="no training run 'nobody'"):
        future.result()
    with pytest.raises(InvalidRequest, match="not a checkpoint path"):
        client.get_weights_info_by_tinker_path("weights/b").result()


def test_an_archive_url_can_be_fetched_and_holds_the_checkpoint(
    client: RestClient, store: CheckpointStore, tmp_path: Path
) -> None:
    answer = client.get_checkpoint_archive_url_from_tinker_path("tinker://r2/weights/b").result()
    assert client.get_checkpoint_archive_url("r2", "weights/b").result() == answer
    fetched, _ = urllib.request.urlretrieve(answer.url, tmp_path / "fetched")
    with tarfile.open(fetched) as archive:
        assert archive.getnames() == ["data.bin", "manifest.json"]
    (store.runs_folder / "r2" / "weights" / "b" / "data.bin").unlink()
    with pytest.raises(CheckpointError, match=r"data\.bin is missing"):
        client.get_checkpoint_archive_url("r2", "weights/b").result()


def test_async_forms_give_the_same_answers(client: RestClient) -> None:
    async def ask() -> None:
        assert await client.list_training_runs_async() == client.list_training_runs().result()
        assert await client.get_training_run_async("r1") == await client.get_training_run("r1")
        assert await client.list_checkpoints_async("r1") == await client.list_checkpoints("r1")
        assert await client.list_user_checkpoints_async(limit=1) == await client.list_user_checkpoints(limit=1)
        info = await client.get_weights_info_by_tinker_path_async(PATHS[2])
        assert info == await client.get_weights_info_by_tinker_path(PATHS[2])
        assert await client.get_training_run_by_tinker_path_async(PATHS[2]) == await client.get_training_run("r2")
        url = await client.get_checkpoint_archive_url_from_tinker_path_async(PATHS[2])
        assert await client.get_checkpoint_archive_url_async("r2", "weights/b") == url
        await client.set_checkpoint_ttl_from_tinker_path_async(PATHS[2], 60)
        await client.delete_checkpoint_async("r1", "weights/a")
        await client.delete_checkpoint_from_tinker_path_async(PATHS[1])
        (left,) = (await client.list_user_checkpoints()).checkpoints
        assert left.tinker_path == PATHS[2] and left.expires_at is not None
        with pytest.raises(NotFound):
            await client.get_training_run_async("nobody")

    asyncio.run(ask())
