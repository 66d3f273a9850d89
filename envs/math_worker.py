"""The program that compares two mathematical expressions, in a process of its own: see `envs.math_grading`.

Comparing can take for ever and eat all memory, so a process does it that may be killed. It is told one JSON line per
comparison, [answer, reference], and answers with one byte: EQUAL, DIFFERENT or UNREADABLE. The system limits its CPU
time and memory; a process that goes over a limit ends, which its reader sees as the end of the pipe.

Run as a file, without the package: math-verify is all it loads. Answers are read as LaTeX, by a grammar. Nothing of
them is ever evaluated as Python, which the library's reader for plain expressions would do.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from collections.abc import Callable

EQUAL, DIFFERENT, UNREADABLE = b"1", b"0", b"?"

_MEMORY_BYTES = 2 * 1024**3


def load_comparison() -> Callable[[str, str], bytes]:
    """The function that compares an answer with a reference, by math-verify."""
    from math_verify import LatexExtractionConfig, parse, verify

    extraction = [LatexExtractionConfig(boxed_match_priority=0)]

    def read(text: str) -> list[object]:
        # The library's own time limits are alarms of the wall clock; here the limit is on CPU time, and harder.
        boxed = f"\\boxed{{{text}}}"
        return parse(boxed, extraction, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]

    def compare(answer: str, reference: str) -> bytes:
        answers, references = read(answer), read(reference)
        if not answers or not references:
            return UNREADABLE
        return EQUAL if verify(references, answers, timeout_seconds=None) else DIFFERENT  # pyright: ignore[reportArgumentType]

    return compare


def main(cpu_seconds: int) -> None:
    """Answer comparisons until the input ends. cpu_seconds: what one of them may take."""
    verdicts = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is no verdict
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    compare = load_comparison()
    for line in sys.stdin:
        answer, reference = json.loads(line)
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = math.ceil(used.ru_utime + used.ru_stime) + cpu_seconds
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        os.write(verdicts, compare(answer, reference))


if __name__ == "__main__":
    main(int(sys.argv[1]))
