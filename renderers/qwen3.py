"""The Qwen3 chat format.

    <|im_start|>system\\n...<|im_end|>\\n<|im_start|>user\\n...<|im_end|>\\n<|im_start|>assistant\\n
    <think>\\n...\\n</think>\\n\\n...<|im_end|>\\n

Three renderers share it:
- "qwen3": the policy reasons first. The last reply keeps its reasoning (an empty block where it has none), replies
  before the last question lose theirs, replies between a question and its tool results keep what they have.
- "qwen3_disable_thinking": every prompt ends with an empty reasoning block, so the policy starts with the answer.
- "qwen3_instruct": for the models that never reason (Instruct-2507): no block anywhere, content written as it is.

The text is that of the official chat template. Deliberate differences:
- Content cannot write control tokens: "<|im_end|>" inside a message is encoded as ordinary text, where the official
  tokenizer would end the turn. The six tags of the format (<think>, <tool_call>, <tool_response> and their closing
  forms) stay single tokens everywhere, as models have learned to read and write them.
- An assistant's header and its reply are encoded apart, as they are when the reply is sampled. This shows only in a
  reply that begins with whitespace and a line break, which would otherwise merge with the line break before it.
- "qwen3_disable_thinking" leaves reasoning out of every message, and a conversation's last reply always follows the
  empty block. The official template, with thinking off, still writes reasoning that a last reply brings along.
- Content must be a string; the official template writes other content as nothing.

Reasoning is left out of history, so a second prompt written from messages does not begin with the first prompt and
reply: a conversation of several turns is several training examples ("qwen3_instruct" excepted). An episode goes on from
the sampled tokens instead (`build_continuation`). Then "qwen3" writes the history anew after each question, as the
template does, but not after tool results; "qwen3_disable_thinking" keeps the empty blocks that the replies were sampled
behind. An assistant message at the end is written as a last reply even when a prompt for another one follows it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum

from mint.errors import InvalidRequest
from renderers.content_encoding import Tokenizer
from renderers.messages import (
    FunctionCall,
    Message,
    ToolCall,
    ToolSpec,
    get_text,
    get_thinking,
    get_tool_calls,
)
from renderers.renderer import ParseStatus, RenderedMessage, Renderer, StopCondition

_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_EMPTY_THINKING = "<think>\n\n</think>\n\n"
_TOOLS_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


class Thinking(Enum):
    """Whether replies begin with reasoning, with an empty reasoning block, or with neither."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    ABSENT = "absent"


