"""Pairs from lists and files: what is read, what is refused and in which words, and how they are split and ordered."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.errors import InvalidRequest
from recipe.preference.data import (
    FilePreferenceDatasetBuilder,
    ListPreferenceDatasetBuilder,
    PairColumns,
    batch_of_step,
    num_batches,
    pair_from_row,
    read_pairs,
    split_by_prompt,
)
from recipe.preference.types import PairExampleConfig, PreferencePair, PreferenceSplit, prompt_key


def make_pair(prompt: str, chosen: str = "good", rejected: str = "bad") -> PreferencePair:
    return PreferencePair(
        prompt=[{"role": "user", "content": prompt}],
        chosen={"role": "assistant", "content": chosen},
        rejected={"role": "assistant", "content": rejected},
    )


def _write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


ROW = {"prompt": "Tea?", "chosen": "Yes, please.", "rejected": "No."}
CHOSEN, REJECTED = {"role": "assistant", "content": "Yes, please."}, {"role": "assistant", "content": "No."}
PROMPT = {"role": "user", "content": "Tea?"}


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        {"prompt": [PROMPT], "chosen": CHOSEN, "rejected": [REJECTED]},
        {"chosen": [PROMPT, CHOSEN], "rejected": [PROMPT, REJECTED]},
        {"prompt": "Tea?", "chosen": [PROMPT, CHOSEN], "rejected": [PROMPT, REJECTED]},
        {"prompt": [PROMPT | {"name": None}], "chosen": CHOSEN | {"tool_calls": None}, "rejected": REJECTED},
    ],
    ids=["text", "messages", "whole conversations", "prompt twice", "Parquet's empty keys"],
)
def test_the_same_pair_however_it_is_written(row: dict[str, Any]) -> None:
    assert pair_from_row(row) == make_pair("Tea?", "Yes, please.", "No.")


def test_a_prompt_of_several_turns_is_kept() -> None:
    turns = [{"role": "system", "content": "Be kind."}, PROMPT, REJECTED, {"role": "user", "content": "Sure?"}]
    pair = pair_from_row({"prompt": turns, "chosen": "Yes", "rejected": "No"})
    assert [message["role"] for message in pair.chosen_conversation] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"chosen": "a", "rejected": "b"}, "no prompt: the row needs a column 'prompt'"),
        ({"prompt": "q", "rejected": "b"}, "no value in column 'chosen'; the row has 'prompt', 'rejected'"),
        ({"prompt": "q", "chosen": "a", "rejected": "a "}, "chosen and rejected are equal ('a')"),
        (
            {"prompt": 3, "chosen": "a", "rejected": "b"},
            "column 'prompt' must be a text or a list of messages, got int",
        ),
        ({"prompt": "q", "chosen": [], "rejected": "b"}, "column 'chosen' is an empty list"),
        (
            {"chosen": [PROMPT, CHOSEN], "rejected": [{"role": "user", "content": "Milk?"}, REJECTED]},
            "'chosen' and 'rejected' begin with different messages",
        ),
        (
            {"prompt": "Milk?", "chosen": [PROMPT, CHOSEN], "rejected": [PROMPT, REJECTED]},
            "'prompt' differs from the messages before the reply in 'chosen'",
        ),
    ],
)
def test_a_broken_row_is_refused_with_the_reason(row: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        pair_from_row(row)
    assert words in str(caught.value)


def test_a_file_gives_its_pairs_in_order_with_their_source_and_origin(tmp_path: Path) -> None:
    path = _write(tmp_path / "pairs.jsonl", [ROW | {"source": "survey"}, ROW | {"prompt": "Milk?"}])
    first, second = read_pairs(path)
    assert (first.source, second.source) == ("survey", None)
    assert (first.origin, second.origin) == (f"{path}, line 1", f"{path}, line 2")
    assert second.prompt == [{"role": "user", "content": "Milk?"}]


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    path = _write(tmp_path / "pairs.jsonl", [{"question": "Tea?", "better": "Yes, please.", "worse": "No."}])
    columns = PairColumns(prompt="question", chosen="better", rejected="worse")
    assert read_pairs(path, columns) == [make_pair("Tea?", "Yes, please.", "No.")]


def test_parquet_gives_the_same_pairs_as_jsonl(tmp_path: Path) -> None:
    import datasets

    rows = [
        {"prompt": [PROMPT], "chosen": [CHOSEN], "rejected": [REJECTED]},
        {"prompt": [{"role": "user", "content": "Milk?"}], "chosen": [CHOSEN], "rejected": [REJECTED]},
    ]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "pairs.parquet"))
    assert read_pairs(tmp_path / "pairs.parquet") == read_pairs(_write(tmp_path / "pairs.jsonl", rows))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([ROW, "{'prompt': 1}"], "pairs.jsonl, line 2: not valid JSON"),
        ([ROW, ROW | {"rejected": "Yes, please."}], "pairs.jsonl, line 2: chosen and rejected are equal"),
        ([], "pairs.jsonl: the file is empty"),
    ],
    ids=["malformed line", "equal replies", "empty file"],
)
def test_a_bad_file_is_refused_naming_the_line(tmp_path: Path, rows: list[Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_pairs(_write(tmp_path / "pairs.jsonl", rows))
    assert words in str(caught.value)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"nowhere\.jsonl: no such file"):
        read_pairs(tmp_path / "nowhere.jsonl")


def test_real_pairs_are_split_by_prompt(shared_data: Path) -> None:
    builder = FilePreferenceDatasetBuilder(path=str(shared_data / "preference_pairs.jsonl"))
    split = builder()
    assert len(split.train) + len(split.held_out) == 3000
    sides = [{prompt_key(pair.prompt) for pair in side} for side in (split.train, split.held_out)]
    assert not sides[0] & sides[1]
    assert len(sides[1]) == round(0.1 * (len(sides[0]) + len(sides[1])))
    assert split.train[0].source is not None


@given(
    prompts=st.lists(st.integers(0, 12).map(str), min_size=1, max_size=40),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
def test_a_prompt_is_never_on_both_sides_and_no_pair_is_lost(prompts: list[str], share: float, seed: int) -> None:
    pairs = [make_pair(prompt, chosen=f"good {i}") for i, prompt in enumerate(prompts)]
    if len(set(prompts)) < 2:
        with pytest.raises(InvalidRequest, match="all pairs have the same prompt"):
            split_by_prompt(pairs, share, seed)
        return
    split = split_by_prompt(pairs, share, seed)
    train, held_out = ({prompt_key(pair.prompt) for pair in side} for side in (split.train, split.held_out))
    assert train and held_out and not train & held_out
    texts = Counter(pair.chosen["content"] for pair in [*split.train, *split.held_out])
    assert texts == Counter(pair.chosen["content"] for pair in pairs)


def test_the_split_follows_from_prompts_and_seed_not_from_order() -> None:
    pairs = [make_pair(str(i)) for i in range(40)]

    def held_out(side: list[PreferencePair], seed: int) -> set[str]:
        return {prompt_key(pair.prompt) for pair in split_by_prompt(side, 0.25, seed).held_out}

    assert held_out(pairs, 0) == held_out(pairs[::-1], 0)
    assert held_out(pairs, 0) != held_out(pairs, 1)


def test_a_prompt_with_half_a_surrogate_pair_is_split_like_any_other() -> None:
    split = split_by_prompt([make_pair("\ud800"), make_pair("Tea?")], 0.5)
    assert len(split.train) == len(split.held_out) == 1


def test_given_sides_may_not_share_a_prompt() -> None:
    with pytest.raises(InvalidRequest, match="1 prompts are both in the training and in the held-out pairs"):
        PreferenceSplit([make_pair("a"), make_pair("b")], [make_pair("b", chosen="other")])


def test_a_list_may_hold_pairs_and_rows() -> None:
    builder = ListPreferenceDatasetBuilder(pairs=[ROW, make_pair("Milk?")], held_out_pairs=[ROW | {"prompt": "Water?"}])
    split = builder()
    assert list(split.train) == [make_pair("Tea?", "Yes, please.", "No."), make_pair("Milk?")]
    assert [pair.origin for pair in split.held_out] == ["held_out_pairs[0]"]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"prompt": "q", "chosen": "a"}, "pairs[1]: no value in column 'rejected'"),
        ("text", "pairs[1] must be a PreferencePair or a row, got str"),
    ],
)
def test_a_broken_item_of_a_list_is_refused_by_position(item: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ListPreferenceDatasetBuilder(pairs=[ROW, item])()
    assert words in str(caught.value)


def test_no_pairs_are_refused_by_every_builder() -> None:
    for held_out_pairs in (None, [make_pair("a")]):
        with pytest.raises(InvalidRequest, match="no preference pairs: there is nothing to train on"):
            ListPreferenceDatasetBuilder(pairs=[], held_out_pairs=held_out_pairs)()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "batch_size=0: must be at least 1"),
        ({"max_length": 1}, "max_length=1: must be at least 2"),
        ({"held_out_share": 1.0}, "held_out_share=1.0: must be at least 0 and below 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PairExampleConfig(**settings)
    assert words in str(caught.value)


@given(num_pairs=st.integers(1, 50), batch_size=st.integers(1, 20), seed=st.integers(0, 9), epoch=st.integers(0, 3))
def test_every_epoch_visits_every_pair_once(num_pairs: int, batch_size: int, seed: int, epoch: int) -> None:
    size = num_batches(num_pairs, batch_size)
    batches = [batch_of_step(num_pairs, batch_size, epoch * size + i, seed) for i in range(size)]
    assert sorted(i for batch in batches for i in batch) == list(range(num_pairs))
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {(epoch, seed): tuple(batch_of_step(30, 30, epoch, seed)) for epoch in range(2) for seed in range(2)}
    assert len(set(orders.values())) == 4
