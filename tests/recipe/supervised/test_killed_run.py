"""A supervised run in a process of its own, killed with SIGKILL wherever it happens to be, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipe.checkpoint_utils import get_last_checkpoint
from recipe.run_log import read_metrics

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import asyncio, sys
from recipe.supervised.data import ListSFTDatasetBuilder, SFTExampleConfig
from recipe.supervised.train import Config, main
model, log_path = sys.argv[1:]
chats = [
    [{"role": "user", "content": f"Say {i}."}, {"role": "assistant", "content": f"{i} " * (1 + i % 4)}]
    for i in range(40)
]
config = Config(
    log_path=log_path, model_name=model, renderer_name="role_colon", lora_rank=4, num_epochs=4, eval_every=3,
    save_every=3, learning_rate=5e-3,
    dataset_builder=ListSFTDatasetBuilder(conversations=chats, examples=SFTExampleConfig(batch_size=4, num_test=4)),
)
asyncio.run(main(config))
"""


def start(model: Path, log_path: Path, home: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MINT_HOME": str(home), "OMP_NUM_THREADS": "1"}
    environment.pop("MINT_BASE_URL", None)
    command = [sys.executable, "-c", SCRIPT, str(model), str(log_path)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)


def adapter_bytes(log_path: Path, home: Path) -> bytes:
    record = get_last_checkpoint(log_path)
    assert record is not None and record.is_final and record.state_path is not None
    run_id, kind, name = record.state_path.removeprefix("mint://").split("/")
    (folder,) = home.rglob(f"{run_id}/{kind}/{name}")
    return (folder / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `whole` and its storage `home`."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start(tiny_model_dir, folder / "whole", folder / "home").wait() == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("num_lines", [1, 4, 11, 20])
def test_killed_run_ends_with_the_same_bytes_as_one_that_was_never_killed(
    tiny_model_dir: Path, undisturbed: Path, tmp_path: Path, num_lines: int
) -> None:
    process = start(tiny_model_dir, tmp_path / "parts", tmp_path / "home")
    assert process.stdout is not None
    for _ in range(num_lines):
        assert process.stdout.readline()
    time.sleep(0.01 * num_lines)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert start(tiny_model_dir, tmp_path / "parts", tmp_path / "home").wait() == 0

    assert adapter_bytes(tmp_path / "parts", tmp_path / "home") == adapter_bytes(
        undisturbed / "whole", undisturbed / "home"
    )
    lines = [
        [{key: value for key, value in line.items() if "time/" not in key} for line in read_metrics(log_path)]
        for log_path in (tmp_path / "parts", undisturbed / "whole")
    ]
    assert lines[0] == lines[1]
