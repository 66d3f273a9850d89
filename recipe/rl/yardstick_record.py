"""What a yardstick leaves in a run's folder: its measurements, and the best checkpoint among them.

Axes: _P prompts, _R replies to one prompt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recipe import journal

MEASUREMENTS_FILE = "yardstick.jsonl"
BEST_FILE = "yardstick_best.json"


@dataclass(frozen=True)
class Measurement:
    """One line of yardstick.jsonl: the scores of all replies, and the checkpoint where it was the best so far."""

    iteration: int
    metrics: dict[str, float]
    reward_PR: np.ndarray
    independent_PR: np.ndarray
    state_path: str | None = None
    sampler_path: str | None = None

    @property
    def value(self) -> float:
        """The independent score, by which the best checkpoint is chosen."""
        return float(self.independent_PR.mean())

    def to_json(self) -> dict[str, Any]:
        """The line."""
        return {
            "iteration": self.iteration,
            "metrics": self.metrics,
            "reward": self.reward_PR.tolist(),
            "independent": self.independent_PR.tolist(),
            "state_path": self.state_path,
            "sampler_path": self.sampler_path,
        }

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Measurement:
        """The measurement of a line."""
        scores = {f"{name}_PR": np.asarray(line[name], dtype=np.float64) for name in ("reward", "independent")}
        return cls(line["iteration"], line["metrics"], **scores, **{k: line[k] for k in ("state_path", "sampler_path")})


@dataclass(frozen=True)
class BestCheckpoint:
    """What yardstick_best.json says: where the independent score was highest, and the checkpoint kept of it."""

    iteration: int
    value: float
    state_path: str
    sampler_path: str


def read_measurements(log_path: str | Path) -> list[Measurement]:
    """Every measurement of a run, in order; [] for a run without a yardstick."""
    return [Measurement.from_json(line) for line in journal.read_lines(Path(log_path).expanduser() / MEASUREMENTS_FILE)]


def read_best(log_path: str | Path) -> BestCheckpoint | None:
    """The best checkpoint of a run by its yardstick; None where it had none."""
    file = Path(log_path).expanduser() / BEST_FILE
    return BestCheckpoint(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def best_of(measurements: Sequence[Measurement]) -> Measurement | None:
    """The one with the highest independent score, the earliest of equals; None of none."""
    return max(measurements, key=lambda measurement: (measurement.value, -measurement.iteration), default=None)


def write_best(folder: Path, measurements: Sequence[Measurement]) -> None:
    """Make yardstick_best.json say what the measurements say; no file where there are none."""
    best = best_of(measurements)
    if best is None:
        (folder / BEST_FILE).unlink(missing_ok=True)
        return
    assert best.state_path is not None and best.sampler_path is not None, f"no checkpoint of {best.iteration}"
    checkpoint = BestCheckpoint(best.iteration, best.value, best.state_path, best.sampler_path)
    journal.replace_file(folder / BEST_FILE, json.dumps(asdict(checkpoint), indent=2) + "\n")
