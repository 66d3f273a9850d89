"""Episodes with tools, played through a renderer by scripted replies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from envs import EnvFromMessageEnv, Metrics
from envs.tool_env import ToolEnv, ToolLimits
from envs.tools import Tool
from mint.errors import InvalidRequest
from renderers import Message, Renderer, get_renderer, get_text

END = "<|im_end|>"


async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


async def repeat(times: int) -> str:
    return "x" * times


async def half() -> str:
    return "half a pair: \ud800"


class DoubleEnv(ToolEnv):
    """The answer has to be 84."""

    def __init__(self, limits: ToolLimits | None = None) -> None:
        super().__init__([Tool(double), Tool(repeat), Tool(half)], limits)

    def first_messages(self) -> list[Message]:
        return [{"role": "user", "content": "Double 42."}]

    async def rate_answer(self, answer: Message) -> tuple[float, Metrics]:
        is_correct = float(get_text(answer) == "84")
        return is_correct, {"correct": is_correct}

    def no_answer(self) -> tuple[float, Metrics]:
        return -0.5, {"correct": 0.0}


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


NO_TROUBLE = {
    "tool/calls": 0.0,
    "tool/unknown": 0.0,
    "tool/bad_arguments": 0.0,
    "tool/failed": 0.0,
    "tool/timed_out": 0.0,
    "tool/refused": 0.0,
    "tool/malformed": 0.0,
    "out_of_turns": 0.0,
    "parse_error": 0.0,
    "cut_off": 0.0,
    "context_overflow": 0.0,
}


@pytest.fixture
def renderer(tokenizer: Any) -> Renderer:
    return get_renderer("qwen3_instruct", tokenizer)


class Player:
    """Plays replies and shows, for each, what the model reads next; a reply without an end is cut off."""

    def __init__(self, renderer: Renderer, tokenizer: Any, message_env: ToolEnv, **settings: Any) -> None:
        self.tokenizer = tokenizer
        self.env = EnvFromMessageEnv(renderer, message_env, -0.1, terminate_on_parse_error=False, **settings)
        self.rewards: list[float] = []
        self.metrics: Metrics = {}

    async def play(self, *replies: str) -> list[str]:
        prompt, _ = await self.env.initial_observation()
        self.prompts = [self.tokenizer.decode(prompt.to_ints())]
        for i_reply, reply in enumerate(replies):
            tokens = self.tokenizer.encode(reply, add_special_tokens=False)
            result = await self.env.step(tokens, extra={"stop_reason": "stop" if reply.endswith(END) else "length"})
            self.rewards.append(result.reward)
            assert result.episode_done == (i_reply == len(replies) - 1), f"reply {i_reply}"
            if result.episode_done:
                self.metrics = result.metrics
                break
            assert not result.metrics
            shown = self.tokenizer.decode(result.next_observation.to_ints())
            assert shown.startswith(self.prompts[-1] + reply)
            self.prompts.append(shown)
        return [after[len(before) :] for before, after in zip(self.prompts, self.prompts[1:], strict=False)]


@pytest.fixture
def player(renderer: Renderer, tokenizer: Any) -> Callable[..., Player]:
    return lambda limits=None, **settings: Player(renderer, tokenizer, DoubleEnv(limits), **settings)


def responses(*texts: str) -> str:
    """What follows a reply with calls, up to the next one."""
    blocks = "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in texts)
    return f"{END}\n<|im_start|>user{blocks}{END}\n<|im_start|>assistant\n"


async def test_result_is_read_and_answered(player: Callable[..., Player]) -> None:
    p = player()
    asked = call("double", number=42)
    (read,) = await p.play(asked + END, "84" + END)
    assert read == asked + responses("84")
    assert '"name": "double", "description": "Double a number."' in p.prompts[0]
    assert (p.rewards, p.metrics) == ([0.0, 1.0], {**NO_TROUBLE, "tool/calls": 1.0, "correct": 1.0})


async def test_several_calls_of_one_reply_are_answered_in_order(player: Callable[..., Player]) -> None:
    p = player()
    asked = "\n".join([call("double", number=1), call("halve", number=1), call("double"), call("double", number=3)])
    (read,) = await p.play(asked + END, "84" + END)
    assert read == asked + responses(
        "2",
        "Error: there is no tool 'halve'; the tools are: double, repeat, half",
        "Error: bad arguments for double: number: Field required",
        "6",
    )
    expected = {**NO_TROUBLE, "tool/calls": 4.0, "tool/unknown": 1.0, "tool/bad_arguments": 1.0, "correct": 1.0}
    assert p.metrics == expected


@pytest.mark.parametrize(
    "broken",
    [
        "<tool_call>\nnonsense\n</tool_call>",
        '<tool_call>\n{"name": "double", "arguments": {"number": 42}}',
        call("double", number=42) + "and more",
        '<tool_call>\n{"name": "double", "arguments": {"\\ud800": 1}}\n</tool_call>',
    ],
)
async def test_malformed_call_is_explained_and_costs_a_little(player: Callable[..., Player], broken: str) -> None:
    p = player()
    first, _ = await p.play(broken + END, call("double", number=42) + END, "84" + END)
    assert "Error: the reply breaks the format, so no tool was called." in first
    assert p.rewards == [-0.1, 0.0, 1.0]
    assert p.metrics == {**NO_TROUBLE, "tool/calls": 1.0, "tool/malformed": 1.0, "parse_error": 1.0, "correct": 1.0}


async def test_turns_run_out(player: Callable[..., Player]) -> None:
    p = player(ToolLimits(max_turns=2))
    await p.play(call("double", number=1) + END, call("double", number=2) + END)
    assert p.rewards == [0.0, -0.5]
    assert p.metrics == {**NO_TROUBLE, "tool/calls": 2.0, "out_of_turns": 1.0, "correct": 0.0}


async def test_calls_beyond_the_limit_are_refused(player: Callable[..., Player]) -> None:
    p = player(ToolLimits(max_calls=2))
    asked = "\n".join([call("double", number=1)] * 3)
    first, second = await p.play(asked + END, call("double", number=4) + END, "84" + END)
    refused = "Error: not run, as an episode has at most 2 calls; give your answer now"
    assert first == asked + responses("2", "2", refused)
    assert second == call("double", number=4) + responses(refused)
    assert p.metrics == {**NO_TROUBLE, "tool/calls": 4.0, "tool/refused": 2.0, "correct": 1.0}


async def test_long_result_is_cut_and_says_so(player: Callable[..., Player]) -> None:
    p = player(ToolLimits(max_result_characters=10))
    (read,) = await p.play(call("repeat", times=25) + END, "84" + END)
    assert read == call("repeat", times=25) + responses("xxxxxxxxxx\n[cut: the first 10 of 25 characters]")


async def test_result_that_is_no_text_is_shown_as_far_as_it_is(player: Callable[..., Player]) -> None:
    (read,) = await player().play(call("half") + END, "84" + END)
    assert read == call("half") + responses("half a pair: ?")


async def test_tokens_run_out(player: Callable[..., Player], renderer: Renderer) -> None:
    first_prompt = renderer.build_generation_prompt(DoubleEnv().first_messages(), DoubleEnv().tools)
    p = player(max_trajectory_tokens=first_prompt.length + 60, max_generation_tokens=30)
    await p.play(call("repeat", times=200) + END)
    assert p.rewards == [-0.1]
    assert p.metrics == {**NO_TROUBLE, "tool/calls": 1.0, "context_overflow": 1.0, "correct": 0.0}


async def test_reply_that_is_cut_off_ends_the_episode_with_what_was_counted(player: Callable[..., Player]) -> None:
    p = player()
    await p.play(call("double", number=1) + END, "<tool_call>\n")
    assert p.rewards == [0.0, -0.1]
    assert p.metrics == {**NO_TROUBLE, "tool/calls": 1.0, "cut_off": 1.0, "correct": 0.0}


def test_limits_below_one_turn_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="max_turns=0: must be at least 1"):
        ToolLimits(max_turns=0)
