"""No format at all: what the user wrote, and the model goes on from there until its end of text.

For base models and bare tasks, such as "3+4=". Contents stand one after another with nothing between them, so whoever
writes the messages also writes the spaces. Roles leave no trace, and tools have no form here.
"""

from __future__ import annotations

from collections.abc import Sequence

from mint.errors import InvalidRequest
from renderers.content_encoding import Tokenizer
from renderers.messages import Message, ToolSpec, get_text
from renderers.renderer import ParseStatus, RenderedMessage, Renderer, StopCondition


class CompletionRenderer(Renderer):
    """Contents alone. A reply ends with the tokenizer's end of text, which is part of what is trained on."""

    has_extension_property = True

    def __init__(self, tokenizer: Tokenizer, name: str = "completion") -> None:
        super().__init__(tokenizer, name)
        end_of_text = self.encoder.control_id("<|endoftext|>")
        end = getattr(tokenizer, "eos_token_id", None) if end_of_text is None else end_of_text
        if end is None:
            raise InvalidRequest("renderer 'completion' needs an end of text: the tokenizer has none")
        self._end_id: int = end

    def generation_header(self) -> list[int]:
        return []

    def render_messages(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None, *, is_prompt: bool
    ) -> list[RenderedMessage]:
        if tools or any(message["role"] == "tool" or message.get("tool_calls") for message in messages):
            raise InvalidRequest("renderer 'completion' has no form for tools: use a chat renderer such as 'qwen3'")
        return [
            RenderedMessage(
                header=[],
                output=[
                    *self.encoder.encode(get_text(message)),
                    *([self._end_id] if message["role"] == "assistant" else []),
                ],
                i_message=i_message,
            )
            for i_message, message in enumerate(messages)
        ]

    def get_stop_sequences(self) -> StopCondition:
        return [self._end_id]

    def parse_response(self, tokens: list[int]) -> tuple[Message, ParseStatus]:
        """The reply is what comes before the end of text; more text after one is malformed."""
        i_end = tokens.index(self._end_id) if self._end_id in tokens else len(tokens)
        if i_end < len(tokens) - 1:
            return Message(role="assistant", content=self.encoder.decode(tokens)), ParseStatus.MALFORMED
        message = Message(role="assistant", content=self.encoder.decode(tokens[:i_end]))
        return message, ParseStatus.COMPLETE if i_end < len(tokens) else ParseStatus.CUT
