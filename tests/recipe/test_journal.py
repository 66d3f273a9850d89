"""JSON-lines files after a kill."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.errors import CheckpointError
from recipe import journal


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for step in range(3):
        journal.append_line(path, {"step": step, "text": "é\n"})
    assert journal.read_lines(path) == [{"step": step, "text": "é\n"} for step in range(3)]
    assert path.read_text(encoding="utf-8").count("\n") == 3


def test_no_file_reads_as_no_lines(tmp_path: Path) -> None:
    assert journal.read_lines(tmp_path / "none.jsonl") == []


@given(cut=st.integers(1, 40))
def test_a_file_cut_anywhere_in_its_last_line_keeps_the_lines_before(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    journal.append_line(path, {"step": 0})
    first = path.stat().st_size
    journal.append_line(path, {"step": 1, "value": 1234567890})
    with path.open("rb+") as file:
        file.truncate(max(first, path.stat().st_size - cut))
    assert journal.read_lines(path) == [{"step": 0}]
    journal.append_line(path, {"step": 1})
    assert journal.read_lines(path) == [{"step": 0}, {"step": 1}]


def test_a_cut_off_number_that_still_parses_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}', encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert journal.read_lines(path) == [{"step": 0}]
    assert "line 2 has no line end" in caplog.text


def test_a_damaged_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"a\.jsonl: line 2 is not a JSON object"):
        journal.read_lines(path)


def test_rewriting_leaves_no_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    journal.append_line(path, {"step": 0})
    journal.rewrite_lines(path, [{"step": 7}])
    assert journal.read_lines(path) == [{"step": 7}]
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]
