"""Full disks, read-only folders and damaged files: what is saved stays, and what is damaged is refused by name."""

from __future__ import annotations

import errno
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mint
from mint import types
from mint.atomic_files import append_flushed, check_writable, write_atomically
from mint.checkpoint_archive import write_archive
from mint.checkpoint_folder import reading
from mint.checkpoint_path import CheckpointPath
from mint.checkpoint_store import CheckpointStore
from mint.engine.checkpoints import LoadedCheckpoint, load_checkpoint, save_checkpoint
from mint.errors import CheckpointError, MintError, StorageError
from tests.small_disk import files_at_most, run_with_disks

LORA: dict[str, Any] = {"rank": 8, "alpha": 32, "train_attn": True, "train_mlp": True, "train_unembed": True}
FIELDS: dict[str, Any] = {"base_model": "mint-tiny", "lora": LORA, "step": 3}
PATH = "mint://run-1/weights/a"
TENSORS = {"w": torch.arange(12.0)}
HELP = "free space on that disk and start the same command again"

# Saves one checkpoint, then tries a second name and an overwrite of the first with ever more free space.
FULL_DISK = f"""
from mint.atomic_files import write_flushed
from mint.checkpoint_store import CheckpointStore
from mint.errors import StorageError

def save(name, content, overwrite=False):
    with store.writing(f"mint://run-1/weights/{{name}}", {FIELDS!r}, overwrite=overwrite) as folder:
        for file in ("one.bin", "two.bin"):
            write_flushed(folder / file, content * 10_000)

home = disk(sys.argv[1], 512)
store, attempts = CheckpointStore(home), []
save("old", b"o")
for free in range(0, 60, 4):
    for name, overwrite in (("new", False), ("old", True)):
        filler = leave_free(home, free)
        try:
            save(name, b"n", overwrite)
            message = None
        except StorageError as error:
            message = str(error)
        names = sorted(file.name for file in (home / "runs" / "run-1" / "weights").iterdir())
        store.verify("mint://run-1/weights/old")
        content = store.read("mint://run-1/weights/old", "one.bin")[:1].decode()
        attempts.append([free, name, message, names, content])
        filler.unlink()
        if message is None:
            store.delete(f"mint://run-1/weights/{{name}}")
            save("old", b"o", overwrite=True)
print(json.dumps(attempts))
"""

READ_ONLY = f"""
from mint.checkpoint_store import CheckpointStore
from mint.errors import StorageError

home = disk(sys.argv[1], 512)
store = CheckpointStore(home)
with store.writing({PATH!r}, {FIELDS!r}) as folder:
    (folder / "data.bin").write_bytes(b"x")
remount(home, "ro")
messages = []
for change in (
    store.check_writable, lambda: store.delete({PATH!r}), lambda: store.set_ttl({PATH!r}, 5),
    lambda: store.writing("mint://run-1/weights/b", {FIELDS!r}).__enter__(),
    lambda: store.writing("mint://run-2/weights/b", {FIELDS!r}).__enter__(),
):
    try:
        change()
        messages.append(None)
    except StorageError as error:
        messages.append(str(error))
listed = [str(info.path) for info in store.checkpoints()]
print(json.dumps([messages, listed, store.read({PATH!r}, "data.bin").decode()]))
"""


def test_a_disk_that_fills_up_anywhere_in_a_save_costs_nothing_that_was_saved(tmp_path: Path) -> None:
    attempts = run_with_disks(FULL_DISK, tmp_path / "disk")
    failed = [attempt for attempt in attempts if attempt[2] is not None]
    assert 10 <= len(failed) < len(attempts), "some amounts of space are too little and some enough"
    for free, name, message, names, content in failed:
        assert str(tmp_path) in message and "No space left on device" in message and HELP in message, message
        assert (names, content) == (["old"], "o"), f"{free} KB free, saving {name}"
    assert [content for *_, message, _, content in attempts if message is None][-1] == "n"


def test_a_read_only_store_names_the_folder_and_still_reads(tmp_path: Path) -> None:
    messages, listed, content = run_with_disks(READ_ONLY, tmp_path / "disk")
    for message in messages:
        assert "Read-only file system" in message and str(tmp_path / "disk") in message, message
        assert "make its folder writable for this user, or choose another" in message
    assert (listed, content) == ([PATH], "x")


def test_a_training_client_whose_save_failed_goes_on_and_can_save_under_the_same_name(
    service: mint.ServiceClient, mint_home: Path, tiny_model_dir: Path
) -> None:
    def trained(fail: bool) -> dict[str, bytes]:
        client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=1)
        datum = types.Datum(
            model_input=types.ModelInput.from_ints([1, 2, 3]),
            loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},
        )
        for i_step in range(3):
            client.forward_backward([datum], "cross_entropy")
            client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
            if fail and i_step == 1:
                with files_at_most(20_000):
                    with pytest.raises(StorageError, match=rf"weights/.*/adapter_model.safetensors cannot.*{HELP}"):
                        client.save_state("a").result()
                    with pytest.raises(StorageError, match="sampler_weights"):
                        client.save_weights_for_sampler("a").result()
        path = client.save_state("a").result().path
        folder = mint_home / "runs" / client.model_id / "weights" / "a"
        assert {file.name for file in folder.parent.iterdir()} == {"a"}
        assert CheckpointStore(mint_home).verify(path)
        return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "manifest.json"}

    assert trained(fail=True) == trained(fail=False)


