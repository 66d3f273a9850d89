"""Files of a run as they are, damaged or not: what can be read is returned, what cannot becomes a problem to report.

A report is most wanted where something went wrong, so nothing in a run's folder may keep it from being written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# Of one file; more say nothing new.
MAX_PROBLEMS_PER_FILE = 20


@dataclass(frozen=True)
class Problem:
    """Something in a file that could not be read."""

    # Path within the run's folder.
    file: str
    # Line in it, from 1; None where it is about the whole file.
    line: int | None
    what: str


@dataclass
class FolderReader:
    """Reads files under `root`; `problems` says what was left out."""

    root: Path
    problems: list[Problem] = field(default_factory=list)

    def name_of(self, path: Path) -> str:
        """The path within the run's folder."""
        return path.relative_to(self.root).as_posix()

    def json_file(self, path: Path) -> Any:
        """The content of a JSON file; None where there is none, or none that can be read."""
        if not path.is_file():
            return None
        try:
            return _parse(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            self.report(path, None, f"not readable as JSON: {error}")
            return None

    def lines(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every line that holds a JSON object, with its number; nothing where there is no file."""
        if not path.is_file():
            return
        try:
            raw_lines = path.read_bytes().split(b"\n")
        except OSError as error:
            self.report(path, None, f"not readable: {error}")
            return
        for number, line in enumerate(raw_lines, start=1):
            if not line.strip():
                continue
            try:
                record = _parse(line)
            except (ValueError, RecursionError) as error:
                is_cut = number == len(raw_lines)
                self.report(path, number, "half-written, left out" if is_cut else f"not JSON, left out: {error}")
                continue
            if isinstance(record, dict):
                yield number, record
            else:
                self.report(path, number, "not a JSON object, left out")

    def report(self, path: Path, line: int | None, what: str) -> None:
        """Note a problem."""
        name = self.name_of(path)
        num_known = sum(problem.file == name for problem in self.problems)
        if num_known < MAX_PROBLEMS_PER_FILE:
            self.problems.append(Problem(name, line, what[:300]))
        elif num_known == MAX_PROBLEMS_PER_FILE:
            self.problems.append(Problem(name, line, "from here on more of its lines are damaged"))

    def problems_as_json(self) -> list[dict[str, Any]]:
        """All problems, as the page wants them."""
        return [asdict(problem) for problem in self.problems]


def number(value: Any, digits: int = 6) -> float | int | None:
    """A finite number to that many significant digits; None for everything else."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if abs(value) < 2**53 else float(value) if abs(value) < 2**1000 else None
    if not isinstance(value, float) or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def dump(value: Any) -> bytes:
    """Compact JSON in ASCII; numbers that are not finite become null, which the browser's parser asks for."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).encode("ascii")


def _parse(data: bytes) -> Any:
    return json.loads(data, parse_constant=lambda _: None)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
