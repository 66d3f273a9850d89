"""What is written is clean, balanced, split by prompt, and read back by the builder that training uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mint.errors import InvalidRequest
from recipe.preference.clean_splits import balanced, clean_splits, write_splits
from recipe.preference.data import FilePreferenceDatasetBuilder
from recipe.preference.data_audit import AuditedFile, audit_pairs
from recipe.preference.pair_evaluation import length_only_accuracy
from recipe.preference.pair_lengths import length_difference
from recipe.preference.types import PairExampleConfig, PreferencePair, prompt_key


def _pair(prompt: str, chosen: str, rejected: str, **more: Any) -> PreferencePair:
    prompt_messages: Any = [{"role": "user", "content": prompt}]
    replies: list[Any] = [{"role": "assistant", "content": text} for text in (chosen, rejected)]
    return PreferencePair(prompt_messages, *replies, **more)


def _file(pairs: list[PreferencePair], path: str = "pairs.jsonl") -> AuditedFile:
    return AuditedFile(path, pairs, list(range(1, len(pairs) + 1)))


def _splits(file: AuditedFile, **options: Any) -> Any:
    held_out = options.get("held_out")
    return clean_splits(file, audit_pairs(file, held_out=held_out, with_model=False), **options)


texts = st.text("abc \n", min_size=1, max_size=6).filter(str.strip)
pair_lists = st.lists(
    st.tuples(st.sampled_from(["p", "q", "r", "s", "\ud800", "Ünd "]), texts, texts, st.booleans())
    .filter(lambda t: t[1].strip() != t[2].strip())
    .map(lambda t: _pair(t[0], t[1], t[2], is_tie=t[3], source="made")),
    min_size=1,
    max_size=20,
)


@settings(max_examples=40)
@given(pairs=pair_lists, share=st.sampled_from([0.0, 0.3, 0.6]), seed=st.integers(0, 3))
def test_what_is_written_is_read_back_clean_and_split(
    pairs: list[PreferencePair], share: float, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        splits = _splits(_file(pairs), held_out_share=share, seed=seed)
    except InvalidRequest as error:
        assert "left to train on" in str(error) or "a prompt is never on both sides" in str(error)
        return
    folder = tmp_path_factory.mktemp("splits")
    written = write_splits(splits, str(folder / "clean"))
    held_out = str(folder / "clean_held_out.jsonl") if splits.held_out else None
    read = FilePreferenceDatasetBuilder(
        path=str(folder / "clean_train.jsonl"), held_out_path=held_out, examples=PairExampleConfig(held_out_share=0.0)
    )()
    assert (list(read.train), list(read.held_out)) == (splits.train, splits.held_out)
    assert sum(n for path, n in written.items() if "balanced" not in path) == len(splits.train) + len(splits.held_out)
    again = audit_pairs(_file([*splits.train, *splits.held_out]), with_model=False)
    assert again.clean.dropped == {}
    assert all(pair in pairs for pair in [*splits.train, *splits.held_out])
    for side, part in ((splits.train, splits.balanced_train), (splits.held_out, splits.balanced_held_out)):
        assert all(pair in side and not pair.is_tie for pair in part)
        assert not part or length_only_accuracy(part) == 0.5


def test_the_balanced_part_has_as_many_pairs_of_each_kind_and_about_the_same_differences() -> None:
    pairs = [_pair(str(i), "x" * (10 + i), "y" * 10) for i in range(1, 80)]
    pairs += [_pair(f"r{i}", "x" * 10, "y" * (10 + 4 * i)) for i in range(1, 15)]
    part = balanced(pairs)
    longer = sorted(length_difference(pair) for pair in part if length_difference(pair) > 0)
    shorter = sorted(-length_difference(pair) for pair in part if length_difference(pair) < 0)
    assert len(longer) == len(shorter) == 14
    assert all(1 / 1.25 <= a / b <= 1.25 for a, b in zip(longer, shorter, strict=True))
    assert part == [pair for pair in pairs if pair in part]
    assert {prompt_key(pair.prompt) for pair in balanced(pairs[::-1])} == {prompt_key(pair.prompt) for pair in part}


def test_nearly_equal_prompts_fall_on_one_side() -> None:
    long = " ".join(f"word{i}" for i in range(60))
    pairs = [_pair(f"{long} {ending}", f"yes {ending}", "no") for ending in ("now", "then", "")]
    pairs += [_pair(f"other {i}", "yes", "no") for i in range(5)]
    for seed in range(8):
        splits = _splits(_file(pairs), held_out_share=0.4, seed=seed)
        sides = {pair in splits.train for pair in pairs[:3]}
        assert len(sides) == 1 and len(splits.train) + len(splits.held_out) == len(pairs)


def test_prompts_of_a_given_held_out_file_leave_the_training_file() -> None:
    file = _file([_pair("a", "yes", "no"), _pair("b", "yes", "no"), _pair("B ", "maybe", "no")])
    held_out = _file([_pair("b", "x", "y"), _pair("b", "x", "y"), _pair("c", "x", "y")], "held_out.jsonl")
    splits = _splits(file, held_out=held_out)
    assert splits.train == file.pairs_N[:1] and splits.num_shared_dropped == 2
    assert splits.held_out == [held_out.pairs_N[0], held_out.pairs_N[2]]


def test_nothing_left_to_train_on_is_refused() -> None:
    file = _file([_pair("a", "yes", "no"), _pair("a", "no", "yes")])
    with pytest.raises(InvalidRequest, match="pairs.jsonl: none of its 2 pairs is left to train on"):
        _splits(file, held_out_share=0.0)
    with pytest.raises(InvalidRequest, match="held_out_share=0.1: 1 prompt is left"):
        _splits(_file([_pair("a", "yes", "no")]))


def test_an_older_file_that_would_be_mistaken_is_refused(tmp_path: Path) -> None:
    splits = _splits(_file([_pair("a", "yes", "no"), _pair("b", "ja", "nein")]), held_out_share=0.0)
    (tmp_path / "clean_held_out.jsonl").write_text("old")
    with pytest.raises(InvalidRequest, match=r"clean_held_out\.jsonl is of an earlier audit"):
        write_splits(splits, str(tmp_path / "clean"))
