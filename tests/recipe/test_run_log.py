"""metrics.jsonl, resume, and the lock of a run's folder."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from pathlib import Path

import chz
import numpy as np
import pytest

from mint.errors import InvalidRequest
from recipe.run_log import RunLog, read_metrics


@chz.chz(typecheck=True)
class Settings:
    rate: float = 0.1


def write_steps(log_path: Path, steps: range, resume_step: int | None = None) -> None:
    with RunLog(log_path, config=Settings(), resume_step=resume_step) as log:
        for step in steps:
            log.metrics({"loss": 1 / (step + 3)}, step=step)


def test_step_comes_first_then_sorted_keys_with_full_precision(tmp_path: Path) -> None:
    with RunLog(tmp_path, config=Settings()) as log:
        log.metrics({"b": 1 / 3, "a": np.float64(0.1), "n": 3, "tag": "x"}, step=0)
    line = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert line == '{"step": 0, "a": 0.1, "b": 0.3333333333333333, "n": 3, "tag": "x"}\n'


def test_resumed_file_equals_an_undisturbed_one(tmp_path: Path) -> None:
    write_steps(tmp_path / "whole", range(6))
    write_steps(tmp_path / "parts", range(5))  # killed after step 4, last checkpoint before step 3
    with (tmp_path / "parts/metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 5, "lo')
    write_steps(tmp_path / "parts", range(3, 6), resume_step=3)
    assert (tmp_path / "parts/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_starting_over_without_a_checkpoint_drops_the_old_lines_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_steps(tmp_path, range(3))
    with caplog.at_level(logging.WARNING):
        write_steps(tmp_path, range(1))
    assert "dropped 3 lines; going on from step 0" in caplog.text
    assert [line["step"] for line in read_metrics(tmp_path)] == [0]


def test_config_change_on_resume_is_recorded_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_steps(tmp_path, range(2))
    with caplog.at_level(logging.WARNING), RunLog(tmp_path, config=Settings(rate=0.2), resume_step=2):
        pass
    assert "config changed on resume at step 2: rate was 0.1, is 0.2" in caplog.text
    record = json.loads((tmp_path / "config_changes.jsonl").read_text(encoding="utf-8"))
    assert record == {"resume_step": 2, "changes": {"rate": [0.1, 0.2]}}


def test_unchanged_config_leaves_no_record_of_changes(tmp_path: Path) -> None:
    write_steps(tmp_path, range(2))
    write_steps(tmp_path, range(2, 3), resume_step=2)
    assert not (tmp_path / "config_changes.jsonl").exists()


def test_non_finite_value_is_null_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), RunLog(tmp_path, config=Settings()) as log:
        log.metrics({"loss": math.nan}, step=0)
        log.metrics({"loss": math.inf}, step=1)
    assert [line["loss"] for line in read_metrics(tmp_path)] == [None, None]
    assert caplog.text.count("metric loss is") == 1


def test_a_value_that_is_no_number_or_text_is_refused(tmp_path: Path) -> None:
    with RunLog(tmp_path, config=Settings()) as log, pytest.raises(InvalidRequest, match=r"metric loss=\[1\]"):
        log.metrics({"loss": [1]}, step=0)


def test_a_step_is_logged_once(tmp_path: Path) -> None:
    with RunLog(tmp_path, config=Settings()) as log:
        log.metrics({"loss": 1.0}, step=3)
        with pytest.raises(AssertionError, match="step 3 is logged after step 3"):
            log.metrics({"loss": 1.0}, step=3)


def test_second_log_on_the_same_folder_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    with (
        RunLog(tmp_path, config=Settings()),
        pytest.raises(InvalidRequest, match="is in use by another run .* use another log_path"),
    ):
        RunLog(tmp_path, config=Settings())
    RunLog(tmp_path, config=Settings()).close()


def test_another_process_is_refused_and_a_killed_one_frees_the_folder(tmp_path: Path) -> None:
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'a+'); fcntl.flock(f, fcntl.LOCK_EX); "
        "f.write('4321'); f.flush(); print('locked', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / ".lock")], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"locked\n"
        with pytest.raises(InvalidRequest, match="process 4321"):
            RunLog(tmp_path, config=Settings())
    finally:
        process.kill()
        process.wait()
    RunLog(tmp_path, config=Settings()).close()


def test_each_step_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_steps(tmp_path, range(3))
    assert len(capsys.readouterr().out.splitlines()) == 3
