"""Runs whose disk is full, whose folders are read-only or vanish, and whose checkpoints are damaged or deleted."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.errors import CheckpointError, InvalidRequest, StorageError
from recipe.checkpoint_utils import RunIdentity, find_resume_record, load_records
from recipe.evaluators import TrainingClientEvaluator
from recipe.preference import train as preference_train
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.train import PreferenceResult
from recipe.preference.types import PairExampleConfig
from recipe.rl import train as rl_train
from recipe.rl.train import RLResult
from recipe.run_log import FolderLock, LogPathInUse, read_metrics
from recipe.supervised.data import ListSFTDatasetBuilder, SFTExampleConfig
from recipe.supervised.train import Config, SFTResult, main
from tests.recipe.preference.test_train import make_pairs
from tests.recipe.rl.test_train import EvenTokensBuilder
from tests.small_disk import run_with_disks

HELP = "free space on that disk and start the same command again"


def make_config(model: Path, log_path: Path, **changes: Any) -> Config:
    """Six steps on 8 conversations, a checkpoint after every second."""
    chats = [
        [{"role": "user", "content": f"Say {i}."}, {"role": "assistant", "content": f"{i} " * (1 + i % 4)}]
        for i in range(8)
    ]
    builder = ListSFTDatasetBuilder(conversations=chats, examples=SFTExampleConfig(batch_size=4))
    settings: dict[str, Any] = {
        "log_path": str(log_path), "model_name": str(model), "renderer_name": "role_colon", "lora_rank": 2,
        "learning_rate": 5e-3, "num_epochs": 3, "save_every": 2, "eval_every": 1, "dataset_builder": builder,
    }  # fmt: skip
    return Config(**{**settings, **changes})


def folder_of(home: Path, path: str | None) -> Path:
    assert path is not None
    return home / "runs" / path.removeprefix("mint://")


def content(home: Path, path: str | None) -> dict[str, bytes]:
    """The files of a checkpoint that do not name its run."""
    files = {file.name: file.read_bytes() for file in folder_of(home, path).iterdir() if file.name != "manifest.json"}
    assert "adapter_model.safetensors" in files
    return files


def timeless(log_path: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if "time/" not in key} for line in read_metrics(log_path)]


class At(TrainingClientEvaluator):
    """Does something before the step of that index."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self.steps_to_go = step
        self.action = action

    async def __call__(self, training_client: mint.TrainingClient) -> dict[str, float]:
        self.steps_to_go -= 1
        if self.steps_to_go == -1:
            self.action()
        return {}


