"""Metrics to TensorBoard, Weights & Biases and Trackio, beside metrics.jsonl, which stays the truth.

A logger is opened for a run's folder and gets the lines of metrics.jsonl from the first it lacks: all of them where it
is switched on in the middle of a run. When a killed run goes on, steps that are done again are in it once.

**Adding one:** a class with `open`, `next_step`, `log` and `close`, and its row in `LOGGERS`. Its library is imported
in `open`, and is an extra of pyproject.toml with the name of the logger.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from mint.atomic_files import write_atomically
from mint.errors import InvalidRequest, nearest_name

logger = logging.getLogger(__name__)

IDS_FILE = "logger_ids.json"
PROJECT = "mint-recipes"
Scalars = Mapping[str, float]


class MetricLogger(Protocol):
    """Where metrics go. Whatever it raises switches it off, with a warning; the run goes on."""

    next_step: int
    """The first step that it lacks."""

    @classmethod
    def open(cls, log_path: Path, config: Mapping[str, Any], resume_step: int) -> MetricLogger:
        """For the run in `log_path`, which goes on at resume_step (0: from the start)."""
        ...

    def log(self, values: Scalars, step: int) -> None:
        """The numbers of one step; steps come in order, each once."""
        ...

    def close(self, *, is_complete: bool) -> None:
        """Everything is to be stored when this returns. is_complete: the run was not broken off."""
        ...


class TensorBoardLogger:
    """Event files in log_path/tensorboard: `tensorboard --logdir <log_path>`."""

    def __init__(self, writer: Any, next_step: int) -> None:
        self._writer = writer
        self.next_step = next_step

    @classmethod
    def open(cls, log_path: Path, config: Mapping[str, Any], resume_step: int) -> TensorBoardLogger:
        """See MetricLogger. Steps from resume_step on that are there already are marked as replaced."""
        del config
        from torch.utils.tensorboard.writer import SummaryWriter

        folder = log_path / "tensorboard"
        is_new = not any(folder.glob("events.out.tfevents.*"))
        writer = SummaryWriter(str(folder), purge_step=None if is_new else resume_step)
        return cls(writer, 0 if is_new else resume_step)

    def log(self, values: Scalars, step: int) -> None:
        """See MetricLogger."""
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self, *, is_complete: bool) -> None:
        """See MetricLogger."""
        del is_complete
        self._writer.close()


class WandbLogger:
    """A run of Weights & Biases, the same one when the run goes on. WANDB_PROJECT, WANDB_MODE and so on are obeyed.

    In offline mode each process writes a folder of its own with all steps: sync the newest.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.next_step: int = run.step

    @classmethod
    def open(cls, log_path: Path, config: Mapping[str, Any], resume_step: int) -> WandbLogger:
        """See MetricLogger."""
        wandb = import_module("wandb")
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), id=_run_id(log_path, "wandb", resume_step),
            name=_run_name(log_path), dir=str(log_path), config=dict(config), resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        return cls(run)

    def log(self, values: Scalars, step: int) -> None:
        """See MetricLogger."""
        self._run.log(dict(values), step=step, commit=True)

    def close(self, *, is_complete: bool) -> None:
        """See MetricLogger."""
        self._run.finish(exit_code=0 if is_complete else 1)


