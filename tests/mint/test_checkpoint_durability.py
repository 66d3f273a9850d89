"""What is left when a process dies, and what happens when several write at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mint.checkpoint_manifest import LoraShape
from mint.checkpoint_store import CheckpointStore
from mint.errors import InvalidRequest, NotFound

PATH = "mint://run-1/weights/a"
LORA: dict[str, Any] = {"rank": 8, "alpha": 32, "train_attn": True, "train_mlp": True, "train_unembed": True}
FIELDS: dict[str, Any] = {"base_model": "mint-tiny", "lora": LORA, "step": 3}

# Saves an "old" checkpoint, then overwrites it by a "new" one, and kills itself before the n-th call that reaches the
# disk (every flush, rename and removal of the overwrite); prints how many there are when it survives.
WRITER = f"""
import os, pathlib, shutil, signal, sys
from mint.checkpoint_store import CheckpointStore
store, fatal_call, num_calls = CheckpointStore(sys.argv[1]), int(sys.argv[2]), 0

def save(content):
    with store.writing({PATH!r}, {FIELDS!r}, overwrite=True) as folder:
        (folder / "data.bin").write_bytes(content)

def deadly(call):
    def counted(*args, **kwargs):
        global num_calls
        num_calls += 1
        if num_calls == fatal_call:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return counted

save(b"old")
os.fsync, shutil.rmtree, pathlib.Path.rename = deadly(os.fsync), deadly(shutil.rmtree), deadly(pathlib.Path.rename)
save(b"new")
print(num_calls)
"""


def run_writer(home: Path, fatal_call: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WRITER, str(home), str(fatal_call)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_killed_at_any_moment_the_old_or_the_new_checkpoint_is_whole(tmp_path: Path) -> None:
    survivor = run_writer(tmp_path / "survivor", 0)
    assert survivor.returncode == 0, survivor.stderr
    num_calls = int(survivor.stdout)
    assert num_calls >= 8
    seen = []
    for fatal_call in range(1, num_calls + 1):
        store = CheckpointStore(tmp_path / str(fatal_call))
        assert run_writer(store.home, fatal_call).returncode == -signal.SIGKILL
        store.verify(PATH)
        seen.append(store.read(PATH, "data.bin"))
        assert [info.path.name for info in store.checkpoints()] == ["a"]
        assert os.listdir(store.runs_folder / "run-1" / "weights") == ["a"]
    assert seen == sorted(seen, reverse=True), "once the new one is there, it stays"
    assert set(seen) == {b"old", b"new"}


def test_a_dead_writers_folder_is_ignored_and_removed_by_the_next_writer(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.register_run("run-1", base_model="mint-tiny", lora=LoraShape(**LORA))
    left_over = store.runs_folder / "run-1" / "weights" / ".unfinished~a~0123abcd"
    left_over.mkdir(parents=True)
    (left_over / "manifest.json").write_text("{}")
    with pytest.raises(NotFound):
        store.info(PATH)
    with store.writing(PATH, FIELDS):
        assert not left_over.exists()
    assert [info.path.name for info in store.checkpoints()] == ["a"]


def test_listing_leaves_a_live_writers_folder_alone(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with store.writing(PATH, FIELDS) as folder:
        (folder / "data.bin").write_bytes(b"new")
        assert CheckpointStore(tmp_path).checkpoints() == []
        assert (folder / "data.bin").exists()
    assert store.read(PATH, "data.bin") == b"new"


def test_writers_of_one_name_take_turns_and_only_the_first_succeeds(tmp_path: Path) -> None:
    start, outcomes = threading.Barrier(4), []

    def write(content: bytes) -> None:
        store = CheckpointStore(tmp_path)
        start.wait()
        try:
            with store.writing(PATH, FIELDS) as folder:
                (folder / "data.bin").write_bytes(content)
        except InvalidRequest as error:
            outcomes.append(str(error))
        else:
            outcomes.append(content)

    threads = [threading.Thread(target=write, args=(bytes([i]),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, bytes)]
    assert CheckpointStore(tmp_path).read(PATH, "data.bin") == winner
    assert sum("exists already" in outcome for outcome in outcomes if isinstance(outcome, str)) == 3


def test_a_checkpoint_deleted_while_it_is_listed_is_left_out(tmp_path: Path) -> None:
    num_calls = 0

    def clock_that_deletes() -> float:
        """Asked twice per checkpoint with a time to live: when cleaning up, and again when listing."""
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            shutil.rmtree(tmp_path / "runs" / "run-1" / "weights" / "a")
        return 0.0

    writer = CheckpointStore(tmp_path)
    for name, ttl_seconds in (("a", 1000), ("keep", None)):
        with writer.writing(f"mint://run-1/weights/{name}", FIELDS, ttl_seconds=ttl_seconds):
            pass
    assert [info.path.name for info in CheckpointStore(tmp_path, clock_that_deletes).checkpoints()] == ["keep"]
    assert num_calls == 2


def test_a_read_only_store_can_be_listed_and_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with store.writing(PATH, FIELDS) as folder:
        (folder / "data.bin").write_bytes(b"x")
    (store.runs_folder / "run-1" / ".lock").unlink()
    (store.runs_folder / "run-1").chmod(0o555)
    try:
        assert [str(info.path) for info in store.checkpoints()] == [PATH]
        assert store.read(PATH, "data.bin") == b"x"
    finally:
        (store.runs_folder / "run-1").chmod(0o755)
