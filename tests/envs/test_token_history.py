"""Episodes of several turns: whatever tokens were sampled, the next prompt holds exactly them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import EnvFromMessageEnv, MessageEnv, MessageStepResult, TokensWithLogprobs, Trajectory, Transition
from mint import types
from recipe.rl.datums import sequences_from_trajectory
from renderers import Message, Renderer, get_renderer


class EchoEnv(MessageEnv):
    """Answers each reply; `edits` makes it change the reply in the conversation."""

    def __init__(self, role: Any = "user", *, edits: bool = False) -> None:
        self.role = role
        self.edits = edits
        self.messages: list[Message] = [{"role": "user", "content": "count"}]
        self.left = False

    async def initial_observation(self) -> list[Message]:
        return self.messages

    async def step(self, message: Message) -> MessageStepResult:
        kept: Message = {"role": "assistant", "content": "edited"} if self.edits else message
        self.messages = [*self.messages, kept, {"role": self.role, "content": "more"}]
        return MessageStepResult(0.0, episode_done=False, next_messages=self.messages)

    async def leave(self) -> None:
        self.left = True


@given(
    replies=st.lists(st.lists(st.integers(0, 4095), max_size=8), min_size=1, max_size=3),
    name=st.sampled_from(["qwen3_instruct", "qwen3_disable_thinking", "qwen3"]),
)
async def test_any_sampled_tokens_are_kept_and_make_one_training_sequence(
    tokenizer: Any, replies: list[list[int]], name: str
) -> None:
    renderer = get_renderer(name, tokenizer)
    stops = renderer.get_stop_sequences()
    env = EnvFromMessageEnv(renderer, EchoEnv("tool"), terminate_on_parse_error=False)
    prompt, _ = await env.initial_observation()
    turns = []
    for reply in replies:
        # A stop token ends the reply where it is sampled; no other place can hold one.
        sampled = [token for token in reply if token not in stops] + [stops[0]]
        result = await env.step(sampled, extra={"stop_reason": "stop"})
        next_prompt = result.next_observation.to_ints()
        assert next_prompt[: prompt.length + len(sampled)] == prompt.to_ints() + sampled
        turns.append(Transition(prompt, TokensWithLogprobs(sampled, [-1.0] * len(sampled)), 0.0, False))
        prompt = result.next_observation
    (sequence,) = sequences_from_trajectory(Trajectory(turns, prompt), advantage=1.0)
    targets = zip(sequence.tokens[1:], sequence.is_sampled_T, strict=True)
    trained = [token for token, is_sampled in targets if is_sampled]
    assert trained == [token for turn in turns for token in turn.ac.tokens]


async def test_odd_tokens_for_the_same_text_are_kept(renderer: Renderer, tokenizer: Any) -> None:
    spelled = [token for letter in "garden" for token in tokenizer.encode(letter)]
    assert spelled != tokenizer.encode("garden")
    env = EnvFromMessageEnv(renderer, EchoEnv())
    prompt, _ = await env.initial_observation()
    sampled = [*spelled, tokenizer.convert_tokens_to_ids("<|im_end|>")]
    result = await env.step(sampled)
    assert result.next_observation.to_ints()[prompt.length :][: len(sampled)] == sampled


async def test_an_edited_conversation_is_written_anew(renderer: Renderer, sampled: Callable[[str], list[int]]) -> None:
    message_env = EchoEnv(edits=True)
    env = EnvFromMessageEnv(renderer, message_env)
    await env.initial_observation()
    result = await env.step(sampled("one<|im_end|>"))
    assert result.next_observation == renderer.build_generation_prompt(message_env.messages)


async def test_reasoning_leaves_the_history_with_the_next_question(
    tokenizer: Any, sampled: Callable[[str], list[int]]
) -> None:
    renderer = get_renderer("qwen3", tokenizer)
    env = EnvFromMessageEnv(renderer, EchoEnv())
    await env.initial_observation()
    result = await env.step(sampled("<think>\nhm\n</think>\n\none<|im_end|>"))
    text = tokenizer.decode(result.next_observation.to_ints())
    assert "hm" not in text and "assistant\none<|im_end|>" in text


@pytest.mark.parametrize("extra", [{"stop_reason": "length"}, {"stop_reason": "stop"}])
async def test_a_message_env_hears_of_the_end_of_its_episode(
    renderer: Renderer, sampled: Callable[[str], list[int]], extra: Any
) -> None:
    message_env = EchoEnv()
    env = EnvFromMessageEnv(renderer, message_env)
    await env.initial_observation()
    result = await env.step(sampled("one<|im_end|>"), extra=extra)
    assert message_env.left == result.episode_done == (extra["stop_reason"] == "length")


async def test_a_message_env_that_raises_is_over_too(renderer: Renderer, sampled: Callable[[str], list[int]]) -> None:
    class Broken(EchoEnv):
        async def step(self, message: Message) -> MessageStepResult:
            raise KeyError("no such file")

    message_env = Broken()
    env = EnvFromMessageEnv(renderer, message_env)
    assert (await env.initial_observation())[0] != types.ModelInput.empty()
    with pytest.raises(KeyError):
        await env.step(sampled("one<|im_end|>"))
    assert message_env.left
