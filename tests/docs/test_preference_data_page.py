"""The page on preference data: its commands do what it says, and it names every column and finding."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import chz
import pytest

from mint.cli import main as mint_command
from recipe.preference.data import FilePreferenceDatasetBuilder, read_pairs
from recipe.preference.data_audit import audit_pairs, read_for_audit
from recipe.preference.data_audit_report import checks
from recipe.preference.label_noise import MAX_PAIRS_FOR_MODEL
from recipe.preference.length_balance import MAX_LENGTH_RATIO
from recipe.preference.pair_rows import PairColumns
from recipe.preference.text_clusters import NEAR_SIMILARITY

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
BLACK_TEA, SOFT_EGGS = "Black tea, drawn for three minutes.", "Seven minutes for a soft yolk."
PAGE = (ROOT / "docs" / "preference_data.md").read_text(encoding="utf-8")


def test_every_column_is_on_the_page_and_no_other() -> None:
    named = set(re.findall(r"`columns\.(\w+)", PAGE))
    assert named == set(chz.chz_fields(PairColumns))


def test_every_finding_is_on_the_page() -> None:
    audit = audit_pairs(read_for_audit(str(EXAMPLES / "pairs.jsonl"))).audit
    named = set(re.findall(r"`([a-zA-Z -]+)`", PAGE))
    assert {check.name for check in checks(audit)} <= named
    assert {"too long", "surprising labels", "overlap with held-out prompts", "overlap with RL prompts"} <= named


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    assert f"at least {NEAR_SIMILARITY}" in PAGE
    assert f"within a factor of {MAX_LENGTH_RATIO}" in PAGE
    assert f"{MAX_PAIRS_FOR_MODEL:,}" in PAGE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("arena.jsonl", [(BLACK_TEA, 1.0, False), (None, 1.0, True)]),
        ("numbered.jsonl", [(BLACK_TEA, 1.0, False), (SOFT_EGGS, 1.0, False)]),
        ("signed.jsonl", [(BLACK_TEA, 2.0, False), (SOFT_EGGS, 3.0, False)]),
    ],
)
def test_the_columns_of_the_examples_give_the_pairs_they_should(
    name: str, expected: list[tuple[str | None, float, bool]]
) -> None:
    (command,) = [line for line in PAGE.splitlines() if line.startswith(f"mint data audit docs/examples/{name}")]
    settings = dict(word.removeprefix("columns.").split("=") for word in shlex.split(command)[4:])
    pairs = read_pairs(EXAMPLES / name, PairColumns(**settings))
    found = [(None if pair.is_tie else pair.chosen["content"], pair.strength, pair.is_tie) for pair in pairs]
    assert found == expected


def test_the_command_that_writes_clean_files_gives_training_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = re.findall(r"^```sh\nmint (.*)\n```$", PAGE, re.MULTILINE)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    assert mint_command(shlex.split(command)) == 0
    assert "cycles: 3 of 11 pairs lie on cycles" in capsys.readouterr().out
    split = FilePreferenceDatasetBuilder(path="clean/pairs_train.jsonl", held_out_path="clean/pairs_held_out.jsonl")()
    # Eleven pairs less one repetition, two in both orders and three on a cycle.
    assert len(split.train) + len(split.held_out) == 5
