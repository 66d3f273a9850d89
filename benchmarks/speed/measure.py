"""Time and memory of one side of a row, measured inside its own process."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Measured:
    """What one process of one side found.

    step_seconds: one entry per measured optimizer step (or sampling round). tokens, pairs and sampled_tokens: in all
    measured steps together, real tokens without padding. phases: seconds in all measured steps together. memory_mib:
    the most the process held while measured; above_model_mib: how much of it came on top of the loaded model.
    """

    step_seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    pairs: int = 0
    sampled_tokens: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    memory_mib: float = 0.0
    above_model_mib: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)

    def print(self) -> None:
        """The last line of the process's output, for the command that started it."""
        print(json.dumps(asdict(self)), flush=True)


class Meter:
    """Times steps, drops the first ones, and watches the process's peak memory.

    Create it once the model is loaded: memory above that counts as the row's own.
    """

    def __init__(self, num_warmup: int) -> None:
        self._num_warmup = num_warmup
        self._step_seconds: list[float] = []
        self._phases: defaultdict[str, float] = defaultdict(float)
        self._model_mib = _status_mib("VmRSS")
        _reset_peak()

    @property
    def is_warm(self) -> bool:
        """Whether the step under way counts."""
        return len(self._step_seconds) >= self._num_warmup

    @contextmanager
    def step(self) -> Iterator[None]:
        """One optimizer step."""
        started = time.perf_counter()
        yield
        self._step_seconds.append(time.perf_counter() - started)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of a step."""
        started = time.perf_counter()
        yield
        if self.is_warm:
            self._phases[name] += time.perf_counter() - started

    def measured(self, **counts: Any) -> Measured:
        """Everything measured so far; counts are those of `Measured`, of the measured steps alone."""
        peak = _status_mib("VmHWM")
        return Measured(
            step_seconds=self._step_seconds[self._num_warmup :],
            phases=dict(self._phases),
            memory_mib=round(peak, 1),
            above_model_mib=round(peak - self._model_mib, 1),
            **counts,
        )


def _status_mib(field_name: str) -> float:
    """A field of /proc/self/status that is given in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field_name}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(field_name)


def _reset_peak() -> None:
    """Let VmHWM start from what is held now (see proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")
