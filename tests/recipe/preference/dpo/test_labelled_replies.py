"""Replies with a thumb: what is read, what is refused, how they are split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mint.errors import InvalidRequest
from recipe.preference.dpo.labelled_replies import (
    FileLabelledReplyDatasetBuilder,
    LabelledReply,
    ListLabelledReplyDatasetBuilder,
    split_replies,
)
from recipe.preference.types import PairExampleConfig, prompt_key
from renderers import Message

QUESTION: Message = {"role": "user", "content": "Tea?"}
ANSWER: Message = {"role": "assistant", "content": "Yes."}
NO_TEST = PairExampleConfig(held_out_share=0.0)


def read(row: dict[str, Any]) -> LabelledReply:
    (reply,) = ListLabelledReplyDatasetBuilder(replies=[row], examples=NO_TEST)().train
    return reply


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Tea?", "completion": "Yes."},
        {"prompt": [QUESTION], "completion": ANSWER},
        {"prompt": [QUESTION], "completion": [ANSWER]},
    ],
    ids=["text", "message", "messages"],
)
def test_the_same_reply_however_it_is_written(row: dict[str, Any]) -> None:
    assert read(row | {"label": True}) == LabelledReply([QUESTION], ANSWER, True)


@pytest.mark.parametrize(
    ("label", "is_desirable"),
    [(True, True), (1, True), ("Up", True), (False, False), (0, False), (-1, False), ("down", False)],
)
def test_a_thumb_may_be_written_in_several_ways(label: Any, is_desirable: bool) -> None:
    assert read({"prompt": "Tea?", "completion": "Yes.", "label": label}).is_desirable is is_desirable


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "q", "completion": "a"}, "replies[0]: no value in column 'label'"),
        ({"prompt": "q", "label": True}, "replies[0]: no value in column 'completion'"),
        ({"prompt": "q", "completion": "a", "label": "maybe"}, "replies[0]: column 'label' holds 'maybe'"),
        ({"prompt": "q", "completion": "a", "label": [1]}, "replies[0]: column 'label' holds [1]"),
        ({"prompt": [QUESTION, ANSWER], "completion": "a", "label": 1}, "a prompt that does not end with one"),
        ({"prompt": "q", "completion": [QUESTION], "label": 1}, "a labelled reply is an assistant message"),
        ({"prompt": "q", "completion": [ANSWER, ANSWER], "label": 1}, "has 2 messages: it must be one reply"),
    ],
)
def test_a_broken_row_is_refused_with_the_reason(row: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(row)
    assert words in str(caught.value)


def test_a_file_gives_its_replies_in_order(tmp_path: Path) -> None:
    path = tmp_path / "thumbs.jsonl"
    rows = [{"prompt": f"Tea {i}?", "completion": "Yes.", "label": i % 2 == 0} for i in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    split = FileLabelledReplyDatasetBuilder(path=str(path), examples=NO_TEST)()
    assert [reply.is_desirable for reply in split.train] == [True, False, True, False]
    assert split.train[1].origin == f"{path}, line 2"


def test_a_prompt_is_never_on_both_sides() -> None:
    replies = [
        LabelledReply([{"role": "user", "content": f"Tea {i % 10}?"}], {"role": "assistant", "content": str(i)}, True)
        for i in range(40)
    ]
    split = split_replies(replies, 0.3)
    sides = [{prompt_key(reply.prompt) for reply in side} for side in (split.train, split.held_out)]
    assert [len(side) for side in sides] == [7, 3] and not sides[0] & sides[1]
    with pytest.raises(InvalidRequest, match="1 prompts are both in the training and in the held-out replies"):
        ListLabelledReplyDatasetBuilder(replies=replies[:2], held_out_replies=replies[:1])()


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no labelled replies: there is nothing to train on"):
        ListLabelledReplyDatasetBuilder(replies=[])()
