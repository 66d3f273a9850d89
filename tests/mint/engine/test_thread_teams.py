"""The caller's OpenMP threads end when it hands work to the engine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# In a process of its own: teams of earlier tests would be counted too.
_COUNTS = """
import os, torch
from mint.engine.thread_teams import release_team

def count():
    return len(os.listdir("/proc/self/task"))

release_team()
alone = count()
x = torch.randn(1 << 20)
expected = x.exp()
with_team = count()
release_team()
without = count()
assert torch.equal(x.exp(), expected)
again = count()
print(alone, with_team, without, again)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU OpenMP comes with PyTorch's wheels for Linux")
def test_a_team_is_let_go_and_comes_back() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    run = subprocess.run(
        [sys.executable, "-c", _COUNTS], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    alone, with_team, without, again = map(int, run.stdout.split())
    assert (with_team, without, again) == (alone + 1, alone, alone + 1)


_SERVED = """
import os, sys, torch
import mint
from mint import types

def count():
    return len(os.listdir("/proc/self/task"))

client = mint.ServiceClient(home=sys.argv[1]).create_lora_training_client(sys.argv[2], rank=4)
prompt = types.ModelInput.from_ints([1, 2, 3])
sampler = client.save_weights_and_get_sampling_client(name="first")
sampler.sample(prompt, 1, types.SamplingParams(max_tokens=2, seed=1)).result()  # the engine has its own team by now
before = count()
torch.randn(1 << 20).exp()
with_team = count()
future = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=2, seed=1))
submitted = count()
torch.randn(1 << 20).exp()
future.result()
print(before, with_team, submitted, count())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU OpenMP comes with PyTorch's wheels for Linux")
def test_submitting_and_waiting_let_it_go(tiny_model_dir, tmp_path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    arguments = [sys.executable, "-c", _SERVED, str(tmp_path), str(tiny_model_dir)]
    run = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True, timeout=120)
    before, with_team, submitted, done = map(int, run.stdout.split())
    assert with_team == before + 1
    assert submitted == done == before
