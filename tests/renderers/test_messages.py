"""Conversations that no renderer can write are refused with the place and the rule."""

from __future__ import annotations

from typing import Any

import pytest

from mint.errors import InvalidRequest
from renderers import get_renderer, get_text, get_tool_calls, validate_messages


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], "messages is empty"),
        ("hi", "messages must be a list of dicts"),
        ({"role": "user", "content": "x"}, "messages must be a list of dicts"),
        ([("user", "x")], r"messages\[0\] must be a dict"),
        ([{"role": "human", "content": "x"}], "role 'human': must be one of system, user, assistant, tool"),
        ([{"content": "x"}], "role None"),
        ([{"role": "user"}], r"messages\[0\]\['content'\] must be a string, got NoneType"),
        ([{"role": "user", "content": [{"type": "text"}]}], "must be a string, got list"),
        ([{"role": "user", "content": "x", "trainabel": True}], "'trainabel'.*Did you mean 'trainable'"),
        ([{"role": "user", "content": "x", "thinking": "t"}], "only an assistant message may have it"),
        ([{"role": "assistant", "content": "x", "thinking": 3}], r"\['thinking'\] must be a string, got int"),
        ([{"role": "user", "content": "x", "trainable": 1}], "must be True or False, got 1"),
        ([{"role": "assistant", "content": "", "tool_calls": ["calc"]}], r"\['tool_calls'\]\[0\] must be"),
        ([{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}], "arguments None"),
    ],
)
def test_bad_conversation_is_refused(messages: Any, error: str) -> None:
    with pytest.raises(InvalidRequest, match=error):
        validate_messages(messages)


def test_assistant_that_only_calls_tools_may_have_no_content() -> None:
    message: Any = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {}}]}
    validate_messages([message])
    assert get_text(message) == ""
    assert get_tool_calls(message) == [{"name": "f", "arguments": {}}]


def test_unnamed_tool_is_refused(qwen3_tokenizer: Any) -> None:
    tools: Any = [{"type": "function", "function": {}}]
    with pytest.raises(InvalidRequest, match=r"tools\[0\] must be"):
        get_renderer("qwen3", qwen3_tokenizer).build_generation_prompt([{"role": "user", "content": "x"}], tools)
