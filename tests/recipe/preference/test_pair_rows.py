"""The ways in which public files say which reply is better, and how a pair is written so that it is read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.errors import InvalidRequest
from recipe.preference.pair_rows import PairColumns, pair_from_row, pair_to_row
from recipe.preference.types import PreferencePair

TWO_REPLIES = {"prompt": "Tea?", "chosen": "Yes, please.", "rejected": "No."}


def _verdict(row: dict[str, Any], **columns: Any) -> tuple[str, float, bool]:
    """(the better reply, strength, is_tie) of a row with two replies."""
    pair = pair_from_row(TWO_REPLIES | row, PairColumns(**columns))
    return pair.chosen["content"], pair.strength, pair.is_tie


@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        ({}, {}, ("Yes, please.", 1.0, False)),
        ({"strength": 2}, {}, ("Yes, please.", 2.0, False)),
        ({"how_sure": 0.5}, {"strength": "how_sure"}, ("Yes, please.", 0.5, False)),
        ({"is_tie": True, "strength": 3.0}, {}, ("Yes, please.", 1.0, True)),
        ({"winner": "model_b"}, {"label": "winner"}, ("No.", 1.0, False)),
        ({"winner": "A", "strength": 3}, {"label": "winner"}, ("Yes, please.", 3.0, False)),
        ({"winner": "tie (bothbad)", "strength": 3}, {"label": "winner"}, ("Yes, please.", 1.0, True)),
        ({"better": 1}, {"label": "better", "first_wins": "0", "second_wins": "1"}, ("No.", 1.0, False)),
        ({"better": 1.5}, {"label": "better", "first_wins": "1", "second_wins": "2", "tie_values": "1.5"},
         ("Yes, please.", 1.0, True)),
        ({"better": 2.0}, {"label": "better", "first_wins": "1", "second_wins": "2"}, ("No.", 1.0, False)),
        ({"overall": -3}, {"margin": "overall"}, ("No.", 3.0, False)),
        ({"overall": 0}, {"margin": "overall"}, ("Yes, please.", 1.0, True)),
        ({"score_a": 6.5, "score_b": 5.0}, {"chosen_score": "score_a", "rejected_score": "score_b"},
         ("Yes, please.", 1.5, False)),
        ({"score_a": 5, "score_b": 8}, {"chosen_score": "score_a", "rejected_score": "score_b"}, ("No.", 3.0, False)),
    ],
)  # fmt: skip
def test_which_reply_is_better_and_by_how_much(
    row: dict[str, Any], columns: dict[str, Any], expected: tuple[str, float, bool]
) -> None:
    assert _verdict(row, **columns) == expected


@pytest.mark.parametrize(
    ("row", "columns", "words"),
    [
        ({"strength": 0}, {}, "column 'strength' holds 0: a strength is above 0; where its sign says which reply is "
         "better, read it with columns.margin=strength"),
        ({"strength": "much"}, {}, "column 'strength' holds 'much': it must hold a finite number"),
        ({"strength": True}, {}, "column 'strength' holds True: it must hold a finite number"),
        ({"is_tie": "no"}, {}, "column 'is_tie' holds 'no': must be true or false"),
        ({}, {"label": "winner"}, "no value in column 'winner'; the row has 'prompt', 'chosen', 'rejected'. "
         "Name another column with columns.label=..."),
        ({"winner": 1}, {"label": "winner"}, "column 'winner' holds 1, which is none of first_wins (a,model_a"),
        ({"gap": float("nan")}, {"margin": "gap"}, "column 'gap' holds nan: it must hold a finite number"),
        ({"a": 1}, {"chosen_score": "a", "rejected_score": "b"}, "Name another column with columns.rejected_score="),
    ],
)  # fmt: skip
def test_an_unclear_verdict_is_refused(row: dict[str, Any], columns: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _verdict(row, **columns)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"label": "a", "margin": "b"}, "columns.label='a' and columns.margin='b' each say which reply is better"),
        ({"chosen_score": "a"}, "columns.chosen_score='a' and columns.rejected_score=None: name both or neither"),
        ({"first_wins": "0", "second_wins": "1,0"}, "'0' is in two of columns.first_wins"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PairColumns(**columns)
    assert words in str(caught.value)


TURNS = [
    {"role": "user", "content": "Tea?"},
    {"role": "assistant", "content": "Which one?"},
    {"role": "user", "content": "Green."},
]


def _several_turns(chosen: str, rejected: str) -> PreferencePair:
    return PreferencePair(
        TURNS, {"role": "assistant", "content": chosen}, {"role": "assistant", "content": rejected}  # type: ignore
    )  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": TURNS, "chosen": "Here.", "rejected": "No."},
        {"chosen": [*TURNS, {"role": "assistant", "content": "Here."}],
         "rejected": [*TURNS, {"role": "assistant", "content": "No."}]},
        {"chosen": "\n\nHuman: Tea?\n\nAssistant: Which one?\n\nHuman: Green.\n\nAssistant: Here.",
         "rejected": "\n\nHuman: Tea?\n\nAssistant: Which one?\n\nHuman: Green.\n\nAssistant: No."},
        {"chosen": [{"from": "human", "value": "Tea?"}, {"from": "gpt", "value": "Which one?"},
                    {"from": "human", "value": "Green."}, {"from": "gpt", "value": "Here."}],
         "rejected": [{"from": "human", "value": "Tea?"}, {"from": "gpt", "value": "Which one?"},
                      {"from": "human", "value": "Green."}, {"from": "gpt", "value": "No."}]},
    ],
    ids=["prompt as messages", "whole conversations", "transcripts", "ShareGPT"],
)  # fmt: skip
def test_several_turns_however_they_are_written(row: dict[str, Any]) -> None:
    assert pair_from_row(row) == _several_turns("Here.", "No.")


def test_a_transcript_beside_a_prompt_is_a_reply() -> None:
    row = {"prompt": "Write a play.", "chosen": "Human: Tea?\n\nAssistant: Yes.", "rejected": "Human: No."}
    assert pair_from_row(row).chosen["content"] == "Human: Tea?\n\nAssistant: Yes."


@pytest.mark.parametrize(
    ("rejected", "words"),
    [
        ("\n\nHuman: Milk?\n\nAssistant: No.", "'chosen' and 'rejected' begin with different messages"),
        ("\n\nHuman: Tea?", "column 'rejected' ends with a turn of Human"),
    ],
)
def test_a_broken_transcript_is_refused(rejected: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        pair_from_row({"chosen": "\n\nHuman: Tea?\n\nAssistant: Yes.", "rejected": rejected})
    assert words in str(caught.value)


def test_a_system_column_goes_before_the_prompt() -> None:
    pair = pair_from_row(TWO_REPLIES | {"rules": "Be kind."}, PairColumns(system="rules"))
    assert pair.prompt == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tea?"}]
    assert pair_from_row(TWO_REPLIES | {"rules": ""}, PairColumns(system="rules")) == pair_from_row(TWO_REPLIES)
    twice = TWO_REPLIES | {"rules": "Be kind.", "prompt": pair.prompt}
    with pytest.raises(InvalidRequest, match="begins with a system message and column 'rules' has another"):
        pair_from_row(twice, PairColumns(system="rules"))


def test_a_prompt_column_that_repeats_only_the_first_turn_need_not_be_read() -> None:
    whole = {
        "prompt": "Tea?",
        "chosen": [*TURNS, {"role": "assistant", "content": "Here."}],
        "rejected": [*TURNS, {"role": "assistant", "content": "No."}],
    }
    with pytest.raises(InvalidRequest, match="do not read the first with columns.prompt=None"):
        pair_from_row(whole)
    assert pair_from_row(whole, PairColumns(prompt=None)) == _several_turns("Here.", "No.")


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
replies = st.one_of(
    texts.map(lambda text: {"role": "assistant", "content": text}),
    texts.map(lambda text: {"role": "assistant", "content": "", "thinking": text}),
)
prompts = st.one_of(
    texts.map(lambda text: [{"role": "user", "content": text}]),
    texts.map(lambda text: [{"role": "system", "content": text}, {"role": "user", "content": "Tea?"}]),
    texts.map(lambda text: [{"role": "user", "content": "Tea?", "name": text}]),
)


@given(
    prompt=prompts,
    chosen=replies,
    rejected=texts,
    source=st.none() | texts,
    strength=st.floats(1e-6, 1e6),
    is_tie=st.booleans(),
)
def test_a_pair_written_as_a_row_is_read_back(
    prompt: Any, chosen: Any, rejected: str, source: str | None, strength: float, is_tie: bool
) -> None:
    other: Any = {"role": "assistant", "content": f"{rejected} or not, {chosen['content']}"}
    pair = PreferencePair(prompt, chosen, other, source, strength=1.0 if is_tie else strength, is_tie=is_tie)
    assert pair_from_row(json.loads(json.dumps(pair_to_row(pair)))) == pair
