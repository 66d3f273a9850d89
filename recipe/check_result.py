"""One thing that was looked at, and how it was found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from recipe.terminal import Palette

_STYLES = {"ok": "green", "note": "yellow", "FAIL": "bold red"}


class Outcome(StrEnum):
    """How a check ended. A note is for what could not be compared, or need not be."""

    OK = "ok"
    NOTE = "note"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    """`detail` says what was found, with its numbers; `remedy` what to do about it where something can be done."""

    name: str
    outcome: Outcome
    detail: str
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.remedy or self.outcome is not Outcome.FAIL, f"check {self.name!r} fails without a remedy"

    def lines(self, palette: Palette) -> list[str]:
        """One line, and a second with the remedy where there is one."""
        outcome = palette.paint(f"{self.outcome.value:4}", _STYLES[self.outcome.value])
        lines = [f"  {outcome}  {self.name}: {self.detail}"]
        if self.remedy:
            lines.append(f"        {palette.paint('what to do:', 'bold')} {self.remedy}")
        return lines
