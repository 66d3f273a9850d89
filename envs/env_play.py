"""`mint env play`: answer an environment's prompts at the terminal and see what it makes of the replies."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable

from envs.env_target import load_target
from envs.message_env import EnvFromMessageEnv
from envs.scripted_play import Episode, Reply, play_episode, sampled_text
from envs.types import Env, EnvGroupBuilder, Observation
from mint.errors import InvalidRequest
from renderers import StopCondition, Tokenizer

QUIT = "/quit"


class _Leave(Exception):
    """The person has seen enough."""


class TerminalPlayer:
    """Shows observations and asks for replies, one line each; a line that ends with a backslash goes on.

    read: asks for a line and returns it without its end; EOFError is the same as /quit. write: shows a line.
    """

    def __init__(self, tokenizer: Tokenizer, read: Callable[[str], str], write: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._read = read
        self._write = write
        self._shown: list[int] = []

    async def next_reply(self, observation: Observation, stop: StopCondition) -> Reply:
        """Show what is new in the observation and ask for the reply; raises _Leave where there is none."""
        tokens = observation.to_ints()
        is_longer = tokens[: len(self._shown)] == self._shown
        self._write(str(self._tokenizer.decode(tokens[len(self._shown) if is_longer else 0 :])))
        reply = sampled_text(await asyncio.to_thread(self._ask), stop, self._tokenizer)
        self._shown = [*tokens, *reply.tokens]
        return reply

    def _ask(self) -> str:
        lines: list[str] = []
        while True:
            try:
                line = self._read("... " if lines else ">>> ")
            except EOFError:
                raise _Leave from None
            if line.strip() == QUIT:
                raise _Leave
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                return "\n".join(lines)


async def play(
    builder: EnvGroupBuilder, tokenizer: Tokenizer, read: Callable[[str], str], write: Callable[[str], None]
) -> bool:
    """One episode of the group's first member; False when the person left. The group's own rewards are not computed."""
    env = (await builder.make_envs())[0]
    gold = env.gold_actions()
    try:
        episode = await play_episode(env, TerminalPlayer(tokenizer, read, write).next_reply)
    except _Leave:
        return False
    _show_end(env, episode, gold, tokenizer, write)
    return True


def _show_end(
    env: Env, episode: Episode, gold: list[list[int]] | None, tokenizer: Tokenizer, write: Callable[[str], None]
) -> None:
    turns = episode.trajectory.transitions
    most = "" if env.max_reward is None else f" of {env.max_reward:g}"
    steps = "" if len(turns) == 1 else f" ({' + '.join(f'{turn.reward:g}' for turn in turns)})"
    write(f"reward {episode.reward:g}{most}{steps}")
    for turn in turns:
        for name, value in {**turn.metrics, **turn.logs}.items():
            write(f"  {name}: {value}")
    if gold is not None:
        write("best reply: " + " | ".join(str(tokenizer.decode(action)) for action in gold))


def _tokenizer_of(env: Env, model_name: str) -> Tokenizer:
    if isinstance(env, EnvFromMessageEnv):
        return env.renderer.tokenizer
    from mint.tokenizer import load_tokenizer

    return load_tokenizer(model_name)


def run(options: argparse.Namespace) -> None:
    """Play until the episodes are used up or the person leaves."""
    if options.episodes < 1:
        raise InvalidRequest(f"--episodes {options.episodes}: must be at least 1")
    asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> None:
    target = await load_target(options.target, options.settings, model_name=options.model, max_groups=options.episodes)
    print(f"A reply is one line; end a line with \\ to go on in the next. {QUIT} or Ctrl-D leaves.\n")
    for builder in target.training_groups:
        tokenizer = _tokenizer_of((await builder.make_envs())[0], options.model)
        if not await play(builder, tokenizer, input, print):
            break
        print()
