from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mint import builtin
from mint.checkpoint_store import CheckpointStore
from mint.cli import main

PATH = "mint://run-1/weights/a"
LORA = {"rank": 8, "alpha": 32, "train_attn": True, "train_mlp": False, "train_unembed": True}
FIELDS = {"base_model": "mint-tiny", "lora": LORA, "step": 3, "user_metadata": {"team": "x"}}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    """A store with one checkpoint, which MINT_HOME points to."""
    monkeypatch.setenv("MINT_HOME", str(tmp_path))
    store = CheckpointStore()
    with store.writing(PATH, FIELDS) as folder:
        (folder / "data.bin").write_bytes(b"x" * 1500)
    return store


def test_checkpoints_are_listed_with_step_and_size(store: CheckpointStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "list"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["path", "step", "size", "saved", "expires"]
    assert row.startswith(f"{PATH}  3     2.") and row.endswith("Z  never")
    assert main(["checkpoints", "list", "run-1"]) == 0
    assert capsys.readouterr().out.splitlines() == [header, row]


def test_runs_are_listed_with_their_base_model(store: CheckpointStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split()[:4] == ["run-1", "mint-tiny", "8", "1"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"base_model": "mint-tiny"}'])
def test_a_damaged_run_is_named_and_the_others_are_listed(store: CheckpointStore, content: str) -> None:
    damaged = store.runs_folder / "run-0" / "run.json"
    damaged.parent.mkdir()
    damaged.write_text(content, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mint.cli", "--home", str(store.home), "runs"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["run", "run-1"]
    assert f"training run 'run-0': {damaged} is damaged" in done.stderr and done.stderr.count("\n") == 1


def test_show_prints_the_manifest_after_checking_every_file(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", "show", "tinker://run-1/weights/a"]) == 0
    output = capsys.readouterr().out
    assert "LoRA           rank 8, alpha 32, on attn, unembed\n" in output
    assert 'user_metadata  {"team": "x"}\n' in output
    assert "data.bin  1.5 kB" in output
    assert output.endswith("every file matches its checksum\n")


def test_show_names_the_damaged_file_in_one_line(store: CheckpointStore, capsys: pytest.CaptureFixture[str]) -> None:
    (store.runs_folder / "run-1" / "weights" / "a" / "data.bin").write_bytes(b"y" * 1500)
    assert main(["checkpoints", "show", PATH]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"mint: checkpoint {PATH}: data.bin is damaged: its SHA-256 is not the one that was saved\n"
    assert main(["checkpoints", "list"]) == 0


def test_delete_removes_the_checkpoint_once(store: CheckpointStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "delete", PATH]) == 0
    assert store.checkpoints() == []
    assert main(["checkpoints", "delete", PATH]) == 1
    assert f"no checkpoint {PATH}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["checkpoints", "show", "run-1/weights/a"], "is not a checkpoint path; write mint://"),
        (["checkpoints", "show", "mint://run-1/weights/b"], "no checkpoint mint://run-1/weights/b"),
        (["checkpoints", "delete", "mint://run-1/../x/a"], "has 4 parts"),
        (["checkpoints", "list", "run-2"], "no training run 'run-2'"),
        (["checkpoints", "list", "../.."], "run id '../..' contains '/'"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_1(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("mint: ") and captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize("arguments", [[], ["checkpoints"], ["chekpoints"], ["checkpoints", "show"]])
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: mint" in capsys.readouterr().err


def test_an_empty_home_is_said_to_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "empty"
    assert main(["--home", str(home), "runs"]) == 0
    assert main(["--home", str(home), "checkpoints", "list"]) == 0
    assert capsys.readouterr().out == f"no training runs in {home}/runs\nno checkpoints in {home}/runs\n"
    assert not home.exists()


def test_the_built_in_model_is_listed_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    header, built_in, *_, note = capsys.readouterr().out.splitlines()
    assert header.split() == ["model", "context"]
    assert built_in.split() == [builtin.NAME, "4096", "tokens"]
    assert note.startswith("Anywhere a base model is asked for")


def test_the_command_line_loads_no_torch(store: CheckpointStore) -> None:
    program = "import sys; from mint.cli import main; main(['runs']), main(['models']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_reader_that_stops_early_is_no_error(store: CheckpointStore) -> None:
    command = f"'{sys.executable}' -m mint.cli checkpoints show {PATH} | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
