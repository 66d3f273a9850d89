"""Single replies with a thumb up or down, the data that KTO needs no pairs for: types, rows, lists and files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import chz

from envs.data_rows import read_rows
from mint.errors import InvalidRequest
from recipe.conversation_files import messages_in
from recipe.preference.data import held_out_prompts
from recipe.preference.types import PairExampleConfig, prompt_key
from renderers import Message
from renderers.messages import validate_messages

# What a label may say; true and false are 1 and 0.
_THUMBS: dict[Any, bool] = {"up": True, "down": False, 1: True, 0: False, -1: False}


@dataclass(frozen=True)
class LabelledReply:
    """A reply that somebody liked or did not.

    prompt: the conversation up to the reply, the last message not the assistant's. reply: an assistant message.
    is_desirable: True for a thumb up. origin: file and line, for messages.
    Construction raises InvalidRequest where one of these rules is broken.
    """

    prompt: list[Message]
    reply: Message
    is_desirable: bool
    origin: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        validate_messages([*self.prompt, self.reply])
        if not self.prompt or self.prompt[-1]["role"] == "assistant" or self.reply["role"] != "assistant":
            raise InvalidRequest(
                "a labelled reply is an assistant message after a prompt that does not end with one: move the last "
                "assistant message into the reply"
            )

    @property
    def conversation(self) -> list[Message]:
        """The prompt and the reply."""
        return [*self.prompt, self.reply]


@dataclass(frozen=True)
class LabelledSplit:
    """The replies to train on and those kept for testing. InvalidRequest for nothing to train on or a shared prompt."""

    train: Sequence[LabelledReply]
    held_out: Sequence[LabelledReply] = ()

    def __post_init__(self) -> None:
        if not self.train:
            raise InvalidRequest("no labelled replies: there is nothing to train on; give at least one")
        num_shared = len(_prompts(self.train) & _prompts(self.held_out))
        if num_shared:
            raise InvalidRequest(
                f"{num_shared} prompts are both in the training and in the held-out replies: remove them from one "
                "side, or leave out the held-out replies and let held_out_share split by prompt"
            )


@chz.chz(typecheck=True)
class LabelledColumns:
    """Names of the columns of a file of labelled replies."""

    # Text of one user message, or a list of messages.
    prompt: str = "prompt"
    # Text of the assistant's reply, or the message.
    completion: str = "completion"
    # true, 1 or "up" for a reply that is liked; false, 0, -1 or "down" for one that is not.
    label: str = "label"


@chz.chz(typecheck=True)
class LabelledReplyDatasetBuilder(ABC):
    """Settings from which labelled replies are made; subclasses say where they come from."""

    # How they are held out, rendered and batched; batch_size counts replies.
    examples: PairExampleConfig = chz.field(default_factory=PairExampleConfig)

    @abstractmethod
    def __call__(self) -> LabelledSplit:
        """The replies, validated and split. Raises InvalidRequest where there is nothing to train on."""


@chz.chz(typecheck=True)
class ListLabelledReplyDatasetBuilder(LabelledReplyDatasetBuilder):
    """Replies made in Python: LabelledReply objects, or rows with the columns prompt, completion and label.

    Only rows can be rebuilt from a run's config.json.
    """

    replies: list[Any]
    # Replies for testing, which may not share a prompt with `replies`; None: taken from `replies`.
    held_out_replies: list[Any] | None = None

    def __call__(self) -> LabelledSplit:
        """See LabelledReplyDatasetBuilder. InvalidRequest names the position of the first row that is not right."""
        replies = _from_items(self.replies, "replies")
        if self.held_out_replies is not None:
            return LabelledSplit(replies, _from_items(self.held_out_replies, "held_out_replies"))
        return split_replies(replies, self.examples.held_out_share, self.examples.split_seed)


@chz.chz(typecheck=True)
class FileLabelledReplyDatasetBuilder(LabelledReplyDatasetBuilder):
    """Replies from a .jsonl or .parquet file, or from a hub dataset, one a row."""

    # A file, or the name of a hub dataset.
    path: str
    # A file or hub dataset with replies for testing; None: taken from `path`.
    held_out_path: str | None = None
    columns: LabelledColumns = chz.field(default_factory=LabelledColumns)
    # Of a hub dataset.
    subset: str | None = None
    split: str = "train"

    def __call__(self) -> LabelledSplit:
        """See LabelledReplyDatasetBuilder. InvalidRequest names file and line of the first row that is not right."""
        replies = self._read(self.path)
        if self.held_out_path is not None:
            return LabelledSplit(replies, self._read(self.held_out_path))
        return split_replies(replies, self.examples.held_out_share, self.examples.split_seed)

    def _read(self, path: str | Path) -> list[LabelledReply]:
        rows = read_rows(path, split=self.split, subset=self.subset)
        return [_from_row(row, f"{path}, line {line}", self.columns) for line, row in rows]


def split_replies(replies: Sequence[LabelledReply], held_out_share: float, seed: int = 0) -> LabelledSplit:
    """Hold out a share of the prompts, at least one unless the share is 0; all replies to a prompt fall on one side.

    Which prompts are held out follows from their text and the seed, not from the order of the replies.
    """
    if held_out_share == 0.0 or not replies:
        return LabelledSplit(replies)
    held_out = held_out_prompts(_prompts(replies), held_out_share, seed, "replies")
    return LabelledSplit(
        train=[reply for reply in replies if prompt_key(reply.prompt) not in held_out],
        held_out=[reply for reply in replies if prompt_key(reply.prompt) in held_out],
    )


def _prompts(replies: Sequence[LabelledReply]) -> set[str]:
    return {prompt_key(reply.prompt) for reply in replies}


def _from_items(items: Sequence[Any], name: str) -> list[LabelledReply]:
    replies: list[LabelledReply] = []
    for i_item, item in enumerate(items):
        if isinstance(item, LabelledReply):
            replies.append(item)
        elif isinstance(item, Mapping):
            replies.append(_from_row(item, f"{name}[{i_item}]", LabelledColumns()))
        else:
            raise InvalidRequest(f"{name}[{i_item}] must be a LabelledReply or a row, got {type(item).__name__}")
    return replies


def _from_row(row: Mapping[str, Any], origin: str, columns: LabelledColumns) -> LabelledReply:
    missing = [column for column in (columns.prompt, columns.completion, columns.label) if row.get(column) is None]
    if missing:
        raise InvalidRequest(
            f"{origin}: no value in column {missing[0]!r}; the row has {', '.join(map(repr, row))}. Name other columns "
            "with columns.prompt=..., columns.completion=... and columns.label=..."
        )
    try:
        prompt = _messages(row, columns.prompt, "user")
        completion = _messages(row, columns.completion, "assistant")
        if len(completion) != 1:
            raise InvalidRequest(f"column {columns.completion!r} has {len(completion)} messages: it must be one reply")
        return LabelledReply(prompt, completion[0], _is_liked(row[columns.label], columns.label), origin)
    except InvalidRequest as error:
        raise InvalidRequest(f"{origin}: {error}") from error


def _messages(row: Mapping[str, Any], column: str, role: Literal["user", "assistant"]) -> list[Message]:
    value = row[column]
    if isinstance(value, str):
        return [Message(role=role, content=value)]
    return messages_in([dict(value)] if isinstance(value, Mapping) else value, column)


def _is_liked(label: Any, column: str) -> bool:
    verdict = None
    if isinstance(label, str | int | float):
        verdict = _THUMBS.get(label.strip().lower() if isinstance(label, str) else label)
    if verdict is None:
        raise InvalidRequest(
            f"column {column!r} holds {label!r}: it must be true, 1 or 'up' for a reply that is liked, false, 0, -1 or "
            "'down' for one that is not"
        )
    return verdict
