from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.checkpoint_archive import write_archive
from mint.checkpoint_manifest import LoraShape, Manifest, json_bytes
from mint.checkpoint_store import CheckpointStore
from mint.errors import CheckpointError, InvalidRequest, MintError, NotFound

LORA = {"rank": 8, "alpha": 32, "train_attn": True, "train_mlp": False, "train_unembed": True}
FIELDS: dict[str, Any] = {"base_model": "mint-tiny", "lora": LORA, "step": 3, "parent": None}
PATH = "mint://run-1/weights/a"


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> CheckpointStore:
    return CheckpointStore(tmp_path / "home", clock)


def save(store: CheckpointStore, path: str = PATH, content: bytes = b"weights", **options: Any) -> Path:
    """Save a checkpoint of one file and return its folder."""
    with store.writing(path, FIELDS, **options) as folder:
        (folder / "data.bin").write_bytes(content)
        (folder / "note.json").write_bytes(b"{}")
    run_id, kind, name = path.removeprefix("mint://").split("/")
    return store.runs_folder / run_id / kind / name


def content_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_home_comes_from_the_argument_then_the_environment_then_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINT_HOME", str(tmp_path / "environment"))
    assert CheckpointStore(tmp_path / "argument").home == tmp_path / "argument"
    assert CheckpointStore().home == tmp_path / "environment"
    monkeypatch.delenv("MINT_HOME")
    assert CheckpointStore().home == Path.home() / ".mint"
    assert not (tmp_path / "environment").exists()


def test_a_saved_checkpoint_reads_back_with_its_manifest(store: CheckpointStore) -> None:
    save(store, content=b"\x00\x01")
    assert store.read(PATH, "data.bin") == b"\x00\x01"
    manifest = store.manifest("tinker://run-1/weights/a")
    assert (manifest.base_model, manifest.step, manifest.parent) == ("mint-tiny", 3, None)
    assert manifest.lora == LoraShape(rank=8, alpha=32, train_attn=True, train_mlp=False, train_unembed=True)
    assert {name: entry.bytes for name, entry in manifest.files.items()} == {"data.bin": 2, "note.json": 2}


def test_further_manifest_fields_are_kept(store: CheckpointStore) -> None:
    with store.writing(PATH, {**FIELDS, "renderer": "qwen3", "user_metadata": {"team": "é"}}):
        pass
    manifest = store.manifest(PATH)
    assert manifest.renderer == "qwen3"
    assert manifest.extra == {"user_metadata": {"team": "é"}}


def test_equal_saves_write_equal_bytes_in_any_run_at_any_time(store: CheckpointStore, clock: Clock) -> None:
    first = content_of(save(store))
    clock.now += 1e6
    assert content_of(save(store, "mint://run-2/weights/other")) == first


def test_an_existing_name_is_refused_unless_overwrite_is_set(store: CheckpointStore) -> None:
    save(store, content=b"old")
    with pytest.raises(InvalidRequest, match="exists already.*overwrite=True"):
        save(store, content=b"new")
    assert store.read(PATH, "data.bin") == b"old"
    folder = save(store, content=b"new", overwrite=True)
    assert store.read(PATH, "data.bin") == b"new"
    assert [child.name for child in folder.parent.iterdir()] == ["a"]


def test_a_writer_that_fails_leaves_nothing_and_keeps_the_old_checkpoint(store: CheckpointStore) -> None:
    folder = save(store, content=b"old")

    def fail(path: str) -> None:
        with store.writing(path, FIELDS, overwrite=True) as unfinished:
            (unfinished / "data.bin").write_bytes(b"half")
            raise OSError("disk full")

    for path in (PATH, "mint://run-1/weights/b"):
        with pytest.raises(OSError, match="disk full"):
            fail(path)
    assert store.read(PATH, "data.bin") == b"old"
    assert [child.name for child in folder.parent.iterdir()] == ["a"]


def test_a_manifest_without_a_base_model_is_refused_before_anything_is_written(store: CheckpointStore) -> None:
    fields = {key: value for key, value in FIELDS.items() if key != "base_model"}
    with pytest.raises(InvalidRequest, match="base_model missing"), store.writing(PATH, fields):
        pass
    assert not store.home.exists()


