"""Metrics in TensorBoard, Weights & Biases and Trackio: every step once, however often the run was killed."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import chz
import pytest

from recipe import metric_loggers, pipeline
from recipe.command_line import parse_config
from recipe.metric_loggers import LOGGERS, check_loggers
from recipe.preference.dpo.config import Config as DPOConfig
from recipe.preference.train import Config as PreferenceConfig
from recipe.rl.config import Config as RLConfig
from recipe.run_log import RunLog, read_metrics
from recipe.supervised.train import Config as SFTConfig
from tests.recipes.loading import load_recipe

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import os, signal, sys
import chz
from recipe.run_log import RunLog

@chz.chz(typecheck=True)
class Settings:
    loggers: tuple[str, ...] = ()

log_path, name, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
names = () if name == "none" else (name,)
with RunLog(log_path, config=Settings(loggers=names), resume_step=first or None) as log:
    for step in range(first, last):
        values = {"loss": 1 / (step + 1), "note": "text", "broken": float("nan"), "progress/done_frac": (step + 1) / 8}
        log.metrics(values, step=step)
    if "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def run_steps(log_path: Path, name: str, first: int, last: int, *, is_killed: bool = False) -> None:
    """Steps of a run in a process of its own, killed after the last or ended in good order."""
    words = [str(log_path), name, str(first), str(last), *(["kill"] if is_killed else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path[1:])])}
    environment |= {"WANDB_MODE": "offline", "TRACKIO_DIR": str(log_path.parent / "trackio")}
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], env=environment, capture_output=True, timeout=120)
    assert done.returncode == (-signal.SIGKILL if is_killed else 0), done.stderr.decode()


def tensorboard_losses(log_path: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(log_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "progress/done_frac"}
    return [(event.step, event.value) for event in events.Scalars("loss")]


def wandb_losses(log_path: Path) -> list[tuple[int, float]]:
    """From the newest offline folder: each holds the whole run. Its file is a LevelDB log of protocol buffers."""
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (file,) = (log_path / "wandb" / "latest-run").resolve().glob("*.wandb")
    data, at, whole = file.read_bytes(), 7, b""
    found: list[tuple[int, float]] = []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # a record in one piece, or its last piece
            record, whole = records.Record.FromString(whole), b""
            if record.HasField("history"):
                items = record.history.item
                values = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in items}
                found.append((values["_step"], values["loss"]))
    return found


def trackio_losses(log_path: Path) -> list[tuple[int, float]]:
    program = (
        "from trackio.sqlite_storage import SQLiteStorage as S; (run,) = S.get_runs('mint-recipes'); "
        "print([(line['step'], line['loss']) for line in S.get_logs('mint-recipes', run)])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path[1:]))}
    environment["TRACKIO_DIR"] = str(log_path.parent / "trackio")
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=60, check=True)
    return [(step, loss) for step, loss in eval(done.stdout)]


READERS = {"tensorboard": tensorboard_losses, "wandb": wandb_losses, "trackio": trackio_losses}


@pytest.mark.parametrize("name", LOGGERS)
def test_a_killed_and_resumed_run_has_every_step_once(name: str, tmp_path: Path) -> None:
    """Switched on after two steps, killed twice, the second time after a step that will be done again."""
    pytest.importorskip(LOGGERS[name][0], reason=f"needs the extra {name}")
    log_path = tmp_path / "run"
    run_steps(log_path, "none", 0, 2, is_killed=True)
    run_steps(log_path, name, 2, 5, is_killed=True)
    run_steps(log_path, name, 4, 7, is_killed=True)
    run_steps(log_path, name, 6, 8)
    assert [line["step"] for line in read_metrics(log_path)] == list(range(8))
    found = READERS[name](log_path)
    assert [step for step, _ in found] == list(range(8))
    assert [loss for _, loss in found] == pytest.approx([1 / (step + 1) for step in range(8)])


def test_a_run_from_the_start_replaces_what_was_there(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_steps(tmp_path, "tensorboard", 0, 5, is_killed=True)
    run_steps(tmp_path, "tensorboard", 0, 3)
    assert [step for step, _ in tensorboard_losses(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize("config_class", [SFTConfig, PreferenceConfig, DPOConfig, RLConfig])
def test_every_stage_takes_loggers_from_the_command_line(config_class: type[Any]) -> None:
    field = chz.chz_fields(config_class)["loggers"]
    assert field.final_type == tuple[str, ...]


def test_a_pipelines_loggers_are_those_of_every_stage_that_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_loggers, "find_spec", lambda module: module)
    arguments = ["loggers=tensorboard,wandb", "rl.loggers=trackio"]
    config = parse_config(pipeline.Config, load_recipe("rlhf_pipeline").PRESET, arguments)
    stages = pipeline.with_loggers(config)
    both = ("tensorboard", "wandb")
    assert (stages.sft.loggers, stages.preference.loggers, stages.rl.loggers) == (both, both, ("trackio",))


@chz.chz(typecheck=True)
class Settings:
    loggers: tuple[str, ...] = ()

    @chz.validate
    def _check(self) -> None:
        check_loggers(self.loggers)


def test_names_are_checked_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metric_loggers, "find_spec", lambda module: None if module == "wandb" else module)
    assert parse_config(Settings, {}, ["loggers=tensorboard,trackio"]).loggers == ("tensorboard", "trackio")
    for text, message in (
        ("tensorbord", "no logger is called 'tensorbord'; known are tensorboard, wandb, trackio. Did you mean"),
        ("tensorboard,tensorboard", "'tensorboard' is given twice"),
        ("tensorboard,wandb", "wandb is not installed: pip install 'mint-recipes[wandb]'"),
    ):
        with pytest.raises(SystemExit) as left:
            parse_config(Settings, {}, [f"loggers={text}"])
        assert left.value.code == 2 and message in capsys.readouterr().err


def test_a_logger_that_fails_is_off_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[int] = []

    class Failing:
        next_step = 1

        @classmethod
        def open(cls, log_path: Path, config: object, resume_step: int) -> Failing:
            return cls()

        def log(self, values: dict[str, float], step: int) -> None:
            received.append(step)
            if step == 2:
                raise ConnectionError("no network")

        def close(self, *, is_complete: bool) -> None:
            raise AssertionError("it is off")

    monkeypatch.setitem(LOGGERS, "failing", ("json", Failing))
    with caplog.at_level(logging.WARNING), RunLog(tmp_path, config=Settings(loggers=("failing",))) as log:
        for step in range(5):
            log.metrics({"loss": 1.0}, step=step)
    assert received == [1, 2]
    assert len(read_metrics(tmp_path)) == 5
    assert caplog.text.count("the logger failing failed (ConnectionError: no network) and is off") == 1


def test_without_loggers_no_library_is_loaded(tmp_path: Path) -> None:
    program = PROGRAM + "\nassert not {'tensorboard', 'wandb', 'trackio', 'torch'} & set(sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", program, str(tmp_path), "none", "0", "1"]
    subprocess.run(words, env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL)
