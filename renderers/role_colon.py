"""Plain text turns, for base models that know no chat format.

    System: ...\\n\\nUser: ...\\n\\nAssistant: ...\\n\\nUser: ...

A reply ends where the next user turn would begin, so that is the stop string, "\\n\\nUser:", and it is part of the
reply that is trained on: the policy has to write it to be heard. The header of the next user turn is then written.

Turns are told apart by text alone. A role marker after an empty line inside content ("\\n\\nUser:", "\\n\\nAssistant:",
"\\n\\nSystem:") gets a space before it, so that content cannot pass for a turn. Tools have no form here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mint.errors import InvalidRequest
from renderers.content_encoding import Tokenizer
from renderers.messages import Message, ToolSpec, get_text
from renderers.renderer import ParseStatus, RenderedMessage, Renderer, StopCondition

_STOP = "\n\nUser:"
_MARKER = re.compile(r"\n\n(?=(?:System|User|Assistant):)")


class RoleColonRenderer(Renderer):
    """Roles written out before each message. Prompts extend each other as long as users and assistants take turns."""

    has_extension_property = True

    def __init__(self, tokenizer: Tokenizer, name: str = "role_colon") -> None:
        super().__init__(tokenizer, name)
        end_of_text = self.encoder.control_id("<|endoftext|>")
        self._end_ids = {
            token for token in (getattr(tokenizer, "eos_token_id", None), end_of_text) if token is not None
        }

    def generation_header(self) -> list[int]:
        return self.encoder.encode("Assistant:")

    def render_messages(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None, *, is_prompt: bool
    ) -> list[RenderedMessage]:
        if tools or any(message["role"] == "tool" or message.get("tool_calls") for message in messages):
            raise InvalidRequest("renderer 'role_colon' has no form for tools: use a chat renderer such as 'qwen3'")
        return [self._turn(messages, i_message, is_prompt) for i_message in range(len(messages))]

    def _turn(self, messages: Sequence[Message], i_message: int, is_prompt: bool) -> RenderedMessage:
        role = messages[i_message]["role"]
        is_last = i_message == len(messages) - 1
        next_role = messages[i_message + 1]["role"] if not is_last else ("assistant" if is_prompt else "user")
        content = _MARKER.sub("\n\n ", get_text(messages[i_message]))
        if role == "assistant":
            end = _STOP if next_role == "user" else "\n\n"
            return RenderedMessage(
                header=self.generation_header(), output=self.encoder.encode(f" {content}{end}"), i_message=i_message
            )
        header_is_written = role == "user" and i_message > 0 and messages[i_message - 1]["role"] == "assistant"
        header = [] if header_is_written else self.encoder.encode(f"{role.capitalize()}:")
        return RenderedMessage(header=header, output=self.encoder.encode(f" {content}\n\n"), i_message=i_message)

    def get_stop_sequences(self) -> StopCondition:
        return [_STOP]

    def parse_response(self, tokens: list[int]) -> tuple[Message, ParseStatus]:
        """The reply is what comes before the stop string, or before the first end of text if that comes first."""
        i_end = next((i for i, token in enumerate(tokens) if token in self._end_ids), len(tokens))
        text = self.encoder.decode(tokens[:i_end])
        content, stop, rest = text.partition(_STOP)
        if rest.strip():
            return Message(role="assistant", content=text), ParseStatus.MALFORMED
        message = Message(role="assistant", content=content.removeprefix(" "))
        if stop:
            return message, ParseStatus.COMPLETE
        return message, ParseStatus.END_OF_TEXT if i_end < len(tokens) else ParseStatus.CUT
