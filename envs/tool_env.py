"""An episode with tools: the model calls them, reads what they answer, and calls again or gives its last word.

A reply without a call is the answer and ends the episode. All calls of one reply run at once; the results come back as
tool messages, in the order of the calls. What goes wrong with a call is told to the model, which may mend it, and is
counted. Every episode reports, beside what the task reports:

- tool/calls: calls asked for; and of these tool/unknown, tool/bad_arguments, tool/failed, tool/timed_out and
  tool/refused (beyond max_calls, and not run).
- tool/malformed: replies that break the format, so that nothing could be called.
- out_of_turns: 1.0 where the last turn brought no answer.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from envs.message_env import MessageEnv, MessageStepResult
from envs.tools import Tool, ToolBox, ToolResult, ToolStatus
from envs.types import Metrics
from mint.errors import InvalidRequest
from renderers import FunctionCall, Message, get_tool_calls

_MALFORMED = (
    "Error: the reply breaks the format, so no tool was called. Write every call as one JSON object with the keys name "
    "and arguments between the tags shown above, close each tag, and write nothing after the last call."
)


@dataclass(frozen=True)
class ToolLimits:
    """What an episode may use. The tokens are limited by the adapter (max_trajectory_tokens).

    max_turns: replies of the model. max_calls: calls in the whole episode; those beyond are refused.
    max_result_characters: of one result; what is longer is cut, and says so.
    """

    max_turns: int = 8
    max_calls: int = 16
    max_result_characters: int = 4000

    def __post_init__(self) -> None:
        for name, least in (("max_turns", 1), ("max_calls", 0), ("max_result_characters", 1)):
            if getattr(self, name) < least:
                raise InvalidRequest(f"{name}={getattr(self, name)}: must be at least {least}")


class ToolEnv(MessageEnv):
    """A task with tools. Subclasses say how it begins and what an answer is worth."""

    def __init__(self, tools: Sequence[Tool], limits: ToolLimits | None = None) -> None:
        self._box = ToolBox(list(tools))
        self.tools = self._box.specs
        self.limits = limits or ToolLimits()
        self.conversation: list[Message] = []
        self._num_turns = 0
        self._counts: Counter[str] = Counter()
        self._answer_metrics: Metrics | None = None

    @abstractmethod
    def first_messages(self) -> list[Message]:
        """The conversation before the first reply."""

    @abstractmethod
    async def rate_answer(self, answer: Message) -> tuple[float, Metrics]:
        """Reward and metrics of the reply that ends the episode. `self.conversation` holds all that came before it."""

    def no_answer(self) -> tuple[float, Metrics]:
        """Reward and metrics of an episode that ends without an answer; the same metrics as those of an answer."""
        return 0.0, {}

    async def initial_observation(self) -> list[Message]:
        """See MessageEnv."""
        self.conversation = list(self.first_messages())
        return self.conversation

    async def step(self, message: Message) -> MessageStepResult:
        """See MessageEnv."""
        self._num_turns += 1
        calls = get_tool_calls(message)
        if not calls:
            reward, self._answer_metrics = await self.rate_answer(message)
            return self._result(reward, [message], is_done=True)
        results = await self._run(calls)
        return self._answered(message, [self._tool_message(result, call) for result, call in results])

    async def step_malformed(self, message: Message) -> MessageStepResult:
        """See MessageEnv: the model is told what a call has to look like."""
        self._num_turns += 1
        self._counts["malformed"] += 1
        return self._answered(message, [{"role": "tool", "content": _MALFORMED}])

    def _answered(self, message: Message, results: list[Message]) -> MessageStepResult:
        is_done = self._num_turns >= self.limits.max_turns
        reward = 0.0
        if is_done:
            self._counts["out_of_turns"] = 1
            reward, self._answer_metrics = self.no_answer()
        return self._result(reward, [message, *results], is_done)

    def _result(self, reward: float, new_messages: list[Message], is_done: bool) -> MessageStepResult:
        self.conversation = [*self.conversation, *new_messages]
        return MessageStepResult(reward=reward, episode_done=is_done, next_messages=self.conversation)

    async def _run(self, calls: list[FunctionCall]) -> list[tuple[ToolResult, FunctionCall]]:
        num_left = max(0, self.limits.max_calls - self._counts["calls"])
        self._counts["calls"] += len(calls)
        refused = ToolResult(
            f"Error: not run, as an episode has at most {self.limits.max_calls} calls; give your answer now",
            ToolStatus.REFUSED,
        )
        results = await asyncio.gather(*(self._box.call(call) for call in calls[:num_left]))
        results += [refused] * (len(calls) - len(results))
        self._counts.update(result.status for result in results)
        return list(zip(results, calls, strict=True))

    def _tool_message(self, result: ToolResult, call: FunctionCall) -> Message:
        # A tool may return what is no text (half a surrogate pair), which no tokenizer reads.
        limit, text = self.limits.max_result_characters, result.text.encode(errors="replace").decode()
        if len(text) > limit:
            text = f"{text[:limit]}\n[cut: the first {limit} of {len(text)} characters]"
        return {"role": "tool", "name": call["name"], "content": text}

    def episode_metrics(self) -> Metrics:
        """See MessageEnv. An episode that ended otherwise (cut off, no room left) has no answer."""
        answer_metrics = self.no_answer()[1] if self._answer_metrics is None else self._answer_metrics
        failures = [status for status in ToolStatus if status is not ToolStatus.OK]
        return {
            **{f"tool/{name}": float(self._counts[name]) for name in ("calls", *failures, "malformed")},
            "out_of_turns": float(self._counts["out_of_turns"]),
            **answer_metrics,
        }
