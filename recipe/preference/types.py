"""Preference pairs, and the builders that give a training stage its pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import chz

from mint.errors import InvalidRequest
from renderers import Message, get_text
from renderers.messages import get_thinking, get_tool_calls, validate_messages


@dataclass(frozen=True)
class PreferencePair:
    """Two replies to the same conversation, the first of which is preferred.

    prompt: the conversation up to the reply, one or more messages, the last one not the assistant's.
    chosen, rejected: assistant messages that differ in what they say.
    source: where the pair comes from, for metrics and messages.

    Construction raises InvalidRequest where one of these rules is broken.
    """

    prompt: list[Message]
    chosen: Message
    rejected: Message
    source: str | None = None

    def __post_init__(self) -> None:
        validate_messages(self.prompt)
        if self.prompt[-1]["role"] == "assistant":
            raise InvalidRequest(
                "the prompt ends with an assistant message: it must end before the reply; "
                "move the last message into chosen and rejected"
            )
        for name, reply in (("chosen", self.chosen), ("rejected", self.rejected)):
            validate_messages([reply])
            if reply["role"] != "assistant":
                raise InvalidRequest(f"{name} has role {reply['role']!r}: it must be an assistant message")
        if _said(self.chosen) == _said(self.rejected):
            raise InvalidRequest(
                f"chosen and rejected are equal ({_excerpt(self.chosen)}): a pair needs two different replies; "
                "remove it"
            )

    @property
    def chosen_conversation(self) -> list[Message]:
        """The prompt and the preferred reply."""
        return [*self.prompt, self.chosen]

    @property
    def rejected_conversation(self) -> list[Message]:
        """The prompt and the other reply."""
        return [*self.prompt, self.rejected]

    def swapped(self) -> PreferencePair:
        """The same pair with the opposite preference."""
        return PreferencePair(self.prompt, self.rejected, self.chosen, self.source)


@dataclass(frozen=True)
class PreferenceSplit:
    """The pairs to train on and those kept for testing, which share no prompt."""

    train: Sequence[PreferencePair]
    held_out: Sequence[PreferencePair]
    # Pairs left out, by reason, where the builder was told to leave such pairs out.
    num_dropped: int = 0


@chz.chz(typecheck=True)
class PreferenceDatasetBuilder(ABC):
    """Settings from which the pairs are made; subclasses say where they come from."""

    @abstractmethod
    def __call__(self) -> PreferenceSplit:
        """The pairs, validated and split. Raises InvalidRequest where there is nothing to train on."""


def _said(message: Message) -> tuple[str, str | None, list[object]]:
    return get_text(message).strip(), get_thinking(message), [dict(call) for call in get_tool_calls(message)]


def _excerpt(message: Message, num_characters: int = 40) -> str:
    text = get_text(message).strip()
    return repr(text if len(text) <= num_characters else text[:num_characters] + "…")
