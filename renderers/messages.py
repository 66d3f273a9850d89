"""Chat messages as plain dicts, the tools they may call, and the rules a conversation must obey.

The keys are those of the usual chat format, so a conversation loaded from JSON is a valid one as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict, cast

from mint.errors import InvalidRequest, nearest_name

ROLES = ("system", "user", "assistant", "tool")


class FunctionCall(TypedDict):
    """Name and arguments of a call; arguments are an object, or a string of JSON that is passed on unchanged."""

    name: str
    arguments: dict[str, Any] | str


class ToolCall(TypedDict, total=False):
    """One call that an assistant makes: {"type": "function", "function": {"name": ..., "arguments": {...}}}."""

    type: str
    id: str
    function: Required[FunctionCall]


class ToolSpec(TypedDict, total=False):
    """A tool offered to the model: {"type": "function", "function": {"name", "description", "parameters"}}."""

    type: str
    function: Required[dict[str, Any]]


class Message(TypedDict, total=False):
    """One turn of a conversation.

    content: the text. Assistants may keep their reasoning in it, as <think>...</think>, or apart, in `thinking`.
    thinking: the reasoning alone, without tags (`reasoning_content` is read as the same).
    tool_calls: what the assistant asks to be called; tool_call_id, name: which call a tool message answers.
    trainable: whether this message carries loss; only, and then always, with TrainOnWhat.CUSTOMIZED.
    """

    role: Required[str]
    content: Required[str]
    thinking: str
    reasoning_content: str
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str
    trainable: bool


_TEXT_KEYS = ("thinking", "reasoning_content", "tool_call_id", "name")
_KEYS_OF_ASSISTANT = ("thinking", "reasoning_content", "tool_calls")


def get_text(message: Message) -> str:
    """The message's content; an assistant that only calls tools may have None, which reads as ''."""
    return message.get("content") or ""


def get_thinking(message: Message) -> str | None:
    """The reasoning kept apart from the content, or None where there is none."""
    thinking = message.get("thinking")
    return thinking if thinking is not None else message.get("reasoning_content")


def get_tool_calls(message: Message) -> list[FunctionCall]:
    """The calls of an assistant message, in order, without the wrapping `type` and `id`."""
    return [_function_of(call) for call in message.get("tool_calls") or []]


def _function_of(call: Mapping[str, Any]) -> FunctionCall:
    return cast(FunctionCall, call.get("function") or call)


def validate_messages(messages: Sequence[Message]) -> None:
    """Raise InvalidRequest, naming message and rule, unless `messages` is a conversation a renderer can write."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidRequest(f"messages must be a list of dicts with role and content, got {type(messages).__name__}")
    if not messages:
        raise InvalidRequest("messages is empty: a conversation needs at least one message")
    for i_message, message in enumerate(messages):
        _validate_message(message, f"messages[{i_message}]")


def _validate_message(message: Any, where: str) -> None:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be a dict with role and content, got {type(message).__name__}")
    known_keys = Message.__annotations__
    for key in message:
        if key not in known_keys:
            raise InvalidRequest(
                f"{where} has the unknown key {key!r}: known keys are {', '.join(known_keys)}."
                f"{nearest_name(str(key), known_keys)}"
            )
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where} has role {role!r}: must be one of {', '.join(ROLES)}")
    for key in _KEYS_OF_ASSISTANT:
        if message.get(key) is not None and role != "assistant":
            raise InvalidRequest(f"{where} has {key!r} and role {role!r}: only an assistant message may have it")
    content = message.get("content")
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise InvalidRequest(f"{where}['content'] must be a string, got {type(content).__name__}")
    for key in _TEXT_KEYS:
        if not isinstance(message.get(key), str | None):
            raise InvalidRequest(f"{where}[{key!r}] must be a string, got {type(message[key]).__name__}")
    if "trainable" in message and not isinstance(message["trainable"], bool):
        raise InvalidRequest(f"{where}['trainable'] must be True or False, got {message['trainable']!r}")
    _validate_tool_calls(message.get("tool_calls"), where)


def _validate_tool_calls(tool_calls: Any, where: str) -> None:
    if tool_calls is None:
        return
    if isinstance(tool_calls, str | Mapping) or not isinstance(tool_calls, Sequence):
        raise InvalidRequest(f"{where}['tool_calls'] must be a list, got {type(tool_calls).__name__}")
    for i_call, call in enumerate(tool_calls):
        function = _function_of(call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequest(
                f"{where}['tool_calls'][{i_call}] must be "
                f'{{"type": "function", "function": {{"name": ..., "arguments": {{...}}}}}}, got {call!r}'
            )
        if not isinstance(function.get("arguments"), dict | str):
            raise InvalidRequest(
                f"{where}['tool_calls'][{i_call}] has arguments {function.get('arguments')!r}: "
                "must be a dict, or a string of JSON"
            )


def validate_tools(tools: Sequence[ToolSpec] | None) -> None:
    """Raise InvalidRequest unless every tool names itself, at the top or under 'function'."""
    for i_tool, tool in enumerate(tools or []):
        named = isinstance(tool, Mapping) and (tool.get("name") or (tool.get("function") or {}).get("name"))
        if not named:
            raise InvalidRequest(
                f'tools[{i_tool}] must be {{"type": "function", "function": {{"name": ..., "parameters": {{...}}}}}}, '
                f"got {tool!r}"
            )