def test_any_flipped_byte_is_found_and_its_file_named(store: CheckpointStore) -> None:
    folder = save(store, content=bytes(range(64)))
    sound = content_of(folder)

    @given(st.sampled_from(sorted(sound)), st.integers(0, 10_000), st.integers(1, 255))
    def check(name: str, position: int, flipped_bits: int) -> None:
        content = bytearray(sound[name])
        content[position % len(content)] ^= flipped_bits
        (folder / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            store.verify(PATH)
        (folder / name).write_bytes(sound[name])

    check()
    store.verify(PATH)


@pytest.mark.parametrize("name", ["data.bin", "manifest.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "longer", "empty"])
def test_a_missing_or_cut_file_is_refused_by_name(store: CheckpointStore, name: str, damage: str) -> None:
    file = save(store) / name
    content = file.read_bytes()
    match damage:
        case "missing":
            file.unlink()
        case "cut":
            file.write_bytes(content[:-1])
        case "longer":
            file.write_bytes(content + b"x")
        case _:
            file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        store.read(PATH, "data.bin")
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        store.verify(PATH)


def test_a_checkpoint_of_a_newer_format_asks_for_an_upgrade(store: CheckpointStore) -> None:
    file = save(store) / "manifest.json"
    file.write_bytes(json_bytes({**json.loads(file.read_bytes()), "format_version": 2}))
    with pytest.raises(CheckpointError, match="format_version=2.*upgrade"):
        store.manifest(PATH)


def test_a_manifest_that_names_a_file_outside_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    folder = save(store)
    (tmp_path / "secret").write_bytes(b"secret")
    entry = store.manifest(PATH).files["data.bin"]
    forged = Manifest.from_fields(FIELDS, {"../../../../secret": entry})
    (folder / "manifest.json").write_bytes(forged.to_json())
    with pytest.raises(CheckpointError, match="not a plain file name"):
        store.read(PATH, "../../../../secret")


@pytest.mark.parametrize("level", ["file", "checkpoint", "kind", "run"])
def test_links_that_leave_the_run_folder_are_refused(store: CheckpointStore, tmp_path: Path, level: str) -> None:
    folder = save(store)
    inside = {"file": folder / "data.bin", "checkpoint": folder, "kind": folder.parent, "run": folder.parent.parent}
    outside = tmp_path / "outside"
    shutil.move(inside[level], outside)
    inside[level].symlink_to(outside)
    with pytest.raises(CheckpointError, match="link that leaves"):
        store.read(PATH, "data.bin")
    with pytest.raises(CheckpointError, match="link that leaves"):
        store.verify(PATH)


def test_nothing_is_written_through_a_link_that_leaves_the_run_folder(store: CheckpointStore, tmp_path: Path) -> None:
    save(store, "mint://run-1/sampler_weights/a")
    (tmp_path / "outside").mkdir()
    (store.runs_folder / "run-1" / "weights").symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match="link that leaves"):
        save(store)
    assert list((tmp_path / "outside").iterdir()) == []


def test_deleting_a_linked_checkpoint_spares_what_it_points_to(store: CheckpointStore, tmp_path: Path) -> None:
    folder = save(store)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "keep").write_bytes(b"")
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path / "outside")
    store.delete(PATH)
    assert not os.path.lexists(folder)
    assert (tmp_path / "outside" / "keep").exists()


def test_listing_shows_complete_checkpoints_oldest_first(store: CheckpointStore) -> None:
    for i, path in enumerate(["mint://r2/weights/z", "mint://r1/sampler_weights/y", "mint://r1/weights/x"]):
        folder = save(store, path)
        os.utime(folder / "manifest.json", (100 + i, 100 + i))
    (store.runs_folder / "r1" / "weights" / "no-manifest").mkdir()
    assert [str(info.path) for info in store.checkpoints()] == [
        "mint://r2/weights/z",
        "mint://r1/sampler_weights/y",
        "mint://r1/weights/x",
    ]
    assert [info.created_at for info in store.checkpoints("r1")] == [101, 102]
    assert [run.run_id for run in store.runs()] == ["r1", "r2"]
    with pytest.raises(NotFound, match="Did you mean 'r1'"):
        store.checkpoints("r11")


def test_a_damaged_checkpoint_is_listed_with_its_problem(store: CheckpointStore) -> None:
    (save(store) / "manifest.json").write_bytes(b"{")
    (info,) = store.checkpoints()
    assert info.manifest is None
    assert info.problem is not None and "manifest.json is not JSON" in info.problem


