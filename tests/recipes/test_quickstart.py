"""The quickstart, run as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_quickstart(home: Path, **settings: str) -> str:
    """What the script prints; the settings are environment variables without their MINT_."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MINT_")}
    environment |= {"PYTHONPATH": str(ROOT), "MINT_HOME": str(home)}
    environment |= {f"MINT_{name}": value for name, value in settings.items()}
    command = [sys.executable, "recipes/quickstart.py"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def accuracies(output: str) -> list[float]:
    """Held-out accuracy before training, after SFT and after RL, in percent."""
    match = re.search(r"held-out accuracy: ([\d.]+)% -> SFT ([\d.]+)% -> RL ([\d.]+)%", output)
    assert match, output
    return [float(number) for number in match.groups()]


def test_a_few_steps_run_on_another_model_and_leave_two_checkpoints(tiny_model_dir: Path, tmp_path: Path) -> None:
    settings = {"SFT_STEPS": "3", "SFT_BATCH": "4", "RL_STEPS": "2", "RL_BATCH": "3", "RL_GROUP": "2"}
    output = run_quickstart(tmp_path, BASE_MODEL=str(tiny_model_dir), LORA_RANK="4", **settings)
    assert "SFT step 3/3: loss per addition" in output
    assert "RL step 2/2: reward" in output
    assert len(accuracies(output)) == 3
    saved = re.findall(r"mint://\w+/weights/(quickstart-\w+)", output)
    assert saved == ["quickstart-sft", "quickstart-rl"]


def test_ctrl_c_ends_it_without_a_traceback(tiny_model_dir: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MINT_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    environment |= {"MINT_BASE_MODEL": str(tiny_model_dir), "MINT_LORA_RANK": "4", "MINT_SFT_STEPS": "100000"}
    process = subprocess.Popen(
        [sys.executable, "recipes/quickstart.py"], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None and "held-out accuracy" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=30)[1]
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in errors and "KeyboardInterrupt" not in errors


@pytest.mark.slow
def test_both_stages_raise_the_accuracy_of_the_built_in_model(tmp_path: Path) -> None:
    before, after_sft, after_rl = accuracies(run_quickstart(tmp_path))
    assert before < 10
    assert after_sft > before + 25
    assert after_rl > after_sft + 10
