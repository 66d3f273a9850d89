"""Ctrl-C and SIGTERM in small programs of their own: how they end, how fast, and what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipe.interruption import PATIENCE_SECONDS, run_until_interrupted

ROOT = Path(__file__).resolve().parents[2]
LINE = "; start the same command again to go on from the last checkpoint"

PROGRAM = """
import asyncio, sys, time
from recipe.interruption import run_until_interrupted

async def orderly():
    print("up", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("closed", flush=True)

async def failing():
    print("up", flush=True)
    try:
        await asyncio.gather(*(asyncio.sleep(60) for _ in range(8)))
    finally:
        raise ValueError("cannot be closed")

async def stubborn():
    print("up", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("ignored", flush=True)

async def blocking():
    print("up", flush=True)
    time.sleep(60)

run_until_interrupted(globals()[sys.argv[1]]())
"""


def start(work: str, before: signal.Handlers = signal.SIG_DFL) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, work], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, before),
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize(
    ("number", "word", "work", "output"),
    [
        (signal.SIGINT, "interrupted", "orderly", "closed\n"),
        (signal.SIGTERM, "terminated", "orderly", "closed\n"),
        (signal.SIGINT, "interrupted", "failing", ""),
    ],
)
def test_a_signal_closes_what_is_open_and_says_one_line(number, word, work, output) -> None:
    process = start(work)
    started = time.monotonic()
    process.send_signal(number)
    printed, errors = process.communicate(timeout=30)
    assert time.monotonic() - started < PATIENCE_SECONDS
    assert (process.returncode, printed, errors.strip()) == (-number, output, word + LINE)


@pytest.mark.parametrize("work", ["stubborn", "blocking"])
def test_what_does_not_end_is_cut_off(work: str) -> None:
    process = start(work)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=30)[1]
    assert time.monotonic() - started < PATIENCE_SECONDS + 2
    assert (process.returncode, errors.strip()) == (-signal.SIGINT, "interrupted" + LINE)


def test_a_second_signal_ends_it_at_once() -> None:
    process = start("stubborn")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None and process.stdout.readline() == "ignored\n"
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=30)[1]
    assert time.monotonic() - started < 1
    assert (process.returncode, errors.strip()) == (-signal.SIGINT, "interrupted" + LINE)


def test_a_shell_reports_130_and_leaves_its_loop() -> None:
    loop = 'for i in 1 2 3; do "$0" -c "$1" orderly; echo status $?; done'
    process = subprocess.Popen(
        ["bash", "-c", loop, sys.executable, PROGRAM], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "closed\n"
    assert process.returncode == -signal.SIGINT


def test_a_background_job_still_ignores_ctrl_c() -> None:
    process = start("orderly", before=signal.SIG_IGN)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "closed\n"
    assert process.returncode == -signal.SIGTERM


def test_without_a_signal_errors_and_handlers_are_as_they_were() -> None:
    async def failing() -> None:
        assert signal.getsignal(signal.SIGTERM) is not before
        raise ValueError("a defect")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="a defect"):
        run_until_interrupted(failing())
    assert signal.getsignal(signal.SIGTERM) is before
