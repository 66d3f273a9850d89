"""Questions with a right answer: one turn, rewarded for being right and, a little, for its form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Sequence

from envs.message_env import MessageEnv, MessageStepResult
from envs.types import Metrics
from renderers import Message, get_text


class ProblemEnv(MessageEnv):
    """One question. The reward is 1 for a right answer, less format_coef for a reply in the wrong form."""

    # Cost of the wrong form; small beside the 1 of a right answer.
    format_coef: float = 0.1

    @abstractmethod
    def get_question(self) -> str:
        """What the user asks."""

    max_reward = 1.0

    @abstractmethod
    def check_answer(self, reply: str) -> bool | Awaitable[bool]:
        """Whether the reply gives the right answer, whatever its form. May be `async def`, for graders that wait."""

    @abstractmethod
    def check_format(self, reply: str) -> bool:
        """Whether the reply has the form asked for, whatever its answer."""

    @abstractmethod
    def get_reference_answer(self) -> str:
        """A reply that is right and in form; its reward is 1."""

    async def initial_observation(self) -> list[Message]:
        """See MessageEnv."""
        return [{"role": "user", "content": self.get_question()}]

    async def step(self, message: Message) -> MessageStepResult:
        """See MessageEnv."""
        reply = get_text(message)
        verdict = self.check_answer(reply)
        is_correct = float(verdict if isinstance(verdict, bool) else await verdict)
        is_in_form = float(self.check_format(reply))
        return MessageStepResult(
            reward=is_correct + self.format_coef * (is_in_form - 1.0),
            episode_done=True,
            next_messages=[*await self.initial_observation(), message],
            metrics={"correct": is_correct, "format": is_in_form},
            logs={"reference_answer": self.get_reference_answer()},
        )

    def gold_replies(self) -> Sequence[Message]:
        """See MessageEnv."""
        return [{"role": "assistant", "content": self.get_reference_answer()}]

    def unread_reply_metrics(self) -> Metrics:
        """See MessageEnv."""
        return {"correct": 0.0, "format": 0.0}
