"""Curves from metrics files: the numbers, the picture, and what is said about runs that have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.curves import main, mean_and_range, read_curve
from mint.errors import InvalidRequest


def run(folder: Path, *lines: dict[str, Any]) -> str:
    folder.mkdir()
    text = "".join(json.dumps({"step": i, "time/step": 30.0, **line}) + "\n" for i, line in enumerate(lines))
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return str(folder)


def test_a_curve_has_the_lines_that_have_the_metric(tmp_path: Path) -> None:
    path = run(tmp_path / "a", {"acc": 0.1}, {}, {"acc": None}, {"acc": 0.5})
    assert read_curve(path, "acc") == [(0.0, 0.1), (3.0, 0.5)]
    assert read_curve(path, "acc", "minutes") == [(0.0, 0.1), (1.5, 0.5)]


def test_mean_and_range_of_runs_where_all_have_a_value() -> None:
    mean, low, high = mean_and_range([[(0, 1.0), (1, 2.0)], [(0, 3.0), (1, 2.0), (2, 9.0)]])
    assert (mean, low, high) == ([(0, 2.0), (1, 2.0)], [(0, 1.0), (1, 2.0)], [(0, 3.0), (1, 2.0)])


def test_the_command_draws_the_same_picture_twice(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", {"acc": 0.1}, {"acc": 0.5}), run(tmp_path / "b", {"acc": 0.2}, {"acc": 0.7})
    pictures = [tmp_path / "images" / name for name in ("one.svg", "two.svg")]
    for picture in pictures:
        main([str(picture), "acc", f"ours={first},{second}", f"other={second}", "--title", "A title"])
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    text = pictures[0].read_text(encoding="utf-8")
    assert all(word in text for word in ("ours", "other", "A title", "iteration"))


def test_a_run_without_the_metric_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path / "a", {"loss": 1.0})
    with pytest.raises(InvalidRequest, match="no line has 'acc'; its keys are loss, step"):
        read_curve(path, "acc")
    with pytest.raises(SystemExit) as left:
        main([str(tmp_path / "x.svg"), "acc", f"a={tmp_path / 'nothing'}"])
    assert left.value.code == 1 and "no metrics.jsonl" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path / "x.svg"), "acc", "no-label"])
