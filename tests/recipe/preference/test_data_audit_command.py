"""`mint data audit` as people use it: what it prints and writes, its exit codes, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mint.cli import main
from recipe.preference.data import read_pairs
from tests.recipe.preference.test_data_audit import FAULTY, write

GOOD = [
    {"prompt": f"q{i}", "chosen": "yes " * (1 + i % 3), "rejected": "no " * (1 + i % 4), "source": "made"}
    for i in range(12)
]


def _run(*arguments: str) -> int:
    return main(["data", "audit", *arguments])


def test_a_good_file_passes_and_a_faulty_one_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(write(tmp_path / "good.jsonl", GOOD)) == 0
    out = capsys.readouterr().out
    assert "  pairs    12" in out and "ok    cycles: none" in out and "made" in out
    path = write(tmp_path / "faulty.jsonl", FAULTY)
    assert _run(path) == 1
    out = capsys.readouterr().out
    assert f"FAIL  rows: no pair in 1 of 10 rows, the first: {path}, line 8: no value in column 'rejected'" in out
    assert "what to do: repair or remove them" in out
    assert "\033" not in out


def test_json_holds_every_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "faulty.jsonl", FAULTY)
    assert _run(path, "--json", "-", "--no-word-model") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["cycles"] == [[5, 6, 7]] and document["word_model"] is None
    assert _run(path, "--json", str(tmp_path / "audit.json"), "--no-word-model") == 1
    assert json.loads((tmp_path / "audit.json").read_text()) == document


def test_clean_files_are_written_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "good.jsonl", [*GOOD, GOOD[0]])
    assert _run(path, "--write-clean", str(tmp_path / "new" / "clean"), "--held-out-share", "0.25", "--seed", "3") == 0
    out = capsys.readouterr().out
    train, held_out = (read_pairs(tmp_path / "new" / f"clean_{side}.jsonl") for side in ("train", "held_out"))
    assert (len(train), len(held_out)) == (9, 3)
    assert f"9 pairs  {tmp_path / 'new' / 'clean_train.jsonl'}" in out


def test_a_file_that_was_read_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "mine_train.jsonl", GOOD)
    before = Path(path).read_bytes()
    assert _run(path, "--no-word-model", "--write-clean", str(tmp_path / "mine")) == 1
    assert "mine_train.jsonl is a file that was read" in capsys.readouterr().err
    assert Path(path).read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["mine_train.jsonl"]


def test_other_files_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "good.jsonl", GOOD)
    held_out = write(tmp_path / "held_out.jsonl", [GOOD[3]])
    turns = [{"role": "user", "content": "q5"}]
    rl = write(tmp_path / "rl.jsonl", [{"question": "Q4"}, {"question": turns}, {"question": "new"}])
    assert _run(path, "--held-out", held_out, "--rl-prompts", rl, "--rl-column", "question") == 1
    out = capsys.readouterr().out
    assert "FAIL  overlap with held-out prompts: of 1 prompts" in out
    assert "note  overlap with RL prompts: of 3 prompts" in out and "(lines 5, 6)" in out


def test_tokens_are_counted_as_training_renders_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "good.jsonl", GOOD)
    assert _run(path, "--model", "mint-tiny") == 0
    assert "qwen3_disable_thinking, verdict)" in capsys.readouterr().out
    assert _run(path, "--model", "mint-tiny", "--max-length", "10") == 1
    assert "FAIL  too long: 12 of 12 pairs have a reply of more than 10 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-length", "5"], "--max-length 5 is in tokens, which depend on the model: name it with --model"),
        (["--held-out-share", "1"], "--held-out-share 1.0: must be at least 0 and below 1"),
        (["columns.winner=x"], "columns.winner"),
        (["prompt=x"], "'prompt=x': columns are named as for training, for example columns.prompt=question"),
        (["columns.chosen=good"], "no row of"),
        (["columns.label=a", "columns.margin=b"], "each say which reply is better: name one of them"),
        (["--model", "mint-tiny", "--readout", "verdit"], "unknown readout 'verdit'"),
        (["--json", "nowhere/audit.json"], "there is no folder"),
        (["--held-out", "FAULTY"], "faulty.jsonl` finds all such rows)"),
        (["--rl-prompts", "RL"], "line 1: column 'prompt' must hold a list of messages, got NoneType"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "good.jsonl", GOOD)
    files: dict[str, list[dict[str, Any]]] = {"RL": [{"question": "q"}], "FAULTY": FAULTY}
    arguments = [
        write(tmp_path / f"{word.lower()}.jsonl", files[word]) if word in files else word for word in arguments
    ]
    assert _run(path, *arguments) == 1
    assert words in capsys.readouterr().err
