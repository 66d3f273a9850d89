"""Whether an answer to a mathematical question is right: as text, as a number, or as an expression.

Text and numbers are compared here. Expressions are compared by math-verify, in processes that are killed when they take
too long (`envs.math_worker`), so that grading works from any thread or event loop and no answer can stop a run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import selectors
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, get_args

from envs.math_worker import DIFFERENT, EQUAL, UNREADABLE
from mint.errors import InvalidRequest, nearest_name

Grading = Literal["exact", "numeric", "symbolic"]
Verdict = Literal["right", "wrong", "failed"]

# Longer answers are not answers; the parser's time grows fast with the length.
_MAX_EXPRESSION_CHARACTERS = 400
_CPU_SECONDS = 5
# A process that is neither done nor over its CPU time by then is stuck.
_WALL_SECONDS = 60.0
_NUMBER = r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d{1,60})(?:\.\d{0,60})?|\.\d{1,60})"
_LAST_NUMBER = re.compile(rf"(?<![\w.]){_NUMBER}(?:/\d{{1,60}})?%?")
_PLAIN_NUMBER = re.compile(rf"({_NUMBER})(?:/(\d{{1,60}}))?")
_FRACTION = re.compile(r"([-+]?)\\[dt]?frac\{([-+]?\d{1,60})\}\{(\d{1,60})\}")
# Units and the like: words, or LaTeX text, after the number.
_UNIT = re.compile(r"\s*(?:\\(?:text|mathrm)\{[^{}\d]*\}|[a-zA-Z][a-zA-Z ]*|\\?%|°)\.?$")


def boxed_answer(text: str) -> str | None:
    r"""What the last \boxed{...} of a text holds; None where there is none, or its brace is never closed."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed")
    for i in range(begin, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[begin + 1 : i].strip()
    return None


def hashes_answer(text: str) -> str | None:
    """What follows the last "####" on its line, as in the solutions of GSM8K; None where there is none."""
    _, mark, rest = text.rpartition("####")
    answer = rest.strip().partition("\n")[0].strip()
    return answer if mark and answer else None


def final_answer(text: str) -> str | None:
    r"""The answer that a reply comes to: the last \boxed{}, else what follows the last "####", else the last number."""
    for answer in (boxed_answer(text), hashes_answer(text)):
        if answer is not None:
            return answer
    numbers = _LAST_NUMBER.findall(text)
    return numbers[-1].rstrip(",.") if numbers else None


def as_number(text: str) -> Fraction | None:
    """The number that a text says, exactly; None where it says something else.

    Thousands separators, a currency sign, a unit after the number and "%" are left out: "$1,200.50 dollars" is 1200.5
    and "15%" is 15.
    """
    text = text.strip().strip("$").strip().removesuffix(".")
    text = text.removeprefix("\\$").removeprefix("€").removeprefix("£").strip()
    text = text.replace("{,}", ",").replace("\\,", "").replace("\\!", "")
    text = _UNIT.sub("", text).strip()
    if match := _FRACTION.fullmatch(text):
        sign, over, under = match.groups()
        return _ratio(int(over) * (-1 if sign == "-" else 1), int(under))
    match = _PLAIN_NUMBER.fullmatch(text)
    if match is None:
        return None
    over = Fraction(match[1].replace(",", "").rstrip("."))
    return over if match[2] is None else _ratio(over, int(match[2]))


def is_same_text(answer: str, reference: str) -> bool:
    """Equal but for white space, dollar signs around them and a full stop at the end."""
    return _plain(answer) == _plain(reference)


def is_same_number(answer: str, reference: str) -> bool:
    """Both are numbers, and the same: 0.5, 1/2 and .50 are one number, 0.333 and 1/3 are two."""
    number = as_number(answer)
    return number is not None and number == as_number(reference)


async def grade(answer: str, reference: str, grading: Grading) -> Verdict:
    """Compare an answer with the reference. "failed": an expression that could not be compared within the limits.

    exact: the same text. numeric: or the same number. symbolic: or expressions that are equal, such as (x+1)^2 and
    x^2+2x+1; needs the extra "math".
    """
    check_grading(grading)
    if is_same_text(answer, reference) or (grading != "exact" and is_same_number(answer, reference)):
        return "right"
    if grading != "symbolic" or max(len(answer), len(reference)) > _MAX_EXPRESSION_CHARACTERS:
        return "wrong"
    return await _worker_pool().compare(answer, reference)


def check_grading(grading: str) -> None:
    """InvalidRequest for an unknown grading, and for a symbolic one where math-verify is not installed."""
    known = get_args(Grading)
    if grading not in known:
        raise InvalidRequest(f"grading={grading!r}: must be one of {', '.join(known)}.{nearest_name(grading, known)}")
    if grading == "symbolic" and find_spec("math_verify") is None:
        raise InvalidRequest("grading='symbolic' needs math-verify: pip install 'mint-recipes[math]'")


class WorkerPool:
    """Processes that compare expressions, started when first needed, each with a thread that waits for it."""

    def __init__(self, num_workers: int, cpu_seconds: int = _CPU_SECONDS, wall_seconds: float = _WALL_SECONDS) -> None:
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="math grading")
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(num_workers):
            self._idle.put(_Worker(cpu_seconds, wall_seconds))

    async def compare(self, answer: str, reference: str) -> Verdict:
        """The verdict on expressions in LaTeX. One that is not an expression is wrong."""
        return await asyncio.wrap_future(self._threads.submit(self._compare, answer, reference))

    def _compare(self, answer: str, reference: str) -> Verdict:
        worker = self._idle.get()
        try:
            return worker.compare(answer, reference)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the processes, after the comparisons that are under way."""
        self._threads.shutdown()
        while not self._idle.empty():
            self._idle.get().stop()


class _Worker:
    def __init__(self, cpu_seconds: int, wall_seconds: float) -> None:
        self._cpu_seconds = cpu_seconds
        self._wall_seconds = wall_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def compare(self, answer: str, reference: str) -> Verdict:
        byte = self._ask(json.dumps([answer, reference]) + "\n")
        verdicts: dict[bytes, Verdict] = {EQUAL: "right", DIFFERENT: "wrong", UNREADABLE: "wrong"}
        if byte not in verdicts:
            self.stop()
        return verdicts.get(byte, "failed")

    def _ask(self, line: str) -> bytes:
        """The byte that the process answers with; b"" when it died or is stuck."""
        if self._process is None:
            self._process = _start_worker(self._cpu_seconds)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            return b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            is_answered = selector.select(self._wall_seconds)
        return os.read(self._process.stdout.fileno(), 1) if is_answered else b""

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            # Closes the pipes too; what was left in them is lost with the process.
            self._process.communicate()
            self._process = None


def _start_worker(cpu_seconds: int) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("math_worker.py")
    # -P: the folder of the file, with its types.py, stays out of the search path. Sets order the same way in each run.
    command = [sys.executable, "-P", str(program), str(cpu_seconds)]
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


@cache
def _worker_pool() -> WorkerPool:
    return WorkerPool(num_workers=max(1, min(4, (os.cpu_count() or 1) - 1)))


def _plain(text: str) -> str:
    return " ".join(text.strip().strip("$").removesuffix(".").split())


def _ratio(over: int | Fraction, under: int) -> Fraction | None:
    return Fraction(over) / under if under else None
