"""Files in RewardBench's format and the averages of its sections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mint.errors import InvalidRequest
from recipe.preference.rewardbench import SECTIONS, read_rewardbench, section_averages


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


ROW = {
    "prompt": "What is 2 + 2?", "chosen": "4", "rejected": "5", "subset": "math-prm", "id": 7,
    "chosen_model": "human", "rejected_model": "gpt",
}  # fmt: skip


def test_a_pair_is_from_its_subset(tmp_path: Path) -> None:
    (pair,) = read_rewardbench(write(tmp_path / "bench.jsonl", ROW))
    assert pair.source == "math-prm"
    assert [message["content"] for message in pair.chosen_conversation] == ["What is 2 + 2?", "4"]


def test_a_row_without_a_subset_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "bench.jsonl", ROW, {key: value for key, value in ROW.items() if key != "subset"})
    with pytest.raises(InvalidRequest, match="bench.jsonl, line 2: no value in column 'subset'"):
        read_rewardbench(path)


def accuracy(value: float, num_pairs: int) -> dict[str, float]:
    return {"value": value, "num_pairs": num_pairs}


def test_each_pair_of_a_section_counts_the_same() -> None:
    found = section_averages({"alpacaeval-easy": accuracy(1.0, 30), "mt-bench-med": accuracy(0.5, 10)})
    assert found == {"Chat": pytest.approx(0.875), "average": pytest.approx(0.875)}


def test_mathematics_counts_as_much_as_code() -> None:
    # 984 pairs of code and 447 of mathematics, as in the published set: half and half.
    by_subset = {subset: accuracy(0.9, 164) for subset in SECTIONS["Reasoning"] if subset.startswith("hep-")}
    assert len(by_subset) == 6
    assert section_averages({**by_subset, "math-prm": accuracy(0.5, 447)})["Reasoning"] == pytest.approx(0.7)
    assert section_averages({"math-prm": accuracy(0.5, 447)})["Reasoning"] == pytest.approx(0.5)


def test_the_average_is_that_of_the_sections_and_other_subsets_stand_apart() -> None:
    found = section_averages(
        {"donotanswer": accuracy(1.0, 90), "llmbar-natural": accuracy(0.4, 10), "my-own": accuracy(0.0, 99)}
    )
    assert found == {"Chat Hard": pytest.approx(0.4), "Safety": pytest.approx(1.0), "average": pytest.approx(0.7)}
    assert section_averages({"my-own": accuracy(1.0, 3)}) == {}


def test_no_subset_is_in_two_sections() -> None:
    subsets = [subset for section in SECTIONS.values() for subset in section]
    assert len(subsets) == len(set(subsets)) == 23