@pytest.fixture(scope="module")
def whole(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the undisturbed run `run` and its storage `home`."""
    folder = tmp_path_factory.mktemp("whole")
    asyncio.run(main(make_config(tiny_model_dir, folder / "run"), mint.ServiceClient(home=str(folder / "home"))))
    assert [record.name for record in load_records(folder / "run")] == ["000002", "000004", "final"]
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """A copy of the undisturbed run and its storage, to be damaged."""
    for name in ("run", "home"):
        shutil.copytree(whole / name, tmp_path / name)
    return tmp_path


def service_of(folder: Path) -> mint.ServiceClient:
    return mint.ServiceClient(home=str(folder / "home"))


def assert_same_end(folder: Path, whole: Path, result: SFTResult | PreferenceResult | RLResult) -> None:
    expected = load_records(whole / "run")[-1]
    assert content(folder / "home", result.state_path) == content(whole / "home", expected.state_path)
    assert content(folder / "home", result.sampler_path) == content(whole / "home", expected.sampler_path)
    assert timeless(folder / "run") == timeless(whole / "run")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


DAMAGES: dict[str, tuple[list[tuple[int, str, str, Callable[[Path], None]]], str, int]] = {
    # Which file of which record is damaged and how, what is said about it, and the step the run goes on from.
    "bit flipped": ([(-1, "state_path", "adapter_model.safetensors", flip)], "adapter_model.safetensors is damaged", 4),
    "cut off": ([(-1, "state_path", "optimizer.safetensors", cut)], "optimizer.safetensors has", 4),
    "no manifest": ([(-1, "state_path", "manifest.json", Path.unlink)], "manifest.json is missing", 4),
    "weights for sampling deleted": ([(-1, "sampler_path", "", shutil.rmtree)], "no checkpoint mint://", 4),
    "the two newest": (
        [(-1, "state_path", "", shutil.rmtree), (-2, "state_path", "rng.json", flip)],
        "rng.json is damaged",
        2,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_checkpoint_is_named_and_an_older_one_leads_to_the_same_end(
    damage: str, tiny_model_dir: Path, copied: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damages, message, step = DAMAGES[damage]
    records = load_records(copied / "run")
    for index, kind, file_name, hurt in damages:
        hurt(folder_of(copied / "home", getattr(records[index], kind)) / file_name)
    with caplog.at_level(logging.WARNING):
        result = await main(make_config(tiny_model_dir, copied / "run"), service_of(copied))
    assert message in caplog.text and f"checkpoint '{records[damages[0][0]].name}', step" in caplog.text
    assert f"going on from the older checkpoint '{step:06d}', step {step}" in caplog.text
    assert_same_end(copied, whole, result)
    # What could not be used is out of the way, and the run is finished for whoever asks again.
    assert [record.name for record in load_records(copied / "run")] == ["000002", "000004", "final"]
    assert (copied / "run" / "checkpoints_unusable.jsonl").read_text().count("\n") == len(damages)
    caplog.clear()
    again = await main(make_config(tiny_model_dir, copied / "run"), service_of(copied))
    assert (again, caplog.text) == (result, "")


@pytest.mark.parametrize("stage", ["preference", "rl"])
async def test_the_other_stages_go_on_from_an_older_checkpoint_too(
    stage: str, tiny_model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> PreferenceResult | RLResult:
        settings: dict[str, Any] = {
            "log_path": str(tmp_path / "run"), "model_name": str(tiny_model_dir), "lora_rank": 2, "save_every": 1,
            "learning_rate": 5e-3, "max_steps": 2,
        }  # fmt: skip
        if stage == "rl":
            data = EvenTokensBuilder()
            return await rl_train.main(
                rl_train.Config(dataset_builder=data, max_tokens=4, **settings), service_of(tmp_path)
            )
        pairs = ListPreferenceDatasetBuilder(pairs=make_pairs(8), examples=PairExampleConfig(batch_size=4))
        return await preference_train.main(
            preference_train.Config(dataset_builder=pairs, renderer_name="role_colon", **settings), service_of(tmp_path)
        )

    await run()
    shutil.copytree(tmp_path, tmp_path.with_name(f"whole {stage}"))
    final = load_records(tmp_path / "run")[-1]
    flip(folder_of(tmp_path / "home", final.state_path) / "adapter_model.safetensors")
    with caplog.at_level(logging.WARNING):
        result = await run()
    assert "going on from the older checkpoint '000001', step 1" in caplog.text
    assert result.state_path != final.state_path
    assert_same_end(tmp_path, tmp_path.with_name(f"whole {stage}"), result)


async def test_without_a_good_checkpoint_there_is_one_error_and_nothing_changes(
    tiny_model_dir: Path, copied: Path
) -> None:
    for record in load_records(copied / "run"):
        flip(folder_of(copied / "home", record.state_path) / "optimizer.safetensors")
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    with pytest.raises(
        CheckpointError, match=r"lists 3 checkpoints and none can be used; the newest: .*final: optimizer\.safetensors"
    ):
        await main(make_config(tiny_model_dir, copied / "run"), service_of(copied))
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


async def test_checkpoints_deleted_under_a_running_job_do_not_disturb_it(
    tiny_model_dir: Path, tmp_path: Path, whole: Path
) -> None:
    delete = At(5, lambda: shutil.rmtree(tmp_path / "home" / "runs"))
    result = await main(make_config(tiny_model_dir, tmp_path / "run"), service_of(tmp_path), [delete])
    assert content(tmp_path / "home", result.state_path) == content(
        whole / "home", load_records(whole / "run")[-1].state_path
    )


async def test_a_log_path_deleted_under_a_running_job_ends_it_with_a_clear_message(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    delete = At(3, lambda: shutil.rmtree(tmp_path / "run"))
    with pytest.raises(StorageError, match="run' was deleted or replaced while this run was writing to it.*still in"):
        await main(make_config(tiny_model_dir, tmp_path / "run"), service_of(tmp_path), [delete])
    assert not (tmp_path / "run").exists()
    assert len(list(tmp_path.glob("home/runs/*/weights/000002"))) == 1


async def test_a_second_run_on_a_log_path_is_refused_before_it_changes_anything(
    tiny_model_dir: Path, copied: Path
) -> None:
    longer = make_config(tiny_model_dir, copied / "run", num_epochs=4)
    with FolderLock(copied / "run"):
        before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
        with pytest.raises(LogPathInUse, match=r"is in use by another run \(process \d+\)"):
            await main(longer, service_of(copied))
        assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


async def test_records_that_no_run_wrote_are_refused_by_what_is_wrong(service: mint.ServiceClient, tmp_path: Path):
    for line, message in (
        ('{"name": "a", "step": "two", "state_path": "mint://r/weights/a"}', "step is of type str"),
        ('{"name": "a", "step": 2, "state_path": ["x"]}', "state_path is of type list"),
        ('{"name": "a", "step": 2, "loop_state": "x"}', "loop_state is of type str"),
    ):
        (tmp_path / "checkpoints.jsonl").write_text(line + "\n")
        with pytest.raises(InvalidRequest, match=message):
            await find_resume_record(tmp_path, RunIdentity("mint-tiny", 8), service)
    for path in ("../../x", "mint://../weights/a", "mint://r/weights/..", "/etc/passwd"):
        (tmp_path / "checkpoints.jsonl").write_text(f'{{"name": "a", "step": 2, "state_path": "{path}"}}\n')
        with pytest.raises(CheckpointError, match="none can be used"):
            await find_resume_record(tmp_path, RunIdentity("mint-tiny", 8), service)


# A run on ever larger disks, given more space whenever it is out of it, and one whose folders are read-only.
SCRIPT = """
import asyncio
import mint
from mint.errors import StorageError
from recipe.checkpoint_utils import load_records
from recipe.run_log import read_metrics
from tests.recipe.test_storage_faults import content, make_config, timeless
from recipe.supervised.train import main

model, root = Path(sys.argv[1]), Path(sys.argv[2])
answer = {}

def attempt(log_path, home, **changes):
    try:
        result = asyncio.run(main(make_config(model, log_path, **changes), mint.ServiceClient(home=str(home))))
    except StorageError as error:
        return None, str(error)
    return result, None

def saved(log_path, home):
    return len([content(home, record.state_path) for record in load_records(log_path)])

def run(name, kilobytes, is_home, **changes):
    small = disk(root / name / "disk", kilobytes)
    log_path, home = (root / name / "run", small / "home") if is_home else (small / "run", root / name / "home")
    steps = []
    while True:
        result, message = attempt(log_path, home, **changes)
        if message is None:
            break
        steps.append([message, saved(log_path, home), len(read_metrics(log_path))])
        kilobytes += STEP if is_home else 4
        remount(small, f"size={kilobytes}k")
    final = {file: data.hex()[:2000] for file, data in content(home, result.state_path).items()}
    answer[name] = [steps, final, timeless(log_path)]

STEP = 150
run("home", 200, True)
run("log", 8, False, num_epochs=15, save_every=5)
run("plenty", 60_000, True)
run("plenty log", 60_000, False, num_epochs=15, save_every=5)

read_only = disk(root / "read only", 100)
remount(read_only, "ro")
answer["read-only log_path"] = attempt(read_only / "run", root / "unused home")[1]
answer["read-only home"] = attempt(root / "unused run", read_only / "storage")[1]
answer["left behind"] = [path.name for folder in root.glob("unused*") for path in folder.rglob("*")]
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def on_small_disks(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_with_disks(SCRIPT, tiny_model_dir, tmp_path_factory.mktemp("disks"))


@pytest.mark.parametrize(("name", "undisturbed", "num_faults"), [("home", "plenty", 3), ("log", "plenty log", 2)])
def test_a_run_that_is_out_of_space_again_and_again_ends_like_one_that_never_was(
    on_small_disks: dict[str, Any], name: str, undisturbed: str, num_faults: int
) -> None:
    faults, *end = on_small_disks[name]
    assert len(faults) >= num_faults
    for message, _, _ in faults:
        assert "No space left on device" in message and HELP in message and "/disk/" in message, message
    num_saved = [saved for _, saved, _ in faults]
    assert num_saved == sorted(num_saved), "what was saved once stays saved"
    no_faults, *undisturbed_end = on_small_disks[undisturbed]
    assert no_faults == [] and end == undisturbed_end


def test_read_only_folders_are_one_clear_error_before_any_work(on_small_disks: dict[str, Any]) -> None:
    log_path, home = on_small_disks["read-only log_path"], on_small_disks["read-only home"]
    for message, place in ((log_path, "read only/run "), (home, "read only/storage/runs ")):
        assert place in message and "Read-only file system; make its folder writable" in message, message
    assert [name for name in on_small_disks["left behind"] if "metrics" in name or "weights" in name] == []
