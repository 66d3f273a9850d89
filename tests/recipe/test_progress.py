"""What a stage prints: lines that people and programs read, and on a terminal a bar that leaves nothing behind."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from recipe.progress import Progress, stage_name
from recipe.rl.config import Config as RLConfig
from recipe.supervised.train import Config as SFTConfig

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio, logging, sys
import chz
from recipe.interruption import run_until_interrupted
from recipe.run_log import RunLog

logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")

@chz.chz(typecheck=True)
class Settings:
    rate: float = 0.1

async def work():
    with RunLog(sys.argv[1], config=Settings()) as log:
        for step in range(4):
            values = {"loss": 0.5, "learning_rate": 1e-3, "progress/done_frac": (step + 1) / 4, "time/step": 0.0}
            log.metrics(values, step=step)
            if step == 1:
                print("said by a recipe")
                logging.getLogger("x").warning("look out")
            if step == 2 and "wait" in sys.argv:
                await asyncio.sleep(60)
        log.metrics({"test/nll": 1.25, "progress/done_frac": 1.0}, step=4)
    print("done")

run_until_interrupted(work())
"""
LINES = [
    "run  step 1/4  loss 0.5000",
    "run  step 2/4  loss 0.5000",
    "said by a recipe",
    "WARNING: look out",
    "run  step 3/4  loss 0.5000",
    "run  step 4/4  loss 0.5000",
    "run  step 4/4  test/nll 1.2500",
    "done",
]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_has_stage_position_numbers_and_time() -> None:
    clock = Clock()
    progress = Progress("sft", 0, clock=clock)
    values = {"learning_rate": 1e-4, "optim/grad_norm": 3.0, "train_mean_nll": 2.0, "progress/done_frac": 0.25}
    clock.now += 2
    assert progress.line(9, values) == "sft  step 10/40  train_mean_nll 2.0000  2.0 s  0:06 left"
    clock.now += 7000
    values |= {"progress/done_frac": 20 / 40, "test/nll": 0.00012, "time/step": 1.0}
    assert progress.line(19, values) == (
        "sft  step 20/40  train_mean_nll 2.0000  test/nll 1.20e-04  7000.0 s  1:56:42 left"
    )


def test_the_evaluation_after_the_last_step_is_not_one_more_step() -> None:
    progress = Progress("rl", 3, clock=Clock())
    evaluation = {"test/env/all/reward/total": 0.5, "progress/done_frac": 1.0}
    assert progress.line(3, evaluation) == "rl  step 3/3  test/env/all/reward/total 0.5000  0.0 s"


def test_time_left_counts_only_what_this_process_did() -> None:
    clock = Clock()
    progress = Progress("rl", 30, clock=clock)
    clock.now += 10
    line = progress.line(31, {"env/all/reward/total": 1.0, "learning_rate": 0.1, "progress/done_frac": 32 / 40})
    assert line.endswith("  0:40 left")  # 2 steps in 10 seconds, 8 to go


def test_three_numbers_at_most_and_an_alarm_always() -> None:
    values = {"env/all/reward/total": 1.0, "loss": 1.0, "entropy": 1.0, "kl_sample_train_v1": 0.0, "yardstick/alarm": 1}
    line = Progress("rl", 0, clock=Clock()).line(0, values)
    assert line == (
        "rl  step 1  env/all/reward/total 1.0000  loss 1.0000  kl_sample_train_v1 0.0000  "
        "ALARM: reward and yardstick part  0.0 s"
    )


@pytest.mark.parametrize(("config_class", "name"), [(SFTConfig, "sft"), (RLConfig, "rl"), (Clock, "run")])
def test_stages_are_called_what_people_call_them(config_class: type, name: str) -> None:
    assert stage_name(object.__new__(config_class)) == name


def without_times(lines: list[str]) -> list[str]:
    return [re.sub(r"  \d+\.\d s(  \d+:\d\d left)?$", "", line) for line in lines]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}


def test_in_a_pipe_there_are_lines_and_nothing_else(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert without_times(done.stdout.splitlines()) == [line for line in LINES if "WARNING" not in line]
    assert done.stderr == "WARNING: look out\n"


def on_terminal(*arguments: str, interrupt_at: str | None = None) -> tuple[int, str]:
    """Exit status and everything that a program wrote to a terminal of its own; Ctrl-C once it has written a text."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(),
        close_fds=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    os.close(theirs)
    output, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the other end is closed: Linux says EIO
                break
            output += chunk
            if not chunk:
                break
        if interrupt_at is not None and interrupt_at.encode() in output:
            process.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(ours)
    return process.wait(timeout=20), output.decode()


def screen(output: str) -> list[str]:
    """What remains to be seen: a carriage return writes over the line."""
    rows: list[str] = []
    for row in output.split("\n"):
        shown = ""
        for part in row.removesuffix("\r").split("\r"):
            shown = part + shown[len(part) :]
        rows.append(re.sub(r"\033\[[0-9;]*[A-Za-z]", "", shown).rstrip())
    return [row for row in rows if row]


def test_on_a_terminal_a_bar_moves_below_the_lines_and_goes(tmp_path: Path) -> None:
    status, output = on_terminal(str(tmp_path))
    assert status == 0
    assert "50%|" in output and "2/4" in output, "no bar was drawn"
    assert without_times(screen(output)) == LINES


def test_ctrl_c_takes_the_bar_away_and_says_one_line(tmp_path: Path) -> None:
    status, output = on_terminal(str(tmp_path), "wait", interrupt_at="step 3/4")
    assert status == -signal.SIGINT
    shown = screen(output)
    assert "75%|" in output, "no bar was drawn"
    assert shown[-1] == "interrupted; start the same command again to go on from the last checkpoint"
    assert "Traceback" not in output and "done" not in shown