class Qwen3Renderer(Renderer):
    """The Qwen3 chat format with one of three ways to treat reasoning; see the top of the file."""

    tokens_allowed_in_content = _TAGS

    def __init__(self, tokenizer: Tokenizer, name: str = "qwen3", thinking: Thinking = Thinking.ENABLED) -> None:
        super().__init__(tokenizer, name)
        self.thinking = thinking
        self.has_extension_property = thinking is Thinking.ABSENT
        self._start_id = self._required_id("<|im_start|>")
        self._end_id = self._required_id("<|im_end|>")
        self._end_of_text_id = self.encoder.control_id("<|endoftext|>")
        self._line_break = self.encoder.encode("\n")
        self._assistant_header = [self._start_id, *self.encoder.encode("assistant\n")]
        self._assistant_header_with_block = [self._start_id, *self.encoder.encode("assistant\n" + _EMPTY_THINKING)]

    def _required_id(self, control_string: str) -> int:
        token = self.encoder.control_id(control_string)
        if token is None:
            raise InvalidRequest(
                f"the tokenizer has no token {control_string!r}, which renderer {self.name!r} needs: "
                "use 'role_colon' for a tokenizer without chat tokens"
            )
        return token

    # --- messages to tokens ---

    def generation_header(self) -> list[int]:
        return self._assistant_header_with_block if self.thinking is Thinking.DISABLED else self._assistant_header

    def render_messages(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None, *, is_prompt: bool
    ) -> list[RenderedMessage]:
        first_is_system = messages[0]["role"] == "system"
        rendered: list[RenderedMessage] = []
        if tools and not first_is_system:
            rendered.append(self._plain_turn("system", _tools_text(tools), None))
        i_last_query = _last_query(messages)
        for i_message, message in enumerate(messages):
            role = message["role"]
            if role == "assistant":
                rendered.append(self._assistant_turn(messages, i_message, i_last_query))
            elif role == "tool":
                rendered.append(self._tool_turn(messages, i_message))
            else:
                text = get_text(message)
                if i_message == 0 and first_is_system and tools:
                    text = f"{text}\n\n{_tools_text(tools)}"
                rendered.append(self._plain_turn(role, text, i_message))
        return rendered

    def _plain_turn(self, role: str, content: str, i_message: int | None) -> RenderedMessage:
        """Role and content are encoded in one piece, as officially; a token that holds both counts as content."""
        tokens = self.encoder.encode(f"{role}\n{content}")
        num_header = _num_common(tokens, self.encoder.encode(f"{role}\n"))
        return RenderedMessage(
            header=[self._start_id, *tokens[:num_header]],
            output=[*tokens[num_header:], self._end_id],
            trailer=self._line_break,
            i_message=i_message,
        )

    def _tool_turn(self, messages: Sequence[Message], i_message: int) -> RenderedMessage:
        """Tool results in a row share one user turn: the first opens it, the last ends it."""
        is_first = i_message == 0 or messages[i_message - 1]["role"] != "tool"
        is_last = i_message == len(messages) - 1 or messages[i_message + 1]["role"] != "tool"
        opening = "user\n" if is_first else "\n"
        tokens = self.encoder.encode(f"{opening}<tool_response>\n{get_text(messages[i_message])}\n</tool_response>")
        num_header = _num_common(tokens, self.encoder.encode(opening))
        return RenderedMessage(
            header=[self._start_id] * is_first + tokens[:num_header],
            output=tokens[num_header:] + [self._end_id] * is_last,
            trailer=self._line_break * is_last,
            i_message=i_message,
        )

    def _assistant_turn(self, messages: Sequence[Message], i_message: int, i_last_query: int) -> RenderedMessage:
        message = messages[i_message]
        is_last = i_message == len(messages) - 1
        if self.thinking is Thinking.ABSENT:
            thinking, content = "", get_text(message)
        else:
            thinking, content = _split_thinking(message)
        calls_text = _tool_calls_text(get_tool_calls(message), has_text_before=bool(content))
        opens_empty_block = self.thinking is Thinking.DISABLED and is_last
        if self.thinking is Thinking.ENABLED and i_message > i_last_query and (is_last or thinking):
            stripped = thinking.strip("\n")
            content = f"<think>\n{stripped}\n</think>\n\n" + content.lstrip("\n")
        elif opens_empty_block:
            content = content.lstrip("\n")
        return RenderedMessage(
            header=self._assistant_header_with_block if opens_empty_block else self._assistant_header,
            output=[*self.encoder.encode(content + calls_text), self._end_id],
            trailer=self._line_break,
            i_message=i_message,
        )

    # --- going on after a reply ---

    def end_of_turn(self, reply_tokens: Sequence[int]) -> list[int] | None:
        """A reply that ended otherwise, with the end of text say, gets the end of turn behind it."""
        return [] if list(reply_tokens[-1:]) == [self._end_id] else [self._end_id]

    def rewrites_reply(self, messages: Sequence[Message], i_reply: int) -> bool:
        """A new question takes the reasoning out of the replies before it."""
        return self.thinking is Thinking.ENABLED and _last_query(messages) > i_reply

    # --- tokens to a message ---

    def get_stop_sequences(self) -> StopCondition:
        return [self._end_id] if self._end_of_text_id is None else [self._end_id, self._end_of_text_id]

    def parse_response(self, tokens: list[int]) -> tuple[Message, ParseStatus]:
        ends = (self._end_id, self._end_of_text_id)
        i_end = next((i for i, token in enumerate(tokens) if token in ends), None)
        body = tokens if i_end is None else tokens[:i_end]
        text = self.encoder.decode(body)
        raw = Message(role="assistant", content=text)
        if i_end is None:
            return (raw if self.thinking is Thinking.ABSENT else _parse_cut(text)), ParseStatus.CUT
        has_more = i_end != len(tokens) - 1
        if has_more or any(token in self.encoder.control_ids for token in body):
            raw["content"] = self.encoder.decode(tokens if has_more else body)
            return raw, ParseStatus.MALFORMED
        try:
            message = _parse_reply(text, has_thinking=self.thinking is not Thinking.ABSENT)
        except (ValueError, RecursionError):
            return raw, ParseStatus.MALFORMED
        return message, ParseStatus.COMPLETE if tokens[i_end] == self._end_id else ParseStatus.END_OF_TEXT


