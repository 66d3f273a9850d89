"""Rows of JSONL and Parquet files and of hub datasets, and the conversations in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz

from mint.errors import InvalidRequest
from renderers import Message, ToolSpec, validate_messages

SUFFIXES = (".jsonl", ".parquet")
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


def read_rows(
    path: str | Path, *, split: str = "train", subset: str | None = None, max_rows: int | None = None
) -> list[tuple[int, dict[str, Any]]]:
    """(line, row) of every row of a .jsonl file, a .parquet file, or a hub dataset such as "openai/gsm8k".

    Lines are counted from 1, rows likewise where there are no lines. Columns that are null are left out of a row.
    split, subset: of a hub dataset. Raises InvalidRequest for a missing or empty file, a malformed line (with its
    number), another kind of file, and a hub dataset that cannot be loaded.
    """
    file = Path(path).expanduser()
    is_local = file.exists() or file.suffix in SUFFIXES or str(path).startswith((".", "/", "~"))
    if is_local and not file.is_file():
        problem = "is a folder, not a file" if file.is_dir() else "no such file"
        raise InvalidRequest(f"{path}: {problem}; give a .jsonl or .parquet file, or the name of a hub dataset")
    if not is_local:
        rows = _read_hub(str(path), split, subset, max_rows)
    elif file.suffix == ".jsonl":
        rows = _read_jsonl(file, max_rows)
    elif file.suffix == ".parquet":
        rows = _read_parquet(file, max_rows)
    else:
        raise InvalidRequest(f"{path}: cannot read {file.suffix!r} files; give one of {', '.join(SUFFIXES)}")
    if not rows:
        raise InvalidRequest(f"{path}: the file is empty; it needs at least one row")
    return rows


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
                return _messages_in(row[name], name)
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


def _messages_in(value: Any, column: str) -> list[Message]:
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise InvalidRequest(f"column {column!r} must hold a list of messages, got {type(value).__name__}")
    messages: list[Any] = [{key: item for key, item in message.items() if item is not None} for message in value]
    if messages and all("from" in message and "value" in message for message in messages):
        for message in messages:
            role = message.pop("from")
            message |= {"role": _SHAREGPT_ROLES.get(role, role), "content": message.pop("value")}
    return messages


def _read_jsonl(file: Path, max_rows: int | None) -> list[tuple[int, dict[str, Any]]]:
    rows: list[tuple[int, dict[str, Any]]] = []
    with file.open("rb") as lines:
        for i_line, line in enumerate(lines, start=1):
            if max_rows is not None and len(rows) == max_rows:
                break
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8"))
            except ValueError as error:
                raise InvalidRequest(f"{file}, line {i_line}: not valid JSON ({error}); repair the line") from error
            if not isinstance(row, dict):
                raise InvalidRequest(f"{file}, line {i_line}: must be a JSON object, got {type(row).__name__}")
            rows.append((i_line, _without_nulls(row)))
    return rows


def _read_parquet(file: Path, max_rows: int | None) -> list[tuple[int, dict[str, Any]]]:
    import datasets

    try:
        # Streamed: the rows are read from where they are, with no second copy in the hub's cache.
        table = datasets.load_dataset("parquet", data_files={"train": str(file)}, split="train", streaming=True)
        return _numbered(table if max_rows is None else table.take(max_rows))
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"{file}: cannot be read as Parquet ({_first_line(error)})") from error


def _read_hub(name: str, split: str, subset: str | None, max_rows: int | None) -> list[tuple[int, dict[str, Any]]]:
    import datasets

    try:
        table = datasets.load_dataset(name, subset, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        # datasets and huggingface_hub raise these three and their children: no such name, split or subset, no network.
        raise InvalidRequest(
            f"dataset {name!r} (subset {subset!r}, split {split!r}) could not be loaded from the hub: "
            f"{_first_line(error)} If the hub cannot be reached from here, download the data and give a .jsonl or "
            ".parquet file."
        ) from error
    return _numbered(table if max_rows is None else table.select(range(min(max_rows, len(table)))))


def _numbered(rows: Any) -> list[tuple[int, dict[str, Any]]]:
    return [(i_row, _without_nulls(row)) for i_row, row in enumerate(rows, start=1)]


def _without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is not None}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
