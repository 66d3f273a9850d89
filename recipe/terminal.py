"""Colours on a terminal, and none anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

# ANSI "select graphic rendition" codes (ECMA-48, 8.3.117).
_CODES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35", "bold green": "1;32",
    "bold red": "1;31",
}  # fmt: skip


@dataclass(frozen=True)
class Palette:
    """Paints text, or leaves it as it is where `is_coloured` is False."""

    is_coloured: bool

    @classmethod
    def of(cls, stream: TextIO, environment: Mapping[str, str]) -> Palette:
        """Colours for a terminal, unless NO_COLOR is set (https://no-color.org) or the terminal is a dumb one."""
        is_unwanted = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
        return cls(stream.isatty() and not is_unwanted)

    def paint(self, text: str, style: str) -> str:
        """`text` in a style: bold, dim, red, green, yellow, magenta, bold green or bold red."""
        code = _CODES[style]
        return f"\033[{code}m{text}\033[0m" if self.is_coloured and text else text
