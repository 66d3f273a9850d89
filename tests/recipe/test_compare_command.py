"""`mint compare`: replies side by side, and a win rate that can be worked out by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mint
from mint.errors import InvalidRequest
from recipe.compare_command import read_prompts
from recipe.reply_comparison import ComparedPrompt, ComparedReply, win_rate_of_b
from renderers import Message
from tests.recipe.saved_stages import policy_stage, scorer_stage


def compare(home: Path, *arguments: object, typed: str = "", columns: int = 60) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "MINT_BASE_URL"}
    environment |= {"COLUMNS": str(columns), "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-m", "mint.cli", "--home", str(home), "compare", *map(str, arguments)], input=typed,
        capture_output=True, encoding="utf-8", timeout=240, env=environment,
    )  # fmt: skip


def scored(*scores: float) -> list[ComparedReply]:
    return [ComparedReply("x", 1, False, score) for score in scores]


def test_win_rate_counts_every_pair_of_replies_of_a_prompt() -> None:
    prompt: list[Message] = [{"role": "user", "content": "?"}]
    compared = [
        ComparedPrompt(prompt, scored(0.0, 2.0), scored(1.0, 2.0)),  # 1, 1, 0, a tie: 2.5 of 4
        ComparedPrompt(prompt, scored(1.0, 1.0), scored(0.0, 3.0)),  # 0, 1, 0, 1
    ]
    found = win_rate_of_b(compared)
    assert (found.value, found.num_pairs) == (4.5 / 8, 8)
    # Two prompts tell as much as two trials: Wilson's interval of 0.5625 in 2.
    assert (found.low, found.high) == pytest.approx((0.1170, 0.9258), abs=1e-4)
    assert win_rate_of_b([ComparedPrompt(prompt, scored(1.0), [ComparedReply("x", 1, False)])]).value is None


def test_side_by_side_with_scores(service: mint.ServiceClient, mint_home: Path, tmp_path: Path) -> None:
    path = policy_stage(service, tmp_path / "rl")
    scorer_stage(service, tmp_path / "preference")
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "How can I sleep better?"}, {"messages": [{"role": "user", "content": "How do I save money?"}]}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = [path, "mint-tiny", prompts, "--samples", 2, "--max-tokens", 12, "--scorer", tmp_path / "preference"]
    done = compare(mint_home, *options, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["a"]["name"], document["b"]["name"]) == (path, "mint-tiny")
    # An untrained adapter changes nothing, and both draw with the same seeds.
    assert document["share_equal"] == 1.0 and document["win_rate_of_b"]["value"] == 0.5
    replies = [reply for prompt in document["prompts"] for reply in prompt["a"]]
    assert len(replies) == 4 and len({reply["text"] for reply in replies}) > 1
    assert document["a"]["mean_score"] == pytest.approx(sum(reply["score"] for reply in replies) / 4)
    assert document["a"]["share_cut"] == sum(reply["is_cut"] for reply in replies) / 4

    table = compare(mint_home, *options).stdout
    assert max(map(len, table.splitlines()[:-1])) <= 60
    assert "1. How can I sleep better?" in table and f"A  {replies[0]['score']:.3f}" in table
    assert f"A  {path}\nB  mint-tiny\n" in table
    assert (
        table.rstrip().endswith("to 90.5%, 8 pairs of replies, 2 prompts)") and "B scores higher than A: 50.0%" in table
    )


def test_prompts_through_a_pipe(mint_home: Path) -> None:
    typed = 'How can I sleep better?\n\n{"prompt": "How do I save money?"}\n'
    done = compare(mint_home, "mint-tiny", "mint-tiny", "-", "--max-tokens", 4, typed=typed)
    assert done.returncode == 0, done.stderr
    assert "2. How do I save money?" in done.stdout and "score" not in done.stdout
    assert "A  cut after 4 tokens" in done.stdout and "equal replies: 100%" in done.stdout


def test_prompts_are_lines_or_rows(tmp_path: Path) -> None:
    text = tmp_path / "prompts.txt"
    text.write_text('first\n\n{"not": "json here"}\nthird\n', encoding="utf-8")
    assert [prompt[0]["content"] for prompt in read_prompts(str(text), 2)] == ["first", '{"not": "json here"}']
    rows = tmp_path / "prompts.jsonl"
    conversation = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    rows.write_text(json.dumps({"messages": conversation}) + "\n", encoding="utf-8")
    assert read_prompts(str(rows)) == [conversation[:1]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", '{"question": "x"}\n', "p.jsonl, line 1: no column prompt or messages; its columns are 'question'"),
        ("p.jsonl", '{"messages": [{"role": "assistant", "content": "a"}]}\n', "nothing is left to reply to"),
        ("p.txt", "\n \n", "holds no prompt"),
        ("none.txt", None, "no such file"),
    ],
)
def test_a_bad_file_of_prompts_is_named(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InvalidRequest, match=message):
        read_prompts(str(tmp_path / name))
