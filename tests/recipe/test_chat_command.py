"""`mint chat`, talked to through a pipe and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mint
from recipe.chat_session import ChatSession, SamplingSettings
from recipe.tokenizer_utils import get_tokenizer
from renderers import get_renderer
from tests.recipe.saved_stages import policy_stage, scorer_stage

QUESTION, OTHER = "How can I sleep better?", "How do I save money?"
SHORT = ("--max-tokens", "12", "--seed", "3")


def chat(home: Path, *arguments: object, typed: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "MINT_BASE_URL"}
    return subprocess.run(
        [sys.executable, "-m", "mint.cli", "--home", str(home), "chat", *map(str, arguments)], input=typed,
        capture_output=True, encoding="utf-8", timeout=240, env={**environment, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip


def new_session(service: mint.ServiceClient, **settings: int | None) -> ChatSession:
    renderer = get_renderer("qwen3_disable_thinking", get_tokenizer("mint-tiny"))
    client = service.create_sampling_client(base_model="mint-tiny")
    given = {"max_tokens": 12, "seed": 3} | settings
    return ChatSession(client, renderer, SamplingSettings(1.0, **given), context_length=4096)


def test_a_piped_conversation_is_answered_line_by_line(service: mint.ServiceClient, mint_home: Path) -> None:
    lines = [QUESTION, "", "/retry", OTHER, "/undo", "/rety", "/reset", "/retry"]
    done = chat(mint_home, "mint-tiny", *SHORT, "--temperature", 1, typed="\n".join(lines))
    assert done.returncode == 0, done.stderr
    session = new_session(service)
    expected = [session.ask(QUESTION), session.retry(), session.ask(OTHER)]
    printed = done.stdout.splitlines()
    shown = [line for reply in expected for line in [reply.message["content"], CUT] if line != CUT or not reply.status]
    assert printed[: len(shown)] == shown and expected[0].message != expected[1].message
    assert printed[len(shown) :] == [
        f"taken back: {OTHER}",
        "'/rety' is no command (/help lists them). Did you mean '/retry'?",
        "a new conversation",
        "nothing has been asked yet",
    ]


CUT = "[cut after 12 tokens: --max-tokens 12]"


def test_the_model_reads_the_whole_conversation(service: mint.ServiceClient) -> None:
    session = new_session(service)
    session.system = "Be kind."
    first = session.ask(QUESTION)
    alone = new_session(service).ask(OTHER)
    assert session.ask(OTHER).message != alone.message
    roles = [message["role"] for message in session.messages()]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert session.undo() == OTHER and session.messages()[-1] == first.message


def test_a_question_without_a_reply_leaves_the_conversation_as_it_was(service: mint.ServiceClient) -> None:
    session = new_session(service)
    session.ask(QUESTION)
    before = session.messages()
    session.context_length = 30
    for ask in (lambda: session.ask(OTHER), session.retry):
        session.context_length = 10
        with pytest.raises(mint.errors.InvalidRequest, match="/undo takes the last turn back"):
            ask()
        assert session.messages() == before


def test_a_checkpoint_is_asked_in_its_own_format_scored_and_saved(
    service: mint.ServiceClient, mint_home: Path, tmp_path: Path
) -> None:
    path = policy_stage(service, tmp_path / "rl", renderer="role_colon")
    scorer_stage(service, tmp_path / "run" / "preference")
    kept = tmp_path / "kept.jsonl"
    typed = f"{QUESTION}\n/save {kept}\n{OTHER}\n/save {kept}\n/quit\nnever asked\n"
    done = chat(mint_home, path, *SHORT, "--system", "Be kind.", "--scorer", tmp_path / "run", typed=typed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[score ") == 2 and done.stdout.count(f"saved in {kept}\n") == 2
    first, second = [json.loads(line)["messages"] for line in kept.read_text(encoding="utf-8").splitlines()]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user", "assistant"]
    assert second[:3] == first and second[3]["content"] == OTHER
    same = chat(mint_home, tmp_path / "rl", *SHORT, "--system", "Be kind.", typed=QUESTION)
    assert same.stdout.splitlines()[0] == done.stdout.splitlines()[0] == first[2]["content"].splitlines()[0]


def test_what_cannot_be_talked_to_is_one_line(mint_home: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (["mint://a/weights/b"], "no checkpoint mint://a/weights/b"),
        (["mint-tiny", "--scorer", str(tmp_path)], "holds no finished preference stage"),
        (["mint-tiny", "--renderer", "qwen4"], "no renderer is called 'qwen4'"),
    ):
        done = chat(mint_home, *arguments, typed="hello\n")
        assert done.returncode == 1 and done.stdout == ""
        assert message in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


@pytest.mark.parametrize("leave", [b"\x04", b"\x03"], ids=["ctrl-d", "ctrl-c"])
def test_on_a_terminal_ctrl_d_and_ctrl_c_leave(mint_home: Path, leave: bytes) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        words = ["-m", "mint.cli", "--home", str(mint_home), "chat", "mint-tiny", *SHORT]
        os.execve(sys.executable, [sys.executable, *words], {**os.environ, "NO_COLOR": "1", "TERM": "xterm"})
    written, output, deadline = [f"{QUESTION}\n".encode(), leave], "", time.monotonic() + 120
    again_at = deadline
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                output += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
        if written and output.count("you> ") == 3 - len(written):
            os.write(terminal, written.pop(0))
            again_at = time.monotonic() + 2.0
        elif not written and time.monotonic() > again_at and "\n" not in output.rpartition("you> ")[2]:
            # A key that arrives just as readline takes over the terminal can be lost: pressed again, as a person would.
            # Not after the line break of a chat that leaves: its end may take long, and a signal would break that off.
            os.write(terminal, leave)
            again_at = time.monotonic() + 2.0
    else:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, output
    assert "mint-tiny, qwen3_disable_thinking; /help for commands" in output and "Traceback" not in output
