"""What became of a program, read from what its supervisor says and from what the program itself reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from envs.sandbox.inside.plain_values import NotPlainError, from_json

ProgramEnd = Literal["ended", "cpu time", "wall time", "output"]
CallKind = Literal["value", "raised", "not plain", "missing"]


@dataclass(frozen=True)
class CallResult:
    """What one call gave.

    kind "value": `value` is of built-in types only. "raised": `message` names the exception. "not plain": it returned
    something else than a plain value. "missing": the program ended, or broke off its reports, before that.
    """

    kind: CallKind
    value: Any = None
    message: str = ""


@dataclass(frozen=True)
class ProgramResult:
    """What a program did. Everything but `end`, `exit_code` and `cpu_seconds` is the program's own word."""

    # "ended" by itself, or the limit that ended it.
    end: ProgramEnd
    # Of a program that ended by itself; negative: the signal that it died of.
    exit_code: int | None
    # Processor time of the program and the children that it waited for.
    cpu_seconds: float
    # Whether the program could be loaded: kind "value" where it could.
    loaded: CallResult
    # One for each call, in order.
    calls: tuple[CallResult, ...]
    # What it printed, to stdout and stderr.
    output: str


def read_result(reply: dict[str, Any], num_calls: int) -> ProgramResult:
    """The result in a supervisor's reply. A report of another form than ours counts as missing, and so do all later."""
    results: list[CallResult] = []
    # What was reported before an output limit struck depends on the reader's speed.
    lines = reply["reports"].split("\n")[:-1] if reply["end"] != "output" else []
    for line in lines[: num_calls + 1]:
        result = _read_report(line)
        if result is None:
            break
        results.append(result)
    missing = CallResult("missing", message=_reason(reply))
    results += [missing] * (num_calls + 1 - len(results))
    return ProgramResult(
        end=reply["end"],
        exit_code=reply["exit_code"],
        cpu_seconds=reply["cpu_seconds"],
        loaded=results[0],
        calls=tuple(results[1:]),
        output=reply["output"],
    )


def _read_report(line: str) -> CallResult | None:
    """One line of a program's reports; None for anything that `program` never writes."""
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match report:
        case ["value", data]:
            try:
                return CallResult("value", from_json(data))
            except NotPlainError:
                return None
        case [("raised" | "not plain") as kind, str(message)]:
            return CallResult(kind, message=message)
    return None


def _reason(reply: dict[str, Any]) -> str:
    if reply["end"] != "ended":
        return f"the program reached its limit of {reply['end']}"
    return f"the program ended before, with exit status {reply['exit_code']}"
