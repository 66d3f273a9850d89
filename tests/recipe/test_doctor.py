"""`mint doctor`, run as people run it: what it prints, what it finds wrong, and how it exits."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mint import builtin
from recipe.check_result import Outcome
from recipe.parity_checks import compare
from recipe.renderer_checks import SAMPLE, check_chat_template, check_round_trip, first_difference
from recipe.rl.datums import TrainingSequence
from renderers import Message, ParseStatus, Qwen3Renderer, get_renderer


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, its output in a pipe."""
    kept = {name: value for name, value in os.environ.items() if name not in ("MINT_BASE_URL", "NO_COLOR")}
    return subprocess.run(
        [sys.executable, "-m", "mint.cli", "doctor", *arguments],
        capture_output=True, encoding="utf-8", timeout=240, env={**kept, "PYTHONIOENCODING": "utf-8", **environment},
    )  # fmt: skip


def model_with_template(folder: Path, template: str | None) -> Path:
    """The built-in model with another chat template, or with none."""
    shutil.copytree(builtin.model_dir(), folder)
    (folder / "chat_template.jinja").unlink()
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def test_the_built_in_model_is_found_well(tmp_path: Path) -> None:
    done = doctor("mint-tiny", "--tokens", "64", MINT_HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\033" not in done.stdout
    for line in (
        "  shape       4 layers, hidden 256, mlp 640, 8 query and 2 key/value heads of 32",
        "  parameters  3,672,576",
        "Renderer qwen3_disable_thinking",
        "  stops        4089 '<|im_end|>', 4087 '<|endoftext|>'",
        "       0 | [<|im_start|>]user⏎",
        "       1 | and go back when you are tired.[<|im_end|>]",
    ):
        assert line in done.stdout.splitlines(), line
    assert done.stdout.count("\n  ok  ") == 7 and "FAIL" not in done.stdout
    assert "over 64 tokens; bound 0.0001 for float32" in done.stdout
    assert done.stdout.endswith("All is well.\n")
    assert not (tmp_path / "home").exists(), "the doctor leaves nothing behind"


def test_a_wrong_renderer_fails_and_the_right_one_is_named() -> None:
    done = doctor("mint-tiny", "--tokens", "8", "--renderer", "qwen3_instruct")
    assert done.returncode == 1
    assert "  FAIL  chat template: the example differs first at token " in done.stdout
    assert r"<|im_start|>assistant\n': ours 38 'G', the template's 4090 '<think>'" in done.stdout
    assert "what to do: use --renderer qwen3_disable_thinking" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 of 7 checks failed: chat template"


def test_a_model_that_cannot_be_used_is_one_line() -> None:
    done = doctor("mint-tiny", "--renderer", "qwen4")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "no renderer is called 'qwen4'" in done.stderr.splitlines()[-1]
    remote = doctor("mint-tiny", MINT_BASE_URL="http://127.0.0.1:9")
    assert remote.returncode == 1 and "unset it" in remote.stderr


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_gets_colours_unless_it_wants_none(no_color: str) -> None:
    program = "import sys, os; from recipe.terminal import Palette; print(Palette.of(sys.stdout, os.environ))"
    main_end, terminal = pty.openpty()
    environment = {**os.environ, "NO_COLOR": no_color, "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", program], stdout=terminal, env=environment, timeout=60, check=True)
    os.close(terminal)
    shown = os.read(main_end, 1000).decode()
    os.close(main_end)
    assert shown.strip() == f"Palette(is_coloured={not no_color})"


def test_a_template_that_differs_fails_at_the_first_token(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    changed = (builtin.model_dir() / "chat_template.jinja").read_text(encoding="utf-8")
    changed = changed.replace("<|im_start|>' + message.role", "<|im_start|>the ' + message.role")
    tokenizer = AutoTokenizer.from_pretrained(model_with_template(tmp_path / "changed", changed))
    renderer = get_renderer("qwen3_disable_thinking", tokenizer)
    check = check_chat_template(renderer, tokenizer, "qwen3_disable_thinking")
    ours = renderer.build_supervised_example(SAMPLE)[0].to_ints()
    # The system message is written elsewhere in the template: the first user turn is where they part.
    position = ours.index(tokenizer.convert_tokens_to_ids("<|im_start|>"), 1) + 1
    assert check.outcome is Outcome.FAIL and f"differs first at token {position} " in check.detail
    assert "ours" in check.detail and "'user'" in check.detail and "docs/new_renderer.md" in check.remedy

    bare = AutoTokenizer.from_pretrained(model_with_template(tmp_path / "bare", None))
    none = check_chat_template(get_renderer("qwen3", bare), bare, None)
    assert none.outcome is Outcome.NOTE and "no chat template" in none.detail


def test_plain_text_for_base_models_is_not_compared_with_a_template(tokenizer) -> None:
    renderer = get_renderer("role_colon", tokenizer)
    assert check_chat_template(renderer, tokenizer, "role_colon").outcome is Outcome.NOTE
    assert check_chat_template(renderer, tokenizer, "qwen3").outcome is Outcome.FAIL


@pytest.mark.parametrize("name", ["qwen3", "qwen3_disable_thinking", "qwen3_instruct", "role_colon"])
def test_every_renderer_survives_the_round_trip(name: str, tokenizer) -> None:
    check = check_round_trip(get_renderer(name, tokenizer), tokenizer)
    assert check.outcome is Outcome.OK, check.detail


class _Forgetful(Qwen3Renderer):
    """Loses what follows the first line."""

    def parse_response(self, tokens: list[int]) -> tuple[Message, ParseStatus]:
        message, status = super().parse_response(tokens)
        return Message(role="assistant", content=message["content"].splitlines()[0]), status


class _Endless(Qwen3Renderer):
    """Stops at a token that no reply ends with."""

    def get_stop_sequences(self) -> list[int]:
        return [5]


@pytest.mark.parametrize(("kind", "fault"), [(_Forgetful, "was read back as"), (_Endless, "do not end with a stop")])
def test_a_renderer_that_loses_something_fails_the_round_trip(kind: type[Qwen3Renderer], fault: str, tokenizer) -> None:
    check = check_round_trip(kind(tokenizer), tokenizer)
    assert check.outcome is Outcome.FAIL and fault in check.detail


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], (1, 2, 3)),
        ([1], [1, 3], (1, None, 3)),
        ([1, 2], [1], (1, 2, None)),
        ([], [], None),
    ],
)
def test_first_difference(ours: list[int], theirs: list[int], expected: tuple | None) -> None:
    found = first_difference(ours, theirs)
    assert (found and (found.position, found.ours, found.theirs)) == expected


def test_the_worst_token_is_found_and_nan_is_the_worst() -> None:
    """Two sequences with a prompt of two tokens: targets 0 is given, 1 and 2 are sampled."""
    is_sampled = np.array([False, True, True])
    sequences = [
        TrainingSequence([9, 8, token, token + 1], is_sampled, np.float32([0, -1, -2]), np.float32([0, 1, 1]))
        for token in (20, 30)
    ]
    others = [np.array([5, -1, -2.25], np.float32), np.array([5, -1.5, -2], np.float32)]
    worst = compare(sequences, others)
    assert (worst.largest, worst.mean, worst.num_tokens) == (0.5, 0.1875, 4)
    assert (worst.i_sequence, worst.position, worst.token) == (1, 0, 30)
    ratio = compare(sequences, others, as_ratio=True)
    assert ratio.largest == pytest.approx(1 - np.exp(-0.5))
    others[0][2] = np.nan
    assert compare(sequences, others).largest == np.inf and compare(sequences, others).token == 21
