"""What a renderer is: messages to tokens for sampling and for training, and sampled tokens back to a message.

A renderer writes each message as header, output and trailer. The output is what a policy would sample if the message
were its own: the content and the token that ends the turn. `Renderer` puts the parts together, so that prompt and
supervised example of one conversation share their tokens, and a subclass only says how one message looks.

Axes: _T token of a conversation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from mint import types
from mint.errors import InvalidRequest, nearest_name
from renderers.content_encoding import ContentEncoder, Tokenizer
from renderers.loss_weights import TrainOnWhat, messages_with_loss
from renderers.messages import Message, ToolSpec, validate_messages, validate_tools

StopCondition = list[int] | list[str]


class ParseStatus(StrEnum):
    """How a sampled reply ended. True for a reply that the policy itself brought to an end and that reads well."""

    # With the renderer's end of turn.
    COMPLETE = "complete"
    # With the model's end of text instead; not a failure.
    END_OF_TEXT = "end_of_text"
    # Without an end: sampling stopped at max_tokens.
    CUT = "cut"
    # It ended, and breaks the format; the message's content is the raw text.
    MALFORMED = "malformed"

    def __bool__(self) -> bool:
        return self in (ParseStatus.COMPLETE, ParseStatus.END_OF_TEXT)


@dataclass(frozen=True)
class RenderedMessage:
    """Tokens of one message. i_message is its position, None for a turn that no message asked for."""

    header: list[int]
    output: list[int]
    trailer: list[int] = field(default_factory=list)
    i_message: int | None = None

    @property
    def tokens(self) -> list[int]:
        return self.header + self.output + self.trailer


class Renderer(ABC):
    """Turns messages into tokens and back, for one chat format and one tokenizer. Stateless and picklable.

    has_extension_property says whether a prompt that is written from messages begins with the prompt of the turn before
    and the reply to it; it does not where, say, reasoning is left out of history. Even where it does, a sampled reply
    keeps its tokens only if the tokenizer would have cut its text the same way. `build_continuation` keeps them always.
    """

    has_extension_property: bool = False
    # Added tokens that content may write; every other one is taken apart (see content_encoding).
    tokens_allowed_in_content: Collection[str] = ()

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self.encoder = ContentEncoder(tokenizer, self.tokens_allowed_in_content)

    @abstractmethod
    def render_messages(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None, *, is_prompt: bool
    ) -> list[RenderedMessage]:
        """Write each message, in order. is_prompt: an assistant header will follow, as a reply is to be sampled."""

    @abstractmethod
    def generation_header(self) -> list[int]:
        """Tokens that open the assistant's turn, up to where the policy begins."""

    @abstractmethod
    def get_stop_sequences(self) -> StopCondition:
        """What ends a reply, for SamplingParams.stop: token ids, or strings."""

    @abstractmethod
    def parse_response(self, tokens: list[int]) -> tuple[Message, ParseStatus]:
        """The assistant message in sampled tokens, and how it ended. Never raises on what a policy may sample."""

    def build_generation_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None = None, prefill: str | None = None
    ) -> types.ModelInput:
        """The tokens to sample the next reply from; `prefill` is text the reply has to begin with."""
        validate_messages(messages)
        validate_tools(tools)
        rendered = self.render_messages(messages, tools, is_prompt=True)
        tokens = [token for message in rendered for token in message.tokens] + self.generation_header()
        return types.ModelInput.from_ints(tokens + self.encoder.encode(prefill or ""))

    def build_continuation(
        self,
        reply_tokens: Sequence[int],
        messages: Sequence[Message],
        num_new: int,
        tools: Sequence[ToolSpec] | None = None,
    ) -> list[int] | None:
        """What follows a sampled reply in the next prompt, which is the last prompt, the reply as sampled, and this.

        messages: the whole conversation; the last `num_new` came after the reply. None where the reply's turn cannot be
        ended, or where the format writes the reply in another way now: the prompt then has to be written anew.
        """
        validate_messages(messages)
        i_reply = len(messages) - num_new - 1
        ending = self.end_of_turn(reply_tokens)
        if ending is None or self.rewrites_reply(messages, i_reply):
            return None
        parts = self.render_messages(messages, tools, is_prompt=True)
        tokens = list(ending)
        for part in parts:
            if part.i_message == i_reply:
                tokens += part.trailer
            elif part.i_message is not None and part.i_message > i_reply:
                tokens += part.tokens
        return tokens + self.generation_header()

    def end_of_turn(self, reply_tokens: Sequence[int]) -> list[int] | None:
        """The tokens that a sampled reply lacks to end its turn: none after a regular stop. None: it cannot be ended.

        By default only the first of `get_stop_sequences()` ends a turn.
        """
        stop = self.get_stop_sequences()[0]
        if isinstance(stop, str):
            return [] if self.encoder.decode(list(reply_tokens)).endswith(stop) else None
        return [] if list(reply_tokens[-1:]) == [stop] else None

    def rewrites_reply(self, messages: Sequence[Message], i_reply: int) -> bool:
        """Whether the format now leaves out something of the reply at `i_reply`; by default it never does."""
        return False

    def build_supervised_example(
        self,
        messages: Sequence[Message],
        train_on_what: TrainOnWhat | str = TrainOnWhat.LAST_ASSISTANT_MESSAGE,
        tools: Sequence[ToolSpec] | None = None,
    ) -> tuple[types.ModelInput, np.ndarray]:
        """The whole conversation and weights_T, float32: 1 where the token itself (not the one after it) carries loss.

        The tokens begin with `build_generation_prompt(messages[:-1])` when the last message is the reply to sample.
        """
        mode = _train_on_what(train_on_what)
        validate_messages(messages)
        validate_tools(tools)
        carries_loss = messages_with_loss(messages, mode)
        tokens_T: list[int] = []
        weights_T: list[float] = []
        for part in self.render_messages(messages, tools, is_prompt=False):
            tokens_T += part.tokens
            if mode is TrainOnWhat.ALL_TOKENS:
                weights_T += [1.0] * len(part.tokens)
                continue
            output_weight = float(part.i_message is not None and carries_loss[part.i_message])
            weights_T += [0.0] * len(part.header) + [output_weight] * len(part.output) + [0.0] * len(part.trailer)
        return types.ModelInput.from_ints(tokens_T), np.asarray(weights_T, dtype=np.float32)


def _train_on_what(value: TrainOnWhat | str) -> TrainOnWhat:
    try:
        return TrainOnWhat(value)
    except ValueError:
        known = [str(mode) for mode in TrainOnWhat]
        raise InvalidRequest(
            f"train_on_what={value!r}: must be one of {', '.join(known)}.{nearest_name(str(value), known)}"
        ) from None
