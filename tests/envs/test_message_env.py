"""The adapter from messages to tokens: every way an episode may go, and what is counted of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from envs import EnvFromMessageEnv, MessageEnv, MessageStepResult, Metrics, StepResult
from mint.errors import InvalidRequest, MintError, NonFiniteError
from renderers import Message, Renderer, ToolSpec

END, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"
Sampled = Callable[[str], list[int]]


class CountingEnv(MessageEnv):
    """Each reply earns 1.0; after `num_turns` replies the episode ends."""

    def __init__(self, num_turns: int = 1, reward: Any = 1.0, stop: list[int] | None = None) -> None:
        self.num_turns = num_turns
        self.reward = reward
        self.stop = stop
        self.messages: list[Message] = [{"role": "user", "content": "count"}]
        self.replies: list[str] = []

    async def initial_observation(self) -> list[Message]:
        return self.messages

    async def step(self, message: Message) -> MessageStepResult:
        self.replies.append(message["content"])
        self.messages = [*self.messages, message, {"role": "user", "content": "more"}]
        return MessageStepResult(
            reward=self.reward,
            episode_done=len(self.replies) == self.num_turns,
            next_messages=self.messages,
            metrics={"num_replies": float(len(self.replies))},
            logs={"reply": message["content"]},
            next_stop_condition=self.stop,
        )

    def unread_reply_metrics(self) -> Metrics:
        return {"num_replies": 0.0}


def _endings(result: StepResult) -> dict[str, float]:
    return {key: result.metrics[key] for key in ("parse_error", "cut_off", "context_overflow")}


NOTHING_WRONG = {"parse_error": 0.0, "cut_off": 0.0, "context_overflow": 0.0}


async def test_first_prompt_is_rendered_and_stops_at_the_end_of_turn(renderer: Renderer, tokenizer: Any) -> None:
    observation, stop = await EnvFromMessageEnv(renderer, CountingEnv()).initial_observation()
    expected = "<|im_start|>user\ncount<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert tokenizer.decode(observation.to_ints()) == expected
    assert stop == renderer.get_stop_sequences()


@pytest.mark.parametrize("end", [END, END_OF_TEXT])
async def test_complete_reply_earns_the_env_s_reward(renderer: Renderer, sampled: Sampled, end: str) -> None:
    message_env = CountingEnv()
    env = EnvFromMessageEnv(renderer, message_env)
    await env.initial_observation()
    result = await env.step(sampled("one" + end), extra={"stop_reason": "stop"})
    assert (result.reward, result.episode_done, message_env.replies) == (1.0, True, ["one"])
    assert result.metrics == {**NOTHING_WRONG, "num_replies": 1.0}
    assert result.logs == {"reply": "one"}


async def test_next_prompt_holds_the_whole_conversation(renderer: Renderer, sampled: Sampled, tokenizer: Any) -> None:
    env = EnvFromMessageEnv(renderer, CountingEnv(num_turns=2))
    await env.initial_observation()
    result = await env.step(sampled("one" + END), extra={"stop_reason": "stop"})
    assert not result.episode_done
    assert "parse_error" not in result.metrics
    prompt = tokenizer.decode(result.next_observation.to_ints())
    first = "<|im_start|>user\ncount<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\none<|im_end|>\n"
    assert prompt.startswith(first + "<|im_start|>user\n")
    assert prompt.endswith("more<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    result = await env.step(sampled("two" + END), extra={"stop_reason": "stop"})
    assert result.metrics == {**NOTHING_WRONG, "num_replies": 2.0}


@pytest.mark.parametrize(
    ("text", "extra"), [("on", {"stop_reason": "length"}), ("one" + END, {"stop_reason": "length"}), ("on", None)]
)
async def test_cut_off_reply_ends_the_episode_unread(
    renderer: Renderer, sampled: Sampled, text: str, extra: Any
) -> None:
    message_env = CountingEnv(num_turns=3)
    env = EnvFromMessageEnv(renderer, message_env, failed_parse_reward=-2.0, terminate_on_parse_error=False)
    await env.initial_observation()
    result = await env.step(sampled(text), extra=extra)
    assert (result.reward, result.episode_done, message_env.replies) == (-2.0, True, [])
    assert result.metrics == {**NOTHING_WRONG, "cut_off": 1.0, "num_replies": 0.0}


async def test_broken_reply_ends_the_episode_unread(renderer: Renderer, sampled: Sampled) -> None:
    message_env = CountingEnv(num_turns=3)
    env = EnvFromMessageEnv(renderer, message_env)
    await env.initial_observation()
    result = await env.step(sampled("<tool_call>\nnonsense\n</tool_call>" + END), extra={"stop_reason": "stop"})
    assert (result.reward, result.episode_done, message_env.replies) == (-1.0, True, [])
    assert result.metrics == {**NOTHING_WRONG, "parse_error": 1.0, "num_replies": 0.0}


async def test_broken_reply_may_be_played_on_and_is_remembered(renderer: Renderer, sampled: Sampled) -> None:
    message_env = CountingEnv(num_turns=2)
    env = EnvFromMessageEnv(renderer, message_env, failed_parse_reward=-0.25, terminate_on_parse_error=False)
    await env.initial_observation()
    broken = "<tool_call>\nnonsense\n</tool_call>"
    result = await env.step(sampled(broken + END), extra={"stop_reason": "stop"})
    assert (result.reward, result.episode_done, message_env.replies) == (0.75, False, [broken])
    result = await env.step(sampled("two" + END), extra={"stop_reason": "stop"})
    assert result.reward == 1.0
    assert _endings(result) == {**NOTHING_WRONG, "parse_error": 1.0}


async def test_reply_that_stops_where_the_env_asked_is_complete(renderer: Renderer, sampled: Sampled) -> None:
    (comma,) = sampled(",")
    message_env = CountingEnv(num_turns=2, stop=[comma])
    env = EnvFromMessageEnv(renderer, message_env)
    await env.initial_observation()
    result = await env.step(sampled("one" + END), extra={"stop_reason": "stop"})
    assert result.next_stop_condition == [comma]
    result = await env.step(sampled("two,"), extra={"stop_reason": "stop"})
    assert message_env.replies == ["one", "two,"]
    assert _endings(result) == NOTHING_WRONG


async def test_episode_ends_where_no_room_is_left(renderer: Renderer, sampled: Sampled) -> None:
    first_prompt, _ = await EnvFromMessageEnv(renderer, CountingEnv()).initial_observation()
    env = EnvFromMessageEnv(
        renderer, CountingEnv(num_turns=5), max_trajectory_tokens=first_prompt.length + 4, max_generation_tokens=4
    )
    await env.initial_observation()
    result = await env.step(sampled("one" + END), extra={"stop_reason": "stop"})
    assert result.episode_done
    assert result.reward == pytest.approx(1.0 - 0.1)
    assert _endings(result) == {**NOTHING_WRONG, "context_overflow": 1.0}


async def test_last_reply_keeps_its_reward_however_long_it_is(renderer: Renderer, sampled: Sampled) -> None:
    first_prompt, _ = await EnvFromMessageEnv(renderer, CountingEnv()).initial_observation()
    env = EnvFromMessageEnv(renderer, CountingEnv(), max_trajectory_tokens=first_prompt.length)
    await env.initial_observation()
    result = await env.step(sampled("one" + END), extra={"stop_reason": "stop"})
    assert (result.reward, _endings(result)) == (1.0, NOTHING_WRONG)


async def test_first_prompt_without_room_is_refused(renderer: Renderer) -> None:
    env = EnvFromMessageEnv(renderer, CountingEnv(), max_trajectory_tokens=12, max_generation_tokens=8)
    with pytest.raises(InvalidRequest, match=r"CountingEnv: the first prompt has \d+ tokens.*max_trajectory_tokens=12"):
        await env.initial_observation()


@pytest.mark.parametrize(
    ("reward", "error", "message"),
    [
        (math.nan, NonFiniteError, "CountingEnv.step.* gave reward=nan: it must be finite"),
        (math.inf, NonFiniteError, "reward=inf"),
        (None, InvalidRequest, "CountingEnv.step.* gave reward=None, a NoneType: it must be a float"),
        ("1", InvalidRequest, "reward='1', a str"),
    ],
)
async def test_reward_that_is_no_number_is_refused(
    renderer: Renderer, sampled: Sampled, reward: Any, error: type[MintError], message: str
) -> None:
    env = EnvFromMessageEnv(renderer, CountingEnv(reward=reward))
    await env.initial_observation()
    with pytest.raises(error, match=message):
        await env.step(sampled("one" + END), extra={"stop_reason": "stop"})


async def test_tools_of_the_env_are_in_the_prompt(renderer: Renderer, tokenizer: Any) -> None:
    message_env = CountingEnv()
    tool: ToolSpec = {"type": "function", "function": {"name": "calc"}}
    message_env.tools = [tool]
    observation, _ = await EnvFromMessageEnv(renderer, message_env).initial_observation()
    assert '"name": "calc"' in tokenizer.decode(observation.to_ints())