def test_an_expired_checkpoint_is_invisible_then_gone(store: CheckpointStore, clock: Clock) -> None:
    folder = save(store, ttl_seconds=10)
    save(store, "mint://run-1/weights/b")
    assert store.info(PATH).expires_at == 1010.0
    clock.now = 1010.0
    with pytest.raises(NotFound, match="expired"):
        store.read(PATH, "data.bin")
    assert folder.exists()
    assert [info.path.name for info in store.checkpoints()] == ["b"]
    assert not folder.exists()


def test_an_expired_name_can_be_used_again(store: CheckpointStore, clock: Clock) -> None:
    save(store, content=b"old", ttl_seconds=10)
    clock.now += 11
    save(store, content=b"new")
    assert store.read(PATH, "data.bin") == b"new"


def test_a_ttl_can_be_set_and_taken_away_without_touching_what_is_checked(store: CheckpointStore, clock: Clock) -> None:
    before = content_of(save(store))
    store.set_ttl(PATH, 5)
    assert store.info(PATH).expires_at == 1005.0
    store.set_ttl(PATH, None)
    clock.now += 100
    assert store.info(PATH).expires_at is None
    assert content_of(store.runs_folder / "run-1" / "weights" / "a") == before
    for ttl_seconds in (0, -5):
        with pytest.raises(InvalidRequest, match="must be positive"):
            store.set_ttl(PATH, ttl_seconds)


def test_a_damaged_expiry_keeps_the_checkpoint_and_is_reported(store: CheckpointStore) -> None:
    folder = save(store, ttl_seconds=10)
    (folder / "expires.json").write_text("soon")
    (info,) = store.checkpoints()
    assert info.problem is not None and "expires.json is damaged" in info.problem
    with pytest.raises(CheckpointError, match=r"expires\.json"):
        store.read(PATH, "data.bin")


def test_deleting_removes_one_checkpoint_damaged_or_not(store: CheckpointStore) -> None:
    (save(store) / "manifest.json").unlink()
    save(store, "mint://run-1/weights/b")
    store.delete(PATH)
    assert sorted(os.listdir(store.runs_folder / "run-1" / "weights")) == ["b"]
    with pytest.raises(NotFound, match="no checkpoint mint://run-1/weights/a"):
        store.delete(PATH)
    with pytest.raises(NotFound, match="no training run 'nobody'"):
        store.delete("mint://nobody/weights/a")


def test_a_run_is_recorded_once_with_its_metadata(store: CheckpointStore) -> None:
    lora = LoraShape(**LORA)
    store.register_run("run-1", base_model="mint-tiny", lora=lora, user_metadata={"team": "x"})
    with pytest.raises(InvalidRequest, match="exists already"):
        store.register_run("run-1", base_model="mint-tiny", lora=lora)
    run = store.run("run-1")
    assert (run.base_model, run.lora, run.user_metadata, run.checkpoints) == ("mint-tiny", lora, {"team": "x"}, ())
    (store.runs_folder / "run-1" / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"run\.json is damaged"):
        store.run("run-1")


def test_reading_a_store_that_does_not_exist_creates_nothing(store: CheckpointStore) -> None:
    assert store.checkpoints() == [] and store.runs() == [] and store.storage_bytes() == 0
    with pytest.raises(NotFound):
        store.read(PATH, "data.bin")
    assert not store.home.exists()


def test_storage_counts_every_byte_of_a_run(store: CheckpointStore) -> None:
    save(store, content=b"x" * 1000)
    before = store.storage_bytes("run-1")
    save(store, "mint://run-1/weights/b", content=b"x" * 5000)
    assert store.storage_bytes("run-1") - before == store.info("mint://run-1/weights/b").size_bytes > 5000
    assert store.storage_bytes() == store.storage_bytes("run-1")


def test_an_archive_holds_the_verified_files_and_is_reproducible(store: CheckpointStore, tmp_path: Path) -> None:
    folder = save(store, ttl_seconds=100)
    archive = write_archive(store, PATH, tmp_path / "out" / "a.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "unpacked", filter="data")
    files = content_of(folder)
    del files["expires.json"]
    assert content_of(tmp_path / "unpacked") == files
    first = archive.read_bytes()
    save(store, "mint://run-2/weights/b")
    assert write_archive(store, "mint://run-2/weights/b", archive).read_bytes() == first
    (folder / "data.bin").write_bytes(b"damaged")
    with pytest.raises(MintError, match=r"data\.bin"):
        write_archive(store, PATH, archive)
    assert archive.read_bytes() == first
