"""Conversations from JSONL and Parquet files, and what is said about bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.data_rows import read_rows
from mint.errors import InvalidRequest
from recipe.conversation_files import ConversationColumns, read_conversations

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def write_jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    import datasets

    datasets.Dataset.from_dict(columns).to_parquet(str(path))
    return path


@pytest.mark.parametrize("column", ["messages", "conversations"])
def test_lists_of_messages_are_found_by_themselves(tmp_path: Path, column: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", {column: CHAT, "id": 1})
    (conversation,) = read_conversations(path)
    assert conversation.messages == CHAT
    assert conversation.origin == f"{path}, line 1"


def test_two_named_columns_become_two_turns(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", {"question": "1+1?", "answer": "2"})
    (conversation,) = read_conversations(path, ConversationColumns(prompt="question", completion="answer"))
    assert conversation.messages == [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]


def test_prompt_and_completion_need_no_naming(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", {"prompt": "a", "completion": "b"})
    assert [message["content"] for message in read_conversations(path)[0].messages] == ["a", "b"]


def test_sharegpt_turns_are_read(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    assert read_conversations(write_jsonl(tmp_path / "a.jsonl", {"conversations": turns}))[0].messages == CHAT


def test_tools_travel_with_their_conversation(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "calc"}}]
    path = write_jsonl(tmp_path / "a.jsonl", {"messages": CHAT, "tools": tools}, {"messages": CHAT})
    assert [conversation.tools for conversation in read_conversations(path)] == [tools, None]


def test_blank_lines_count_as_lines_and_max_rows_limits(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2, "b": null}\n{"a": 3}\n', encoding="utf-8")
    assert read_rows(path) == [(1, {"a": 1}), (3, {"a": 2}), (4, {"a": 3})]
    assert read_rows(path, max_rows=2) == [(1, {"a": 1}), (3, {"a": 2})]


def test_parquet_gives_the_same_conversations_as_jsonl(tmp_path: Path) -> None:
    table = write_parquet(tmp_path / "a.parquet", {"messages": [CHAT, CHAT], "score": [1.0, None]})
    assert [conversation.messages for conversation in read_conversations(table)] == [CHAT, CHAT]
    assert read_rows(table, max_rows=1) == [(1, {"messages": CHAT, "score": 1.0})]


def test_gsm8k_is_read_whole(shared_data: Path) -> None:
    columns = ConversationColumns(prompt="question", completion="answer")
    conversations = read_conversations(shared_data / "gsm8k_test.jsonl", columns)
    assert len(conversations) == len((shared_data / "gsm8k_test.jsonl").read_text(encoding="utf-8").splitlines())
    assert "#### " in conversations[0].messages[-1]["content"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "none.jsonl",
            None,
            r"none\.jsonl: no such file; give a \.jsonl or \.parquet file, or the name of a hub dataset",
        ),
        ("empty.jsonl", "", r"empty\.jsonl: the file is empty; it needs at least one row"),
        ("blank.jsonl", "\n \n", r"blank\.jsonl: the file is empty"),
        ("bad.jsonl", '{"messages": []}\n{"mess\n', r"bad\.jsonl, line 2: not valid JSON \(.*\); repair the line"),
        ("list.jsonl", "[1]\n", r"list\.jsonl, line 1: must be a JSON object, got list"),
        ("data.csv", "a,b\n", r"data\.csv: cannot read '\.csv' files; give one of \.jsonl, \.parquet"),
        ("bad.parquet", "not parquet", r"bad\.parquet: cannot be read as Parquet \("),
    ],
)
def test_unreadable_file_is_named_with_the_reason(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InvalidRequest, match=message):
        read_rows(tmp_path / name)


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ({"messages": CHAT[:1]}, {}, r"line 2: the conversation has no assistant message"),
        ({"messages": []}, {}, r"line 2: messages is empty"),
        ({"messages": "hi"}, {}, r"line 2: column 'messages' must hold a list of messages, got str"),
        ({"messages": [{"role": "robot", "content": "x"}]}, {}, r"line 2: messages\[0\] has role 'robot'"),
        ({"text": "x", "id": 1}, {}, r"line 2: the row has no 'messages', .*its columns are 'text', 'id'"),
        (
            {"q": "x", "a": "y"},
            {"prompt": "q", "completion": "answer"},
            r"no 'q' and 'answer'; its columns are 'q', 'a'",
        ),
        ({"chat": CHAT}, {"messages": "chats"}, r"the row has no 'chats'; its columns are 'chat'"),
        ({"q": 1, "a": "y"}, {"prompt": "q", "completion": "a"}, r"column 'q' must hold text, got int"),
    ],
)
def test_bad_row_is_named_by_its_line(tmp_path: Path, row: Any, columns: dict[str, str], message: str) -> None:
    good = {"messages": CHAT, "chats": CHAT, "q": "x", "answer": "y", "a": "y"}
    path = write_jsonl(tmp_path / "a.jsonl", good, row)
    with pytest.raises(InvalidRequest, match=message):
        read_conversations(path, ConversationColumns(**columns))


def test_columns_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="name both or neither"):
        ConversationColumns(prompt="q")
    with pytest.raises(InvalidRequest, match="name one of the two"):
        ConversationColumns(messages="m", prompt="q", completion="a")


def test_unreachable_hub_names_the_dataset_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InvalidRequest, match=r"dataset 'nobody/nothing-here' .*could not be loaded.*give a \.jsonl"):
        read_rows("nobody/nothing-here")