def test_a_failed_append_leaves_the_lines_that_were_there(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    append_flushed(file, b"first\n")
    with files_at_most(100), pytest.raises(StorageError, match=rf"a\.jsonl cannot be written: File too large; {HELP}"):
        append_flushed(file, b"x" * 200)
    assert file.read_bytes() == b"first\n"
    with files_at_most(100), pytest.raises(StorageError, match="File too large"):
        write_atomically(file, b"x" * 200)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.jsonl", b"first\n")]
    if Path("/dev/full").exists():
        with pytest.raises(StorageError, match="/dev/full cannot be written: No space left on device"):
            append_flushed(Path("/dev/full"), b"x")


def test_an_archive_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "home")
    with store.writing(PATH, FIELDS) as folder:
        (folder / "data.bin").write_bytes(torch.rand(4000).numpy().tobytes())
    target = tmp_path / "out" / "a.tar.gz"
    target.parent.mkdir()
    target.write_bytes(b"old")
    with files_at_most(5000), pytest.raises(StorageError, match=r"a\.tar\.gz cannot be written"):
        write_archive(store, PATH, target)
    assert [(path.name, path.read_bytes()) for path in target.parent.iterdir()] == [("a.tar.gz", b"old")]


def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/storage/runs cannot be written: .*file is not a folder"):
        CheckpointStore(tmp_path / "file" / "storage").check_writable()
    check_writable(tmp_path / "not" / "there" / "yet")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> CheckpointStore:
    """One checkpoint with every kind of file, kept for years."""
    store = CheckpointStore(tmp_path_factory.mktemp("good"))
    save_checkpoint(store, PATH, TENSORS, {"r": 8}, {"m": torch.ones(12)}, {"seed": 5}, FIELDS, ttl_seconds=10**9)
    return store


def damaged_copy(good: CheckpointStore, home: Path) -> tuple[CheckpointStore, Path]:
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(good.home, home)
    return CheckpointStore(home), home / "runs" / "run-1" / "weights" / "a"


def assert_refused_or_harmless(store: CheckpointStore, file_name: str) -> None:
    """Either the error names the file, or everything reads as it was saved; and the checkpoint is not deleted."""
    try:
        loaded = load_checkpoint(store, PATH, with_optimizer=True)
    except CheckpointError as error:
        assert file_name in str(error), f"{file_name}: {error}"
    except MintError as error:
        raise AssertionError(f"{file_name}: {error!r}") from error
    else:
        assert_as_saved(loaded)
    (info,) = store.checkpoints()
    assert str(info.path) == PATH


def assert_as_saved(loaded: LoadedCheckpoint) -> None:
    assert loaded.optimizer_tensors is not None
    assert torch.equal(loaded.adapter_tensors["w"], TENSORS["w"])
    assert torch.equal(loaded.optimizer_tensors["m"], torch.ones(12))
    assert loaded.rng_state == {"seed": 5} and loaded.manifest.step == 3 and loaded.manifest.base_model == "mint-tiny"


@settings(max_examples=100)
@given(data=st.data())
def test_a_flipped_byte_in_any_file_is_refused_by_name_or_harmless(
    good: CheckpointStore, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store, folder = damaged_copy(good, tmp_path_factory.getbasetemp() / "flipped")
    file = folder / data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    assert_refused_or_harmless(store, file.name)


@settings(max_examples=60)
@given(data=st.data())
def test_a_file_that_is_cut_off_or_gone_is_refused_by_name_or_harmless(
    good: CheckpointStore, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store, folder = damaged_copy(good, tmp_path_factory.getbasetemp() / "cut")
    file = folder / data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    length = data.draw(st.none() | st.integers(0, file.stat().st_size - 1))
    if length is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:length])
    if (length, file.name) == (None, "manifest.json"):
        with pytest.raises(CheckpointError, match=r"incomplete: manifest\.json is missing"):
            store.verify(PATH)
        return
    assert_refused_or_harmless(store, file.name)


def test_an_earlier_time_in_a_damaged_expiry_deletes_nothing(good: CheckpointStore, tmp_path: Path) -> None:
    store, folder = damaged_copy(good, tmp_path / "home")
    expiry = folder / "expires.json"
    text = expiry.read_text()
    expiry.write_text(text.replace('"expires_at": ', '"expires_at": 1e-9, "was": '))
    assert json.loads(expiry.read_text())["expires_at"] < time.time()
    (info,) = store.checkpoints()
    assert info.problem is not None and "does not match its own checksum" in info.problem
    assert folder.exists()


def test_a_file_that_the_disk_does_not_give_back_is_named() -> None:
    message = r"run-1/weights/a: rng\.json cannot be read \(Input/output error\)"
    with pytest.raises(CheckpointError, match=message), reading(CheckpointPath.parse(PATH), "rng.json"):
        raise OSError(errno.EIO, "Input/output error")