class TrackioLogger:
    """A run of Trackio, the same one when the run goes on; `trackio show` opens it. TRACKIO_PROJECT, TRACKIO_DIR and
    TRACKIO_SPACE_ID are obeyed."""

    def __init__(self, run: Any, next_step: int) -> None:
        self._run = run
        self.next_step = next_step

    @classmethod
    def open(cls, log_path: Path, config: Mapping[str, Any], resume_step: int) -> TrackioLogger:
        """See MetricLogger."""
        trackio = import_module("trackio")
        storage = import_module("trackio.sqlite_storage").SQLiteStorage
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        name = f"{_run_name(log_path)} {_run_id(log_path, 'trackio', resume_step)}"
        # What a Space has, it does not tell.
        is_remote = bool(os.environ.get("TRACKIO_SPACE_ID"))
        last_step = resume_step - 1 if is_remote else storage.get_last_step(project, run=name)
        with redirect_stdout(sys.stderr):
            run = trackio.init(
                project, name, config=dict(config), resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
            )
        return cls(run, 0 if last_step is None else last_step + 1)

    def log(self, values: Scalars, step: int) -> None:
        """See MetricLogger."""
        self._run.log(dict(values), step=step)

    def close(self, *, is_complete: bool) -> None:
        """See MetricLogger."""
        del is_complete
        with redirect_stdout(sys.stderr):
            self._run.finish()


LOGGERS: dict[str, tuple[str, type[MetricLogger]]] = {
    "tensorboard": ("tensorboard", TensorBoardLogger),
    "wandb": ("wandb", WandbLogger),
    "trackio": ("trackio", TrackioLogger),
}
"""Name, which is also the extra's -> (module that has to be there, class)."""


def check_loggers(names: Sequence[str]) -> None:
    """InvalidRequest for a name that is unknown or given twice, and for a library that is not installed."""
    for i, name in enumerate(names):
        if name not in LOGGERS:
            raise InvalidRequest(
                f"loggers={','.join(names)}: no logger is called {name!r}; known are {', '.join(LOGGERS)}."
                f"{nearest_name(name, LOGGERS)}"
            )
        if name in names[:i]:
            raise InvalidRequest(f"loggers={','.join(names)}: {name!r} is given twice")
        module = LOGGERS[name][0]
        if find_spec(module) is None:
            raise InvalidRequest(
                f"loggers={','.join(names)}: {module} is not installed: pip install 'mint-recipes[{name}]'"
            )


class MetricLoggers:
    """The loggers of one run."""

    def __init__(
        self, names: Sequence[str], log_path: Path, config: Mapping[str, Any], resume_step: int,
        lines: Sequence[Mapping[str, Any]],
    ) -> None:  # fmt: skip
        """lines: those of metrics.jsonl as the run goes on; a logger gets what it lacks of them now."""
        check_loggers(names)
        self._open: dict[str, MetricLogger] = {}
        for name in names:
            try:
                self._open[name] = LOGGERS[name][1].open(log_path, config, resume_step)
            except Exception as error:
                _warn(name, error)
        for line in lines:
            self.log(line, line["step"])

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """A line of metrics.jsonl: its numbers, to every logger that lacks the step."""
        numbers = {key: float(value) for key, value in values.items() if _is_number(value) and key != "step"}
        for name, each in list(self._open.items()):
            if step >= each.next_step:
                try:
                    each.log(numbers, step)
                except Exception as error:
                    del self._open[name]
                    _warn(name, error)

    def close(self, *, is_complete: bool) -> None:
        """Close them all. Closing twice does nothing."""
        while self._open:
            name, each = self._open.popitem()
            try:
                each.close(is_complete=is_complete)
            except Exception as error:
                _warn(name, error)


def _warn(name: str, error: Exception) -> None:
    logger.warning("the logger %s failed (%s: %s) and is off; metrics.jsonl has everything", name, type(error).__name__,
                   error)  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _run_name(log_path: Path) -> str:
    """The last two parts of the folder's path: "demo/rl" of a pipeline's stage."""
    return "/".join(log_path.absolute().parts[-2:])


def _run_id(log_path: Path, name: str, resume_step: int) -> str:
    """The id that a service knows this run by: kept in the folder, and a new one for a run from the start."""
    path = log_path / IDS_FILE
    ids: dict[str, str] = json.loads(path.read_bytes()) if path.exists() else {}
    if name not in ids or resume_step == 0:
        ids[name] = secrets.token_hex(8)
        write_atomically(path, (json.dumps(ids, indent=2, sort_keys=True) + "\n").encode())
    return ids[name]
