"""`mint export`, run as people run it, on what a stage left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import mint
from tests.recipe.saved_stages import policy_stage


def mint_command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "MINT_BASE_URL"}
    return subprocess.run(
        [sys.executable, "-m", "mint.cli", *map(str, arguments)],
        capture_output=True, encoding="utf-8", timeout=240, env={**kept, **environment},
    )  # fmt: skip


def test_a_stage_is_exported_with_the_prompt_it_was_trained_on(
    service: mint.ServiceClient, mint_home: Path, tmp_path: Path
) -> None:
    path = policy_stage(service, tmp_path / "run" / "rl")
    out = tmp_path / "model"
    done = mint_command("--home", mint_home, "export", tmp_path / "run" / "rl", "--to", "hf", "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{out}: merged model, float32, from {path} on mint-tiny\n")
    assert "bound 0.0005\n" in done.stdout
    assert done.stdout.endswith("4 of 4 are the same token for token\n")
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert "enable_thinking=False" in readme and "A reply ends with 4089 '<|im_end|>'" in readme
    program = "\n".join(re.findall(r"```python\n(.*?)```", readme, re.DOTALL)).replace('"..."', repr(str(out)))
    reply = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=240)
    assert reply.returncode == 0 and len(reply.stdout) > 10, reply.stderr
    again = mint_command("--home", mint_home, "export", path, "--to", "hf", "--out", out)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1) and "exists already" in again.stderr
    folder = mint_command("--home", mint_home, "export", tmp_path / "run", "--to", "hf", "--out", tmp_path / "x")
    assert f"holds several stages; name one: {tmp_path}/run/rl" in folder.stderr


def test_another_chat_format_than_the_template_is_said(
    service: mint.ServiceClient, mint_home: Path, tmp_path: Path
) -> None:
    path = policy_stage(service, tmp_path / "run", renderer="role_colon")
    done = mint_command("--home", mint_home, "export", path, "--to", "peft", "--out", tmp_path / "adapter")
    assert done.returncode == 0, done.stderr
    readme = (tmp_path / "adapter" / "README.md").read_text(encoding="utf-8")
    assert "chat format `role_colon`, which the tokenizer's chat template" in readme


def test_what_is_no_checkpoint_is_refused_in_one_line(mint_home: Path, tmp_path: Path) -> None:
    for target, message in (
        ("mint-tiny", "is not a checkpoint"),
        ("mint://no/weights/a", "no checkpoint mint://no/weights/a"),
        (str(tmp_path / "nothing"), "no such folder; give a mint:// path, the log_path of a stage"),
    ):
        done = mint_command("--home", mint_home, "export", target, "--to", "hf", "--out", tmp_path / "x")
        assert (done.returncode, done.stdout) == (1, "") and message in done.stderr, done.stderr
    assert list(tmp_path.glob("x*")) == []