def _num_common(tokens: list[int], header: list[int]) -> int:
    """How many leading tokens are those of the header."""
    num_common = 0
    while num_common < min(len(tokens), len(header)) and tokens[num_common] == header[num_common]:
        num_common += 1
    return num_common


def _last_query(messages: Sequence[Message]) -> int:
    """Position of the last real question: a user message that is not a tool result written out by hand."""
    for i_message in reversed(range(len(messages))):
        text = get_text(messages[i_message])
        is_tool_result = text.startswith("<tool_response>") and text.endswith("</tool_response>")
        if messages[i_message]["role"] == "user" and not is_tool_result:
            return i_message
    return len(messages) - 1


def _split_thinking(message: Message) -> tuple[str, str]:
    """(reasoning, content), whether the reasoning was kept apart or is part of the content."""
    thinking, content = get_thinking(message), get_text(message)
    if thinking is not None:
        return thinking, content
    if "</think>" not in content:
        return "", content
    thinking = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
    return thinking, content.split("</think>")[-1].lstrip("\n")


def _tools_text(tools: Sequence[ToolSpec]) -> str:
    return _TOOLS_BEFORE + "".join(f"\n{json.dumps(tool, ensure_ascii=False)}" for tool in tools) + _TOOLS_AFTER


def _tool_calls_text(calls: Sequence[FunctionCall], *, has_text_before: bool) -> str:
    blocks = []
    for call in calls:
        arguments = call["arguments"]
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        blocks.append(f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {written}}}\n</tool_call>')
    return ("\n" if blocks and has_text_before else "") + "\n".join(blocks)


def _split_reply(text: str) -> tuple[str | None, str, bool]:
    """(reasoning or None, content, whether the reasoning is closed); raises ValueError where text comes before it."""
    before_close, close_tag, after_close = text.partition("</think>")
    before_open, open_tag, thinking = before_close.partition("<think>")
    if not open_tag and not close_tag:
        return None, text, True
    if not open_tag:
        return before_close.strip("\n"), after_close.lstrip("\n"), True
    if before_open.strip():
        raise ValueError("text before the reasoning")
    return thinking.strip("\n"), after_close.lstrip("\n"), bool(close_tag)


def _parse_cut(text: str) -> Message:
    """What there is of a reply that was cut; inside the reasoning there is no content yet."""
    try:
        thinking, content, _ = _split_reply(text)
    except ValueError:
        return Message(role="assistant", content=text)
    message = Message(role="assistant", content=content)
    if thinking is not None:
        message["thinking"] = thinking
    return message


def _parse_reply(text: str, *, has_thinking: bool) -> Message:
    """The message in the text of an ended reply; ValueError where reasoning or a tool call breaks the format."""
    thinking, content, is_closed = _split_reply(text) if has_thinking else (None, text, True)
    if not is_closed:
        raise ValueError("the reasoning is not closed")
    before, tag, after = content.partition("<tool_call>")
    message = Message(role="assistant", content=content)
    if tag:
        message["content"] = before.removesuffix("\n")
        message["tool_calls"] = _parse_tool_calls(tag + after)
    if thinking:
        message["thinking"] = thinking
    return message


def _parse_tool_calls(text: str) -> list[ToolCall]:
    """Calls in '<tool_call>{...}</tool_call>' blocks; ValueError unless each can be read and nothing else follows."""
    calls: list[ToolCall] = []
    decoder = json.JSONDecoder()
    while text.startswith("<tool_call>"):
        # raw_decode ends where the object does, so that arguments may hold the tags themselves.
        written = text.removeprefix("<tool_call>").lstrip()
        call, end = decoder.raw_decode(written)
        rest = written[end:].lstrip()
        if not rest.startswith("</tool_call>"):
            raise ValueError("the tool call is not closed")
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise ValueError("the tool call has no name")
        if not isinstance(call.get("arguments"), dict):
            raise ValueError("the tool call's arguments are not an object")
        # JSON can write half a surrogate pair, which is no character: a ValueError here, not where it is shown again.
        json.dumps(call, ensure_ascii=False).encode()
        calls.append({"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}})
        text = rest.removeprefix("</tool_call>").lstrip()
    if text:
        raise ValueError("text after the tool calls")
    return calls
