"""The audit of small files worked by hand, of files with planted faults, and of the real pairs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from mint.errors import InvalidRequest
from recipe.check_result import Outcome
from recipe.preference.data_audit import DataAudit, audit_pairs, read_for_audit
from recipe.preference.data_audit_report import checks, facts, source_lines
from recipe.preference.pair_lengths import length_skew, token_lengths
from recipe.preference.pair_rows import PairColumns
from recipe.preference.readouts import Verdict
from recipe.preference.rendered_pairs import render_pairs
from renderers import get_renderer


def _row(prompt: str, chosen: str, rejected: str, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, **more}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


FAULTY = [
    _row("Tea?", "Yes, with milk.", "No."),
    _row("tea? ", "yes,  with milk.", "NO."),  # repeats line 1
    _row("Tea?", "No.", "Yes, with milk."),  # contradicts lines 1 and 2
    _row("Soup?", "Same.", "Same. "),  # equal replies
    _row("Bread?", "a", "b"),
    _row("Bread?", "b", "c"),
    _row("Bread?", "c", "a"),  # closes a cycle of lines 5, 6 and 7
    {"prompt": "Salt?", "chosen": "Yes"},  # no pair
    _row("Rice?", "Boiled.", "Fried, please.", source="menu"),
    _row("Rice?", "Raw.", "Burnt.", is_tie=True, source="menu"),
]


def _audit(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> DataAudit:
    return audit_pairs(read_for_audit(write(tmp_path / "pairs.jsonl", rows)), **options).audit


def _outcomes(audit: DataAudit) -> dict[str, str]:
    return {check.name: check.outcome.value for check in checks(audit)}


def test_every_planted_fault_is_found_by_its_line(tmp_path: Path) -> None:
    audit = _audit(tmp_path, FAULTY)
    assert (audit.num_rows, audit.num_pairs, audit.num_ties, audit.num_prompts) == (10, 8, 1, 3)
    assert audit.duplicates == [[1, 2]]
    assert audit.both_orders == [[1, 2, 3]]
    assert audit.cycles == [[5, 6, 7]]
    assert audit.equal_lines == [4]
    assert len(audit.broken_rows) == 1
    assert f"{audit.path}, line 8: no value in column 'rejected'" in audit.broken_rows[0]
    assert "columns.rejected=" in audit.broken_rows[0]
    assert audit.not_clean == {
        "equal replies": 0, "duplicate": 1, "both orders": 1, "tie and preference": 0, "cycle": 3, "near duplicate": 0,
    }  # fmt: skip
    assert _outcomes(audit) == {
        "rows": "FAIL", "equal replies": "FAIL", "nearly equal replies": "ok", "duplicates": "note",
        "near duplicates": "ok", "both orders": "note", "cycles": "note", "prompts": "ok", "length": "ok",
        "repeated labels": "ok",
    }  # fmt: skip


def test_every_finding_that_can_be_acted_on_says_how(tmp_path: Path) -> None:
    found = [check for check in checks(_audit(tmp_path, FAULTY)) if check.outcome is not Outcome.OK]
    assert len(found) == 5 and all(check.remedy for check in found)


def test_sources_are_audited_apart_and_pairs_without_one_together(tmp_path: Path) -> None:
    audit = _audit(tmp_path, FAULTY)
    menu, none = audit.by_source["menu"], audit.by_source["none"]
    assert (menu.num_pairs, menu.num_prompts, menu.num_ties, menu.num_not_clean) == (2, 1, 1, 0)
    assert menu.longer_is_chosen.value == 0.0 and menu.longer_is_chosen.num_pairs == 1
    assert (none.num_pairs, none.num_prompts, none.num_not_clean) == (6, 2, 5)
    lines = source_lines(audit)
    assert [line.split()[0] for line in lines] == ["source", "none", "menu"]
    assert len({len(line) for line in lines}) == 1
    assert _audit(tmp_path, FAULTY[:3]).by_source == {}
    assert facts(audit)["sources"] == "2" and facts(audit)["pairs"] == "8, 1 of them ties"


def test_length_skew_by_hand(tmp_path: Path) -> None:
    """Lengths 8/4, 2/6, 5/5 and 9/1: longer in 2, equal in 1 of 4; differences 4, −4, 0 and 8."""
    rows = [
        _row("a", "x" * 8, "y" * 4),
        _row("b", "x" * 2, "y" * 6),
        _row("c", "x" * 5, "y" * 5),
        _row("d", "x" * 9, "y"),
        _row("e", "x" * 90, "y", is_tie=True),
    ]
    lengths = _audit(tmp_path, rows).lengths
    assert lengths is not None
    assert lengths.longer_is_chosen.value == pytest.approx(2.5 / 4)
    assert lengths.longer_is_chosen.num_pairs == 4 and lengths.num_equally_long == 1
    assert (lengths.median_chosen, lengths.median_rejected) == (6.5, 4.5)
    assert lengths.difference["0.5"] == 2.0
    assert lengths.num_balanced == 3  # 4 with −4, and 0; nothing is shorter by about 8
    only_ties = read_for_audit(write(tmp_path / "ties.jsonl", rows[4:])).pairs_N
    assert length_skew(only_ties, [0]) is None


def _long(seed: int, num_words: int = 60) -> str:
    rng = random.Random(seed)
    return " ".join(f"word{rng.randrange(1000)}" for _ in range(num_words))


def test_near_duplicates_and_near_equal_replies_are_found(tmp_path: Path) -> None:
    rows = [
        _row(_long(0), _long(1), _long(2)),
        _row(_long(0) + " please", _long(1) + " indeed", _long(2)),
        _row(_long(3), _long(4), _long(4) + " or not"),
        _row(_long(0), _long(5), _long(6)),
    ]
    audit = _audit(tmp_path, rows)
    assert audit.near_duplicates == [[1, 2]] and audit.duplicates == []
    assert audit.near_equal_lines == [3]
    assert audit.num_prompts == 3 and audit.num_near_prompts == 1
    assert audit.not_clean["near duplicate"] == 0
    assert _audit(tmp_path, rows, drop_near=True).not_clean["near duplicate"] == 1


def test_prompts_shared_with_other_files_are_found(tmp_path: Path) -> None:
    rows = [_row(_long(i), "yes", "no") for i in range(6)]
    held_out = read_for_audit(
        write(tmp_path / "held_out.jsonl", [rows[1], _row(_long(2) + " now", "a", "b"), _row("z", "a", "b")])
    )
    rl: list[list[Any]] = [[{"role": "user", "content": text}] for text in (_long(4), _long(5).upper(), "other")]
    audit = _audit(tmp_path, rows, held_out=held_out, rl_prompts=("rl.jsonl", rl))
    first, second = audit.overlaps["held-out"], audit.overlaps["RL"]
    assert (first.num_prompts, first.num_equal, first.num_near, first.lines) == (3, 1, 2, [2, 3])
    assert (second.num_prompts, second.num_equal, second.num_near, second.lines) == (3, 1, 2, [5, 6])
    outcomes = _outcomes(audit)
    assert outcomes["overlap with held-out prompts"] == "FAIL" and outcomes["overlap with RL prompts"] == "note"
    apart = audit_pairs(read_for_audit(audit.path), held_out=read_for_audit(write(tmp_path / "apart.jsonl", FAULTY)))
    assert _outcomes(apart.audit)["overlap with held-out prompts"] == "ok"


def test_token_lengths_are_those_that_training_refuses(tmp_path: Path, tokenizer: Any) -> None:
    rows = [_row("Tea?", "yes " * n, "no") for n in (1, 30, 90)]
    file = read_for_audit(write(tmp_path / "pairs.jsonl", rows))
    renderer = get_renderer("qwen3_disable_thinking", tokenizer)
    sizes = [len(pair.chosen.tokens) for pair in render_pairs(file.pairs_N, Verdict(), renderer).pairs]
    measured = token_lengths(file.pairs_N, file.lines_N, Verdict(), renderer, model="mint-tiny", limit=sizes[1])
    assert measured.longest == sizes[2] and measured.quantiles["0.5"] == sizes[1]
    assert measured.too_long_lines == [3]
    kept = render_pairs(file.pairs_N, Verdict(), renderer, max_length=sizes[1], on_too_long="drop")
    assert kept.num_dropped == len(measured.too_long_lines)


def test_a_file_without_any_pair_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.jsonl", [{"question": "Tea?", "good": "Yes", "bad": "No"}])
    with pytest.raises(InvalidRequest) as caught:
        read_for_audit(path)
    assert "no row of" in str(caught.value) and "line 1: no value in column 'chosen'" in str(caught.value)
    assert read_for_audit(path, PairColumns(prompt="question", chosen="good", rejected="bad")).num_rows == 1
    with pytest.raises(InvalidRequest, match="line 1: both replies are equal"):
        read_for_audit(write(tmp_path / "equal.jsonl", FAULTY[3:4]))


def test_the_audit_is_json(tmp_path: Path) -> None:
    import dataclasses

    audit = _audit(tmp_path, FAULTY)
    assert json.loads(json.dumps(dataclasses.asdict(audit)))["cycles"] == [[5, 6, 7]]


def test_real_pairs(shared_data: Path) -> None:
    audit = audit_pairs(read_for_audit(str(shared_data / "preference_pairs.jsonl"))).audit
    assert audit.num_pairs == 3000 and len(audit.by_source) == 12
    assert audit.broken_rows == [] and audit.equal_lines == []
    assert audit.lengths is not None and audit.lengths.longer_is_chosen.value is not None
    assert 0.78 < audit.lengths.longer_is_chosen.value < 0.80
    assert audit.duplicates and audit.both_orders
    assert audit.word_model is not None and audit.word_model.accuracy.low is not None
    assert audit.word_model.accuracy.low > 0.7
    assert audit.word_model.confident_error.high is not None and audit.word_model.confident_error.high < 0.15
