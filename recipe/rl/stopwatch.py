"""Where the seconds of an iteration go."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """`with clock.measure("sampling"): ...` adds to time/sampling; time/step runs from the start."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside to time/<name>."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - start

    def metrics(self) -> dict[str, float]:
        """time/<name> for each name measured, and time/step, in seconds."""
        measured = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        return {**measured, "time/step": time.perf_counter() - self._start}
