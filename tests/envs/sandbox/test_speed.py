"""Grading a trivial program costs little, however busy the machine is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_fifty_programs_are_graded_in_a_second_of_processor_time() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/sandbox_speed.py", "--num-programs", "300"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["programs_per_cpu_second"] >= 50
