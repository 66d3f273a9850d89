"""What the terminal shows of a stage: one line a step, and on a terminal a bar below the lines.

The lines are the same everywhere, fields apart by two spaces, so that a file of them can be read by a program:

    sft  step 12/40  train_mean_nll 1.2345  test/nll 1.3000  0.8 s  0:23 left

The bar is stderr's; it goes when the stage ends, however it ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, redirect_stdout
from types import TracebackType
from typing import Any, TextIO

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

# What a line shows where a step has it, the first three of these; all there is is in metrics.jsonl.
HEADLINES = (
    "faults/refused_steps",
    "train_mean_nll",
    "test/nll",
    "env/all/reward/total",
    "test/env/all/reward/total",
    "yardstick/independent",
    "kl_policy_base_per_episode",
    "loss",
    "pair_accuracy",
    "test/pair_accuracy",
    "accuracy",
    "test/accuracy",
    "kl_sample_train_v1",
    "entropy",
)
_MAX_HEADLINES = 3
# Modules of the stages' configs -> what people call the stage.
_STAGES = {
    "recipe.supervised": "sft",
    "recipe.preference.dpo": "dpo",
    "recipe.preference": "preference",
    "recipe.rl": "rl",
}


def stage_name(config: Any) -> str:
    """What a config's stage is called on the terminal; "run" for one that is none of ours."""
    module = type(config).__module__
    return next((name for package, name in _STAGES.items() if f"{module}.".startswith(f"{package}.")), "run")


class Progress:
    """Shows the steps of one stage as they are done. Use as a context manager.

    terminal: where the bar goes if it is one; None is stderr. first_step: where a resumed run goes on.
    """

    def __init__(
        self, stage: str, first_step: int, *, terminal: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._stage = stage
        self._terminal = terminal or sys.stderr
        self._clock = clock
        self._first_step, self._started = first_step, clock()
        self._last_shown = self._started
        self._num_steps: int | None = None
        self._bar: tqdm | None = None
        self._redirections = ExitStack()

    def show(self, step: int, values: Mapping[str, Any]) -> None:
        """Print the line of a step, and move the bar."""
        line = self.line(step, values)
        if self._bar is None and self._terminal.isatty() and os.environ.get("TERM") != "dumb":
            self._open_bar()
        print(line, flush=True)
        if self._bar is not None:
            self._bar.total = self._num_steps
            self._bar.n = step + 1 if self._num_steps is None else min(step + 1, self._num_steps)
            self._bar.refresh()

    def line(self, step: int, values: Mapping[str, Any]) -> str:
        """Stage, step, the numbers that matter, and the time: of this step, and until the last."""
        now = self._clock()
        seconds, self._last_shown = now - self._last_shown, now
        done_frac, is_training = values.get("progress/done_frac"), "learning_rate" in values
        if is_training and isinstance(done_frac, float) and done_frac > 0:
            self._num_steps = max(round((step + 1) / done_frac), step + 1)
        elif not is_training and done_frac == 1:
            self._num_steps = step  # the evaluation after the last step
        num_done = step + 1 if is_training or done_frac is None else step
        position = f"step {num_done}" if self._num_steps is None else f"step {num_done}/{self._num_steps}"
        fields = [self._stage, position, *(f"{key} {_for_people(values[key])}" for key in _headlines(values))]
        if values.get("yardstick/alarm"):
            fields.append("ALARM: reward and yardstick part")
        return "  ".join([*fields, f"{seconds:.1f} s", *self._time_left(num_done, now)])

    def _time_left(self, num_done: int, now: float) -> list[str]:
        done_here = num_done - self._first_step
        if self._num_steps is None or done_here < 1 or num_done >= self._num_steps:
            return []
        seconds = round((now - self._started) / done_here * (self._num_steps - num_done))
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        return [f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"]

    def _open_bar(self) -> None:
        _Bar.set_lock(threading.RLock())
        self._bar = _Bar(
            desc=self._stage, initial=self._first_step, unit="step", file=self._terminal, dynamic_ncols=True,
            leave=False,
        )  # fmt: skip
        # What others print and log goes above the bar too.
        self._redirections.enter_context(logging_redirect_tqdm())
        if sys.stdout.isatty():
            above: Any = self._redirections.enter_context(closing(_AboveBar(sys.stdout)))
            self._redirections.enter_context(redirect_stdout(above))

    def close(self) -> None:
        """Take the bar away. Closing twice does nothing."""
        self._redirections.close()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Bar(tqdm):
    monitor_interval = 0  # no thread that redraws: a step does


class _AboveBar:
    """Standard output while a bar stands on the terminal: whole lines, each written where the bar is, which moves."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._unfinished = ""

    def write(self, text: str) -> int:
        lines, newline, rest = (self._unfinished + text).rpartition("\n")
        self._unfinished = rest
        self._write(lines + newline)
        return len(text)

    def close(self) -> None:
        """Write what has no end of line yet; the stream stays open."""
        self._write(self._unfinished)
        self._unfinished = ""

    def _write(self, text: str) -> None:
        if text:
            with _Bar.external_write_mode(file=self):
                self._stream.write(text)
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _headlines(values: Mapping[str, Any]) -> list[str]:
    keys = [key for key in HEADLINES if key in values]
    if not keys:
        hidden = ("time/", "progress/", "learning_rate", "epoch", "num_", "optim/")
        keys = [key for key in values if not key.startswith(hidden)]
    return keys[:_MAX_HEADLINES]


def _for_people(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2e}" if value != 0 and abs(value) < 1e-3 else f"{value:.4f}"
