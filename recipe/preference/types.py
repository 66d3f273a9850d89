"""Preference pairs, and the builders that give a training stage its pairs."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import chz

from mint.errors import InvalidRequest
from renderers import Message, get_text
from renderers.messages import get_thinking, get_tool_calls, validate_messages


@dataclass(frozen=True)
class PreferencePair:
    """Two replies to the same conversation, the first of which is preferred.

    prompt: the conversation up to the reply, one or more messages, the last one not the assistant's.
    chosen, rejected: assistant messages that differ in what they say.
    source: which collection the pair comes from. origin: file and line, or whatever finds it again, for messages.
    strength: how much better the preferred reply is, finite and above 0; 1.0 where nobody said.
    is_tie: neither reply is better, and which of them is called chosen means nothing; the strength of a tie is 1.0.

    Construction raises InvalidRequest where one of these rules is broken.
    """

    prompt: list[Message]
    chosen: Message
    rejected: Message
    source: str | None = None
    origin: str | None = field(default=None, compare=False)
    strength: float = 1.0
    is_tie: bool = False

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
        if replies_are_equal(self.chosen, self.rejected):
            raise InvalidRequest(
                f"chosen and rejected are equal ({_excerpt(self.chosen)}): a pair needs two different replies; "
                "remove it"
            )
        if not math.isfinite(self.strength) or self.strength <= 0.0:
            raise InvalidRequest(
                f"strength={self.strength}: must be a finite number above 0; "
                "where neither reply is better, say is_tie=True instead"
            )
        if self.is_tie and self.strength != 1.0:
            raise InvalidRequest(f"strength={self.strength} with is_tie=True: a tie has no strength; leave it at 1.0")

    @property
    def chosen_conversation(self) -> list[Message]:
        """The prompt and the preferred reply."""
        return [*self.prompt, self.chosen]

    @property
    def rejected_conversation(self) -> list[Message]:
        """The prompt and the other reply."""
        return [*self.prompt, self.rejected]

    def swapped(self) -> PreferencePair:
        """The same pair with the opposite preference, as strong as it was; a tie stays a tie."""
        return replace(self, chosen=self.rejected, rejected=self.chosen)


@dataclass(frozen=True)
class PreferenceSplit:
    """The pairs to train on and those kept for testing. InvalidRequest for nothing to train on or a shared prompt."""

    train: Sequence[PreferencePair]
    held_out: Sequence[PreferencePair] = ()

    def __post_init__(self) -> None:
        if not self.train:
            raise InvalidRequest("no preference pairs: there is nothing to train on; give at least one pair")
        train_prompts = {prompt_key(pair.prompt) for pair in self.train}
        num_shared = len(train_prompts & {prompt_key(pair.prompt) for pair in self.held_out})
        if num_shared:
            raise InvalidRequest(
                f"{num_shared} prompts are both in the training and in the held-out pairs, so the test would measure "
                "memory: remove them from one side, or leave out the held-out pairs and let held_out_share split by "
                "prompt"
            )


def replies_are_equal(first: Message, second: Message) -> bool:
    """Whether two replies say the same, spaces at their ends aside; thinking and tool calls count."""
    return _said(first) == _said(second)


def prompt_key(prompt: Sequence[Message]) -> str:
    """Equal for equal conversations, whatever the order of the keys in a message."""
    return json.dumps([dict(message) for message in prompt], sort_keys=True, ensure_ascii=False)


@chz.chz(typecheck=True)
class PairExampleConfig:
    """How pairs are held out, rendered and batched."""

    # Pairs per optimizer step; the last batch of an epoch may be smaller.
    batch_size: int = 16
    # Longest reply in tokens, its prompt and the judge's question included; None: what fits the model's context.
    max_length: int | None = None
    # "error" refuses the data; "drop" leaves such pairs out, with a warning and the metric num_dropped.
    on_too_long: Literal["error", "drop"] = "error"
    # Share of the prompts, with all their pairs, kept for testing. Not looked at where held-out pairs are given.
    held_out_share: float = 0.1
    # Which prompts these are.
    split_seed: int = 0

    @chz.validate
    def _ranges(self) -> None:
        if self.batch_size < 1:
            raise InvalidRequest(f"batch_size={self.batch_size}: must be at least 1")
        if self.max_length is not None and self.max_length < 2:
            raise InvalidRequest(f"max_length={self.max_length}: must be at least 2, or None")
        if not 0.0 <= self.held_out_share < 1.0:
            raise InvalidRequest(f"held_out_share={self.held_out_share}: must be at least 0 and below 1")


@chz.chz(typecheck=True)
class PreferenceDatasetBuilder(ABC):
    """Settings from which the pairs are made; subclasses say where they come from."""

    examples: PairExampleConfig = chz.field(default_factory=PairExampleConfig)

    @abstractmethod
    def __call__(self) -> PreferenceSplit:
        """The pairs, validated and split. Raises InvalidRequest where there is nothing to train on."""


def _said(message: Message) -> tuple[str, str | None, list[object]]:
    return get_text(message).strip(), get_thinking(message), [dict(call) for call in get_tool_calls(message)]


def _excerpt(message: Message, num_characters: int = 40) -> str:
    text = get_text(message).strip()
    return repr(text if len(text) <= num_characters else text[:num_characters] + "…")
