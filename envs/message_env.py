"""Environments that speak in messages, and the adapter that lets a policy of tokens play them.

The history of an episode is token-exact: the next prompt is the last prompt, the reply as it was sampled and what came
after it; no reply is decoded and encoded again. It is written anew where the message env edits the conversation, or
where the format itself rewrites it (see Renderer.build_continuation).

Of every episode the last transition carries three metrics, each 0.0 or 1.0:
- parse_error: a reply ended but broke the renderer's format.
- cut_off: the reply was cut by max_tokens.
- context_overflow: there was no room left for another reply.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real

import numpy as np

from envs.types import Action, ActionExtra, Env, EnvGroupBuilder, Logs, Metrics, Observation, StepResult, WrongType
from mint import types
from mint.errors import InvalidRequest, NonFiniteError
from renderers import Message, ParseStatus, Renderer, StopCondition, ToolSpec


@dataclass
class MessageStepResult:
    """What one reply led to. next_messages is the whole conversation so far, the reply included."""

    reward: float
    episode_done: bool
    next_messages: list[Message]
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)
    # What ends the next reply, where it is not the renderer's own end of turn.
    next_stop_condition: StopCondition | None = None


class MessageEnv(ABC):
    """One episode in messages. `tools` are offered to the model in every prompt."""

    tools: Sequence[ToolSpec] | None = None
    # What the best episode earns in all, where the task knows it; `mint env check` holds the gold replies to it.
    max_reward: float | None = None

    @abstractmethod
    async def initial_observation(self) -> list[Message]:
        """The conversation to reply to."""

    @abstractmethod
    async def step(self, message: Message) -> MessageStepResult:
        """Take the reply."""

    async def step_malformed(self, message: Message) -> MessageStepResult:
        """Take a reply that breaks the format, its raw text as content: asked where such a reply ends no episode."""
        return await self.step(message)

    async def leave(self) -> None:
        """The episode is over, however it ended: whoever waits for this player must not wait any longer."""
        return None

    def episode_metrics(self) -> Metrics:
        """Metrics of the episode as a whole, asked once, when it is over, however it ended."""
        return {}

    def gold_replies(self) -> Sequence[Message] | None:
        """The assistant's messages of an episode that earns the most; None where the task knows none.

        They are given in order, whatever the environment says between them. Asked of a fresh environment.
        """
        return None

    def unread_reply_metrics(self) -> Metrics:
        """Metrics of a reply that never reaches `step`, being cut off or broken; a task says here that it was wrong.

        Without them the average of such a metric would leave out exactly the failed replies.
        """
        return {}


class EnvFromMessageEnv(Env):
    """Plays a MessageEnv through a renderer, and deals with replies that never become a message.

    failed_parse_reward: reward of a reply that is cut off or breaks the format; the message env does not see it.
    terminate_on_parse_error: False hands a reply that breaks the format to the message env (step_malformed) and adds
        failed_parse_reward to what it earns there. A reply that is cut off ends the episode in any case.
    max_trajectory_tokens: most tokens of a prompt and the reply to it together; None is no limit.
    max_generation_tokens: room to keep free for that reply.
    context_overflow_reward: added to the reward of the reply after which there is no room for another.
    """

    def __init__(
        self,
        renderer: Renderer,
        message_env: MessageEnv,
        failed_parse_reward: float = -1.0,
        terminate_on_parse_error: bool = True,
        max_trajectory_tokens: int | None = None,
        max_generation_tokens: int | None = None,
        context_overflow_reward: float = -0.1,
    ) -> None:
        self.renderer = renderer
        self.message_env = message_env
        self.failed_parse_reward = failed_parse_reward
        self.terminate_on_parse_error = terminate_on_parse_error
        self.max_trajectory_tokens = max_trajectory_tokens
        self.max_generation_tokens = max_generation_tokens
        self.context_overflow_reward = context_overflow_reward
        self._own_stop_condition: StopCondition | None = None
        self._had_parse_error = False
        # What the last prompt was made of: its messages, and its tokens.
        self._messages: list[Message] = []
        self._prompt: list[int] = []

    @property
    def max_reward(self) -> float | None:
        """See Env."""
        return self.message_env.max_reward

    def gold_actions(self) -> list[Action] | None:
        """See Env: the message env's gold replies as a policy would sample them, the end of turn included."""
        replies = self.message_env.gold_replies()
        return None if replies is None else [reply_tokens(self.renderer, reply) for reply in replies]

    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        """See Env. A first prompt that leaves no room for a reply is an InvalidRequest."""
        try:
            observation = await self._first_prompt()
        except BaseException:
            await self.message_env.leave()
            raise
        return observation, self.renderer.get_stop_sequences()

    async def _first_prompt(self) -> Observation:
        messages = await self.message_env.initial_observation()
        if not isinstance(messages, list | tuple):
            name = f"{self._env_name()}.initial_observation()"
            raise WrongType(f"{name} gave {messages!r}: it must be a list of messages")
        observation = self._render(messages)
        if self._overflows(observation):
            raise InvalidRequest(
                f"{self._env_name()}: the first prompt has {observation.length} tokens, which with "
                f"max_generation_tokens={self.max_generation_tokens or 0} is more than "
                f"max_trajectory_tokens={self.max_trajectory_tokens}: shorten or drop this prompt, or raise the limit"
            )
        self._messages, self._prompt = list(messages), observation.to_ints()
        return observation

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """See Env."""
        is_done = True
        try:
            result = await self._step(action, extra)
            is_done = result.episode_done
        finally:
            if is_done:
                await self.message_env.leave()
        return result

    async def leave(self) -> None:
        """See Env. Also called here, when an episode ends."""
        await self.message_env.leave()

    async def _step(self, action: Action, extra: ActionExtra | None) -> StepResult:
        message, status = self.renderer.parse_response(action)
        if self._is_cut_off(status, extra):
            return self._end(self.failed_parse_reward, {**self.message_env.unread_reply_metrics(), "cut_off": 1.0})
        # With a stop condition of the message env's own, a reply need not end with the renderer's end of turn.
        is_ended_otherwise = status is ParseStatus.CUT and self._own_stop_condition is not None
        is_parse_error = not status and not is_ended_otherwise
        if is_parse_error:
            self._had_parse_error = True
            if self.terminate_on_parse_error:
                return self._end(self.failed_parse_reward, self.message_env.unread_reply_metrics())
        take = self.message_env.step_malformed if is_parse_error else self.message_env.step
        result = await take(message)
        reward = self._checked_reward(result) + (self.failed_parse_reward if is_parse_error else 0.0)
        if result.episode_done:
            return self._end(reward, result.metrics, result.logs)
        return self._go_on(result, reward, self._next_observation(action, message, result.next_messages))

    def _go_on(self, result: MessageStepResult, reward: float, observation: Observation) -> StepResult:
        """The step of a reply after which the episode goes on, if there is room for another."""
        if self._overflows(observation):
            metrics = {**result.metrics, "context_overflow": 1.0}
            return self._end(reward + self.context_overflow_reward, metrics, result.logs)
        self._messages, self._prompt = list(result.next_messages), observation.to_ints()
        self._own_stop_condition = result.next_stop_condition
        return StepResult(
            reward=reward,
            episode_done=False,
            next_observation=observation,
            next_stop_condition=self._own_stop_condition or self.renderer.get_stop_sequences(),
            metrics=result.metrics,
            logs=result.logs,
        )

    def _end(self, reward: float, metrics: Metrics, logs: Logs | None = None) -> StepResult:
        endings = {"parse_error": float(self._had_parse_error), "cut_off": 0.0, "context_overflow": 0.0}
        return StepResult(
            reward=reward,
            episode_done=True,
            next_observation=types.ModelInput.empty(),
            next_stop_condition=self.renderer.get_stop_sequences(),
            metrics={**endings, **metrics, **self.message_env.episode_metrics()},
            logs=logs or {},
        )

    def _is_cut_off(self, status: ParseStatus, extra: ActionExtra | None) -> bool:
        stop_reason = (extra or {}).get("stop_reason")
        if stop_reason is None:
            return status is ParseStatus.CUT and self._own_stop_condition is None
        return stop_reason == "length"

    def _render(self, messages: list[Message]) -> Observation:
        return self.renderer.build_generation_prompt(messages, self.message_env.tools)

    def _next_observation(self, action: Action, reply: Message, messages: list[Message]) -> Observation:
        known = [*self._messages, reply]
        if list(messages[: len(known)]) == known:
            num_new = len(messages) - len(known)
            continuation = self.renderer.build_continuation(action, messages, num_new, self.message_env.tools)
            if continuation is not None:
                return types.ModelInput.from_ints([*self._prompt, *action, *continuation])
        return self._render(messages)

    def _overflows(self, observation: Observation) -> bool:
        if self.max_trajectory_tokens is None:
            return False
        return observation.length + (self.max_generation_tokens or 0) > self.max_trajectory_tokens

    def _checked_reward(self, result: MessageStepResult) -> float:
        if not isinstance(result, MessageStepResult):
            raise WrongType(f"{self._env_name()}.step() gave {result!r}: it must be a MessageStepResult")
        for name, value in (("reward", result.reward), *result.metrics.items()):
            if not isinstance(value, Real | np.bool_):
                raise WrongType(
                    f"{self._env_name()}.step() gave {name}={value!r}, a {type(value).__name__}: it must be a float"
                )
            if not math.isfinite(value):
                raise NonFiniteError(f"{self._env_name()}.step() gave {name}={value}: it must be finite")
        return float(result.reward)

    def _env_name(self) -> str:
        return type(self.message_env).__name__


