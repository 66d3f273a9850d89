"""Conversations in the rows of JSONL and Parquet files and of hub datasets (see `envs.data_rows`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz

from envs.data_rows import read_rows
from mint.errors import InvalidRequest
from renderers import Message, ToolSpec, validate_messages

CONVERSATION_COLUMNS = ("messages", "conversations")
# ShareGPT files write {"from": ..., "value": ...} with these names.
_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "system": "system", "tool": "tool"}


@chz.chz(typecheck=True)
class ConversationColumns:
    """Which columns hold a conversation. All None: `messages`, `conversations`, or `prompt` and `completion`."""

    # Column with a list of messages ({"role", "content"}).
    messages: str | None = None
    # Two columns of text instead: what the user says and what the assistant answers ("question", "answer" for GSM8K).
    prompt: str | None = None
    completion: str | None = None

    # typecheck=True checks types last; the rules below compare values.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _either(self) -> None:
        if (self.prompt is None) != (self.completion is None):
            raise InvalidRequest(
                f"columns.prompt={self.prompt!r} and columns.completion={self.completion!r}: name both or neither"
            )
        if self.messages is not None and self.prompt is not None:
            raise InvalidRequest(
                f"columns.messages={self.messages!r} and columns.prompt={self.prompt!r}: a row has either a list of "
                "messages or a prompt and a completion; name one of the two"
            )


@dataclass(frozen=True)
class Conversation:
    """Messages to train on. tools: what the assistant may call. origin: where it comes from, for error messages."""

    messages: list[Message]
    origin: str
    tools: list[ToolSpec] | None = None


def read_conversations(
    path: str | Path,
    columns: ConversationColumns | None = None,
    *,
    split: str = "train",
    subset: str | None = None,
    max_rows: int | None = None,
) -> list[Conversation]:
    """The conversations of a file or hub dataset, each with at least one assistant message, in order.

    A row's `tools` column, where there is one, goes with it. InvalidRequest names the line of the first bad row.
    """
    columns = columns or ConversationColumns()
    conversations: list[Conversation] = []
    for line, row in read_rows(path, split=split, subset=subset, max_rows=max_rows):
        origin = f"{path}, line {line}"
        try:
            messages = messages_of_row(row, columns)
            check_conversation(messages)
        except InvalidRequest as error:
            raise InvalidRequest(f"{origin}: {error}") from error
        conversations.append(Conversation(messages, origin, row.get("tools")))
    return conversations


def check_conversation(messages: list[Message]) -> None:
    """Raise InvalidRequest unless `messages` is a well-formed conversation with an assistant message."""
    validate_messages(messages)
    if not any(message["role"] == "assistant" for message in messages):
        raise InvalidRequest("the conversation has no assistant message, so there is nothing to learn; add one")


def messages_of_row(row: Mapping[str, Any], columns: ConversationColumns) -> list[Message]:
    """The messages in one row. InvalidRequest lists the row's columns where the wanted ones are missing."""
    prompt, completion = columns.prompt, columns.completion
    messages_columns = CONVERSATION_COLUMNS if columns.messages is None else (columns.messages,)
    if prompt is None or completion is None:
        for name in messages_columns:
            if name in row:
                return messages_in(row[name], name)
        prompt, completion = "prompt", "completion"
    if columns.messages is not None or prompt not in row or completion not in row:
        wanted = repr(columns.messages) if columns.messages else f"{prompt!r} and {completion!r}"
        if columns == ConversationColumns():
            wanted = "'messages', 'conversations', or 'prompt' and 'completion'"
        raise InvalidRequest(
            f"the row has no {wanted}; its columns are {', '.join(map(repr, row))}. Name yours with "
            "columns.messages=... or columns.prompt=... columns.completion=..."
        )
    texts = {name: row[name] for name in (prompt, completion)}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise InvalidRequest(f"column {name!r} must hold text, got {type(text).__name__}")
    return [{"role": "user", "content": texts[prompt]}, {"role": "assistant", "content": texts[completion]}]


def messages_in(value: Any, column: str) -> list[Message]:
    """The messages in a column, chat or ShareGPT keys, without the empty keys that Parquet and Arrow fill in."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise InvalidRequest(f"column {column!r} must hold a list of messages, got {type(value).__name__}")
    messages: list[Any] = [{key: item for key, item in message.items() if item is not None} for message in value]
    if messages and all("from" in message and "value" in message for message in messages):
        for message in messages:
            role = message.pop("from")
            message |= {"role": _SHAREGPT_ROLES.get(role, role), "content": message.pop("value")}
    return messages
