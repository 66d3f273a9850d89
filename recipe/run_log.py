"""The folder of a run: config.json and metrics.jsonl; each step is also shown and given to the loggers asked for."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mint.atomic_files import storage_errors, write_all
from mint.errors import InvalidRequest, StorageError
from recipe import journal
from recipe.checkpoint_utils import set_aside_later_records
from recipe.config_record import config_changes, config_to_json
from recipe.metric_loggers import MetricLoggers
from recipe.progress import Progress, stage_name

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
CONFIG_FILE = "config.json"
CONFIG_CHANGES_FILE = "config_changes.jsonl"
LOCK_FILE = ".lock"


class LogPathInUse(InvalidRequest):
    """Another process, or another part of this one, is writing to the same log_path."""


class FolderLock:
    """The right to write to a run's folder, made where needed: for one holder at a time, until `close` or the end of
    the process, however it ends. LogPathInUse where somebody else has it. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / LOCK_FILE
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with storage_errors(self._file):
                os.ftruncate(self._descriptor, 0)
                write_all(self._descriptor, str(os.getpid()).encode())
        except BlockingIOError as error:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            self.close()
            raise LogPathInUse(
                f"log_path={str(folder)!r} is in use by another run (process {holder}); wait for it to end or use "
                "another log_path"
            ) from error
        except BaseException:
            self.close()
            raise

    def check_held(self) -> None:
        """StorageError when the folder was deleted or replaced since."""
        assert self._descriptor is not None, f"{self._file} is closed"
        ours = os.fstat(self._descriptor)
        try:
            found = os.stat(self._file)
        except OSError:
            found = None
        if found is None or not os.path.samestat(ours, found):
            raise StorageError(
                f"log_path={str(self._file.parent)!r} was deleted or replaced while this run was writing to it; its "
                "checkpoints are still in storage (`mint checkpoints list`). Put the folder back to go on from the "
                "last one recorded in it, or start the same command again for a new run"
            )

    def close(self) -> None:
        """Release the folder. Closing twice does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class RunLog:
    """Writes what a run reports. Use as a context manager.

    config.json holds enough to rebuild the config (`recipe.config_record.load_config`); a config that differs from
    the recorded one on resume is noted in config_changes.jsonl. metrics.jsonl gets one JSON line per step: "step"
    first, then keys in order, floats in full, a non-finite value as null with a warning. Each line is on disk before
    `metrics` returns.

    Each line is shown on the terminal (`recipe.progress`) and given to the loggers that the config names in `loggers`
    (`recipe.metric_loggers`), after it is on disk.

    The folder is locked while the log is open: a second process (or a second RunLog) on the same `log_path` gets
    LogPathInUse. The lock ends with the process, however it ends. Where a line cannot be written, `metrics` raises
    StorageError: the lines before it stay.
    """

    def __init__(self, log_path: str | Path, *, config: Any, resume_step: int | None = None) -> None:
        """Open `log_path`, making the folder where needed.

        resume_step: index of the next step of a resumed run; None for a new one. Lines of that step and later ones,
        which a killed process may have left, are dropped: their steps are run again. Checkpoints of later steps are
        dropped from checkpoints.jsonl in the same way (`set_aside_later_records`).
        """
        self.log_path = Path(log_path).expanduser()
        self._lock: FolderLock | None = FolderLock(self.log_path)
        self._loggers: MetricLoggers | None = None
        self._progress: Progress | None = None
        try:
            if resume_step is not None:
                set_aside_later_records(self.log_path, resume_step)
            kept = self._drop_lines_from(resume_step or 0)
            self._last_step = max((line.get("step", -1) for line in kept), default=-1)
            record = config_to_json(config)
            self._record_config(record, resume_step)
            names: Sequence[str] = getattr(config, "loggers", ())
            self._loggers = MetricLoggers(names, self.log_path, record["values"], resume_step or 0, kept)
        except BaseException:
            self.close()
            raise
        self._progress = Progress(stage_name(config), resume_step or 0)
        self._warned_keys: set[str] = set()

    def metrics(self, values: Mapping[str, Any], step: int) -> None:
        """Write one line. `step` must be higher than that of the line before."""
        assert self._lock is not None, f"metrics(step={step}) on a closed RunLog"
        assert step > self._last_step, f"step {step} is logged after step {self._last_step}; one line per step"
        self._lock.check_held()
        line = {key: self._to_json(key, values[key]) for key in sorted(values)}
        journal.append_line(self.log_path / METRICS_FILE, {"step": step, **line})
        self._last_step = step
        assert self._progress is not None and self._loggers is not None
        self._progress.show(step, line)
        self._loggers.log(line, step)

    def close(self, *, is_complete: bool = True) -> None:
        """Release the folder. Closing twice does nothing. is_complete: the run was not broken off."""
        if self._progress is not None:
            self._progress.close()
        if self._loggers is not None:
            self._loggers.close(is_complete=is_complete)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(is_complete=error is None)

    def _to_json(self, key: str, value: Any) -> Any:
        if hasattr(value, "item"):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            if key not in self._warned_keys:
                logger.warning("metric %s is %r; it is written as null", key, value)
                self._warned_keys.add(key)
            return None
        if value is not None and not isinstance(value, (bool, int, float, str)):
            raise InvalidRequest(f"metric {key}={value!r}: must be a number or a string, not {type(value).__name__}")
        return value

    def _drop_lines_from(self, first_step: int) -> list[dict[str, Any]]:
        path = self.log_path / METRICS_FILE
        records = journal.read_lines(path)
        kept = [record for record in records if record.get("step", -1) < first_step]
        if len(kept) < len(records):
            logger.warning("%s: dropped %d lines; going on from step %d", path, len(records) - len(kept), first_step)
        if path.exists():
            journal.rewrite_lines(path, kept)
        return kept

    def _record_config(self, record: dict[str, Any], resume_step: int | None) -> None:
        path = self.log_path / CONFIG_FILE
        if resume_step is not None and path.exists():
            try:
                changes = config_changes(json.loads(path.read_bytes()), record)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                logger.warning("%s is damaged (%r) and is written anew; config changes are not known", path, error)
                changes = {}
            if changes:
                for name, (old, new) in changes.items():
                    logger.warning("config changed on resume at step %d: %s was %r, is %r", resume_step, name, old, new)
                journal.append_line(
                    self.log_path / CONFIG_CHANGES_FILE, {"resume_step": resume_step, "changes": changes}
                )
        journal.replace_file(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def read_metrics(log_path: str | Path) -> list[dict[str, Any]]:
    """Every line of a run's metrics.jsonl, oldest first; [] where there is none."""
    return journal.read_lines(Path(log_path).expanduser() / METRICS_FILE)