def reply_tokens(renderer: Renderer, reply: Message) -> list[int]:
    """An assistant message as a policy would sample it: its content and the end of the turn."""
    tokens, weights = renderer.build_supervised_example([{"role": "user", "content": "?"}, reply])
    return [token for token, weight in zip(tokens.to_ints(), weights, strict=True) if weight > 0]


@dataclass(frozen=True)
class MessageEnvGroupBuilder(EnvGroupBuilder):
    """A group of one message environment, made afresh for each member.

    make_env: picklable, as the builder is: a class or functools.partial(Class, arguments), not a lambda.
    failed_parse_reward, terminate_on_parse_error, max_trajectory_tokens, max_generation_tokens: as in
        EnvFromMessageEnv.
    """

    make_env: Callable[[], MessageEnv]
    renderer: Renderer
    group_size: int
    tags: tuple[str, ...] = ()
    failed_parse_reward: float = -1.0
    max_trajectory_tokens: int | None = None
    max_generation_tokens: int | None = None
    terminate_on_parse_error: bool = True

    async def make_envs(self) -> Sequence[Env]:
        """See EnvGroupBuilder."""
        return [
            EnvFromMessageEnv(
                self.renderer,
                self.make_env(),
                failed_parse_reward=self.failed_parse_reward,
                max_trajectory_tokens=self.max_trajectory_tokens,
                max_generation_tokens=self.max_generation_tokens,
                terminate_on_parse_error=self.terminate_on_parse_error,
            )
            for _ in range(self.group_size)
        ]

    def logging_tags(self) -> list[str]:
        """See EnvGroupBuilder."""
        return list(self.tags)
