"""`mint env play`: what a person sees and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from envs import AdditionEnv, MessageEnv, MessageEnvGroupBuilder, MessageStepResult
from envs.env_play import play
from renderers import Message, Renderer


class TwoQuestions(MessageEnv):
    """Asks for "a", then for two lines."""

    def __init__(self) -> None:
        self.messages: list[Message] = [{"role": "user", "content": "first?"}]

    async def initial_observation(self) -> list[Message]:
        return self.messages

    async def step(self, message: Message) -> MessageStepResult:
        is_first = len(self.messages) == 1
        is_right = message["content"] == ("a" if is_first else "b\nc")
        self.messages = [*self.messages, message, {"role": "user", "content": "second?"}]
        return MessageStepResult(float(is_right), not is_first, self.messages)


def terminal(lines: list[str]) -> tuple[Callable[[str], str], list[str]]:
    """A person who types these lines and then Ctrl-D; and what is shown to them."""

    def read(prompt: str) -> str:
        if not lines:
            raise EOFError
        return lines.pop(0)

    return read, []


async def played(make_env: Any, renderer: Renderer, lines: list[str]) -> tuple[bool, str]:
    read, shown = terminal(lines)
    group = MessageEnvGroupBuilder(make_env, renderer, group_size=2)
    return await play(group, renderer.tokenizer, read, shown.append), "\n".join(shown)


async def test_a_right_answer_earns_the_reward_and_the_best_reply_is_shown(renderer: Renderer) -> None:
    is_done, shown = await played(partial(AdditionEnv, 3, 4), renderer, ["7"])
    assert is_done
    assert "What is 3 + 4?" in shown and "reward 1 of 1" in shown and "correct: 1.0" in shown
    assert "best reply: 7" in shown


async def test_turns_and_lines_that_go_on(renderer: Renderer) -> None:
    is_done, shown = await played(TwoQuestions, renderer, ["a", "b\\", "c"])
    assert is_done and "reward 2 (1 + 1)" in shown
    assert shown.count("first?") == 1, "a later turn shows only what is new"


async def test_leaving(renderer: Renderer) -> None:
    assert (await played(TwoQuestions, renderer, ["/quit"]))[0] is False
    assert (await played(TwoQuestions, renderer, ["a"]))[0] is False
