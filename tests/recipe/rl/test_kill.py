"""A run that is killed with SIGKILL and started again ends like one that was left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mint.checkpoint_store import CheckpointStore
from recipe.checkpoint_utils import load_records
from recipe.run_log import read_metrics

REPOSITORY = Path(__file__).resolve().parents[3]

SCRIPT = """
import asyncio, sys
import chz
from mint import types
from recipe.rl.train import Config, main
from recipe.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult

class EvenTokensEnv(Env):
    def __init__(self, prompt): self.prompt = prompt
    async def initial_observation(self): return types.ModelInput.from_ints(self.prompt), []
    async def step(self, action, *, extra=None):
        return StepResult(float(sum(token % 2 == 0 for token in action)), True, types.ModelInput.from_ints([]), [])

class Group(EnvGroupBuilder):
    def __init__(self, prompt): self.prompt = prompt
    async def make_envs(self): return [EvenTokensEnv(self.prompt) for _ in range(4)]

class Data(RLDataset):
    def __init__(self, num_batches): self.num_batches = num_batches
    def get_batch(self, index): return [Group([index + 1, i + 2, 3]) for i in range(4)]
    def __len__(self): return self.num_batches

@chz.chz
class Builder(RLDatasetBuilder):
    async def __call__(self): return Data(12), Data(1)

model, log_path = sys.argv[1:]
data = Builder()
asyncio.run(main(Config(
    model_name=model, dataset_builder=data, log_path=log_path, learning_rate=1e-3, max_tokens=6, lora_rank=4,
    save_every=2, eval_every=3, num_substeps=2,
)))
"""


def start(model: Path, log_path: Path, home: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "MINT_HOME": str(home), "OMP_NUM_THREADS": "1"}
    environment.pop("MINT_BASE_URL", None)
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(model), str(log_path)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_for_lines(log_path: Path, number: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while len(read_metrics(log_path)) < number and process.poll() is None:
        assert time.monotonic() < deadline, f"fewer than {number} lines after two minutes"
        time.sleep(0.005)


def outcome(log_path: Path, home: Path) -> tuple[list[dict], list[bytes]]:
    lines = [
        {key: value for key, value in line.items() if not key.startswith("time/")} for line in read_metrics(log_path)
    ]
    state_path = load_records(log_path)[-1].state_path
    assert state_path is not None
    files = CheckpointStore(home).verify(state_path)
    return lines, [files[name].read_bytes() for name in sorted(files) if name.endswith(".safetensors")]


@pytest.mark.slow
def test_a_killed_run_ends_like_an_undisturbed_one(tiny_model_dir: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert start(tiny_model_dir, tmp_path / "whole", home).wait(timeout=120) == 0
    killed = 0
    for lines_at_kill, delay_seconds in ((1, 0.0), (3, 0.02), (6, 0.05), (9, 0.01)):
        process = start(tiny_model_dir, tmp_path / "killed", home)
        wait_for_lines(tmp_path / "killed", lines_at_kill, process)
        time.sleep(delay_seconds)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed >= 3
    assert start(tiny_model_dir, tmp_path / "killed", home).wait(timeout=120) == 0
    assert outcome(tmp_path / "killed", home) == outcome(tmp_path / "whole", home)
