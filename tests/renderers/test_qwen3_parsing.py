"""Sampled tokens back to messages: every way a reply may end, and replies that break the format."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renderers import Message, ParseStatus, get_renderer

END, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"


def _parse(tokenizer: Any, text: str, renderer_name: str = "qwen3") -> tuple[Message, ParseStatus]:
    return get_renderer(renderer_name, tokenizer).parse_response(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize(
    ("text", "message", "status"),
    [
        ("ok" + END, {"content": "ok"}, ParseStatus.COMPLETE),
        ("ok" + END_OF_TEXT, {"content": "ok"}, ParseStatus.END_OF_TEXT),
        ("ok", {"content": "ok"}, ParseStatus.CUT),
        ("", {"content": ""}, ParseStatus.CUT),
        (END, {"content": ""}, ParseStatus.COMPLETE),
        ("<think>\nwhy\n</think>\n\nso" + END, {"content": "so", "thinking": "why"}, ParseStatus.COMPLETE),
        ("<think>\n\n</think>\n\nso" + END, {"content": "so"}, ParseStatus.COMPLETE),
        ("why\n</think>\n\nso" + END, {"content": "so", "thinking": "why"}, ParseStatus.COMPLETE),
        ("<think>\nwhy", {"content": "", "thinking": "why"}, ParseStatus.CUT),
        ("<think>\nwhy\n</think>\n\ns", {"content": "s", "thinking": "why"}, ParseStatus.CUT),
        ("<think>\nwhy" + END, {"content": "<think>\nwhy"}, ParseStatus.MALFORMED),
        ("so <think>\nwhy\n</think>" + END, {"content": "so <think>\nwhy\n</think>"}, ParseStatus.MALFORMED),
        ("a" + END + "b", {"content": "a" + END + "b"}, ParseStatus.MALFORMED),
        ("a<|im_start|>user" + END, {"content": "a<|im_start|>user"}, ParseStatus.MALFORMED),
    ],
)
def test_reply_is_read(qwen3_tokenizer: Any, text: str, message: dict[str, Any], status: ParseStatus) -> None:
    assert _parse(qwen3_tokenizer, text) == ({"role": "assistant", **message}, status)


def test_status_is_true_for_replies_that_ended_well() -> None:
    assert [bool(status) for status in ParseStatus] == [True, True, False, False]


CALL = '<tool_call>\n{"name": "calc", "arguments": {"expr": "1+1"}}\n</tool_call>'
PARSED_CALL = {"type": "function", "function": {"name": "calc", "arguments": {"expr": "1+1"}}}


@pytest.mark.parametrize(
    ("text", "content", "num_calls"),
    [
        (CALL, "", 1),
        ("Let me see.\n" + CALL, "Let me see.", 1),
        (CALL + "\n" + CALL, "", 2),
        (CALL + "\n", "", 1),
    ],
)
def test_tool_calls_are_read(qwen3_tokenizer: Any, text: str, content: str, num_calls: int) -> None:
    message, status = _parse(qwen3_tokenizer, text + END)
    assert status is ParseStatus.COMPLETE
    assert message == {"role": "assistant", "content": content, "tool_calls": [PARSED_CALL] * num_calls}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nnot json\n</tool_call>",
        '<tool_call>\n{"name": "calc"}\n</tool_call>',
        '<tool_call>\n{"name": "calc", "arguments": "1+1"}\n</tool_call>',
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>',
        "<tool_call>\n[1]\n</tool_call>",
        '<tool_call>\n{"name": "calc", "arguments": {}}',
        CALL + " and more",
        "see\n" + CALL + "<tool_call>",
        "<tool_call>" + "[" * 20000,
    ],
)
def test_broken_tool_call_is_malformed_and_its_text_is_kept(qwen3_tokenizer: Any, text: str) -> None:
    message, status = _parse(qwen3_tokenizer, text + END)
    assert status is ParseStatus.MALFORMED
    assert message == {"role": "assistant", "content": text}


def test_arguments_may_hold_the_closing_tag(qwen3_tokenizer: Any) -> None:
    text = '<tool_call>\n{"name": "write", "arguments": {"text": "</tool_call><tool_call>"}}\n</tool_call>' + END
    message, status = _parse(qwen3_tokenizer, text)
    assert status is ParseStatus.COMPLETE
    (call,) = message.get("tool_calls", [])
    assert call["function"]["arguments"] == {"text": "</tool_call><tool_call>"}


def test_instruct_renderer_reads_think_tags_as_content(qwen3_tokenizer: Any) -> None:
    message, status = _parse(qwen3_tokenizer, "the tag </think> closes" + END, "qwen3_instruct")
    assert (message["content"], status) == ("the tag </think> closes", ParseStatus.COMPLETE)


PLAIN = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=100)
@given(
    thinking=PLAIN.map(lambda text: text.strip("\n")),
    content=PLAIN.map(lambda text: text.lstrip("\n")),
    arguments=st.lists(st.dictionaries(PLAIN, PLAIN, max_size=2), max_size=2),
)
def test_what_is_trained_reads_back_as_the_message(
    qwen3_tokenizer: Any, thinking: str, content: str, arguments: list[dict[str, str]]
) -> None:
    reply: Message = {"role": "assistant", "content": content}
    if thinking:
        reply["thinking"] = thinking
    if arguments:
        reply["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": a}} for a in arguments]
    renderer = get_renderer("qwen3", qwen3_tokenizer)
    model_input, weights_T = renderer.build_supervised_example([{"role": "user", "content": "q"}, reply])
    trained = [token for token, weight in zip(model_input.to_ints(), weights_T, strict=True) if weight]
    assert renderer.parse_response(trained) == (reply, ParseStatus.COMPLETE)


@settings(max_examples=100)
@given(data=st.data())
def test_any_tokens_can_be_parsed(qwen3_tokenizer: Any, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, len(qwen3_tokenizer) + 5), max_size=12))
    for name in ("completion", "qwen3", "qwen3_disable_thinking", "qwen3_instruct", "role_colon"):
        message, status = get_renderer(name, qwen3_tokenizer).parse_response(tokens)
        assert isinstance(message["content"], str)
        assert isinstance(status, ParseStatus)
