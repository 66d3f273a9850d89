"""How many trivial programs the sandbox grades in a second. Prints one line of JSON.

    python benchmarks/sandbox_speed.py [--num-programs 400] [--num-workers N]

Programs are graded in parallel, as an RL step does: each is loaded in a process of its own and called three times.
per_cpu_second divides by the processor time that all of it took (interpreters, supervisors, programs and this
process), so it does not depend on what else the machine is doing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import time

from envs.code_tests import parse_test, run_tests
from envs.sandbox import Sandbox, SandboxConfig

PROGRAM = "def f(x):\n    return x + {n}\n"
TESTS = ("assert f(1) == {0}", "assert f(2) == {1}", "assert f(3) == {2}")


async def grade(sandbox: Sandbox, num_programs: int) -> int:
    """Grade so many different programs at once; how many passed all tests."""

    async def grade_one(n: int) -> bool:
        sources = [test.format(1 + n, 2 + n, 3 + n) for test in TESTS]
        tests = [parse_test(source, frozenset({"f"})) for source in sources]
        return all((await run_tests(sandbox, PROGRAM.format(n=n), tests)).is_passed)

    return sum(await asyncio.gather(*(grade_one(n) for n in range(num_programs))))


def cpu_seconds() -> float:
    """Processor time of this process and of its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-programs", type=int, default=400)
    parser.add_argument("--num-workers", type=int, default=None)
    arguments = parser.parse_args()

    config = SandboxConfig(minimum_isolation="none", num_workers=arguments.num_workers)
    before, started = cpu_seconds(), time.monotonic()
    sandbox = Sandbox(config)
    asyncio.run(grade(sandbox, config.count_workers()))
    start_seconds, started = time.monotonic() - started, time.monotonic()
    num_passed = asyncio.run(grade(sandbox, arguments.num_programs))
    wall_seconds = time.monotonic() - started
    # Children count once they have ended. The start of the interpreters is in it: it is paid once in a run.
    sandbox.close()
    total_cpu_seconds = cpu_seconds() - before
    assert num_passed == arguments.num_programs, f"{num_passed} of {arguments.num_programs} right programs passed"
    row = {
        "benchmark": "sandbox_speed",
        "isolation": str(sandbox.isolation),
        "num_programs": arguments.num_programs,
        "num_workers": config.count_workers(),
        "wall_seconds": round(wall_seconds, 3),
        "programs_per_second": round(arguments.num_programs / wall_seconds, 1),
        "programs_per_second_per_worker": round(arguments.num_programs / wall_seconds / config.count_workers(), 1),
        "programs_per_cpu_second": round(arguments.num_programs / total_cpu_seconds, 1),
        "start_seconds": round(start_seconds, 3),
        "machine": platform.machine(),
        "load_before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
