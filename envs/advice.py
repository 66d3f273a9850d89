"""The demo task, one-sentence advice on everyday topics, as messages: prompts, conversations, pairs, gold score."""

from __future__ import annotations

from typing import TypedDict

import chz

from envs.rlhf import GoldScore, RLHFDatasetBuilder
from mint.builtin import advice
from mint.builtin.topics import Split
from mint.errors import InvalidRequest
from renderers import Message, get_text

__all__ = [
    "AdviceDatasetBuilder",
    "AdvicePair",
    "Split",
    "conversations",
    "gold",
    "gold_of_conversation",
    "pairs",
    "prompts",
]


class AdvicePair(TypedDict):
    """Two answers to one prompt; the gold score of `chosen` is higher by at least 0.3."""

    prompt: list[Message]
    chosen: Message
    rejected: Message


def prompts(split: Split) -> list[list[Message]]:
    """One-message conversations asking for advice; splits share no topic. A prefix covers the topics evenly."""
    return [[Message(role="user", content=text)] for text in advice.prompts(split)]


def conversations(n: int, seed: int, split: Split = "train") -> list[list[Message]]:
    """`n` conversations for supervised training: middling answers in the house style, the same for the same seed."""
    return [
        [Message(role=message["role"], content=message["content"]) for message in conversation]
        for conversation in advice.sft_conversations(n, seed, split)
    ]


def pairs(n: int, seed: int, split: Split = "train") -> list[AdvicePair]:
    """`n` preference pairs, the same for the same seed; the longer answer is the chosen one in half of them."""
    return [
        AdvicePair(
            prompt=[Message(role="user", content=pair["prompt"])],
            chosen=Message(role="assistant", content=pair["chosen"]),
            rejected=Message(role="assistant", content=pair["rejected"]),
        )
        for pair in advice.preference_pairs(n, seed, split)
    ]


def gold(prompt: str | list[Message], reply: str | Message) -> float:
    """Gold score in [0, 1] of an assistant reply; the topic is the one named by the prompt's last user message.

    Raises:
        InvalidRequest: if the prompt has no user message or names no topic of the task.
    """
    return advice.gold_score(_question(prompt), reply if isinstance(reply, str) else get_text(reply))


def gold_of_conversation(conversation: list[Message]) -> float:
    """Gold score of the last message, which must be the assistant's, given those before it."""
    if not conversation or conversation[-1]["role"] != "assistant":
        raise InvalidRequest("a conversation to score must end with an assistant message; append the reply first")
    return gold(conversation[:-1], conversation[-1])


@chz.chz(typecheck=True)
class AdviceDatasetBuilder(RLHFDatasetBuilder):
    """The task's own prompts; the held-out ones are about other topics."""

    # Held-out prompts to evaluate on; None: all.
    num_test: int | None = None

    @chz.validate
    def _ranges(self) -> None:
        if self.num_test is not None and self.num_test < 0:
            raise InvalidRequest(f"num_test={self.num_test}: must not be negative")

    def load_prompts(self) -> tuple[list[list[Message]], list[list[Message]]]:
        """See RLHFDatasetBuilder."""
        return prompts("rl_train"), prompts("rl_heldout")[: self.num_test]

    def gold_score(self) -> GoldScore | None:
        """See RLHFDatasetBuilder."""
        return gold_of_conversation


def _question(prompt: str | list[Message]) -> str:
    if isinstance(prompt, str):
        return prompt
    users = [get_text(message) for message in prompt if message["role"] == "user"]
    if not users:
        raise InvalidRequest(f"an advice prompt needs a user message; got roles {[m['role'] for m in prompt]}")
    return users[-1]
