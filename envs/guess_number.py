"""Guess the number: a game of several turns for one player, and one for two players who are different agents.

Alone, the guesser is answered by the environment. With two, the other player is the keeper: a policy too, which knows
the number and says how each guess compares with it. The members of a group then play with each other, in pairs, through
an Exchange; who waits is woken when the other leaves, however its episode ended.

Axes: _G member of a group.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import chz

from envs.group_dataset import GroupDataset, check_group_size
from envs.message_env import EnvFromMessageEnv, MessageEnv, MessageEnvGroupBuilder, MessageStepResult
from envs.types import Env, EnvGroupBuilder, Metrics, RLDatasetBuilder, Trajectory
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from renderers import Message, Renderer, get_renderer, get_text

Answer = Literal["higher", "lower", "right"]
_ANSWERS: tuple[Answer, ...] = ("higher", "lower", "right")


@dataclass(frozen=True)
class GuessRules:
    """The number is from 1 to `highest`; after `max_guesses` guesses the game is over."""

    highest: int = 16
    max_guesses: int = 5

    def __post_init__(self) -> None:
        if self.highest < 2 or self.max_guesses < 1:
            raise InvalidRequest(
                f"highest={self.highest}, max_guesses={self.max_guesses}: must be at least 2 and at least 1"
            )

    def invitation(self) -> str:
        """What the guesser is told first."""
        return (
            f"I think of a number from 1 to {self.highest}. Guess it in {self.max_guesses} guesses. "
            "I say higher, lower or right. Reply with a number only."
        )


def read_guess(text: str) -> int | None:
    """The only number in a guess, or None."""
    numbers = re.findall(r"\d{1,9}", text)
    return int(numbers[0]) if len(numbers) == 1 else None


def read_answer(text: str) -> Answer | None:
    """The only answer in what a keeper says, or None."""
    said: list[Answer] = [answer for answer in _ANSWERS if re.search(rf"\b{answer}\b", text.lower())]
    return said[0] if len(said) == 1 else None


def true_answer(secret: int, guess: int) -> Answer:
    """How the number compares with the guess."""
    return "right" if guess == secret else "higher" if secret > guess else "lower"


class GuessNumberEnv(MessageEnv):
    """One player. The number, once found, earns 1. Metrics: found, num_guesses, unclear_guesses (no single number)."""

    max_reward = 1.0

    def __init__(self, secret: int, rules: GuessRules) -> None:
        self.secret = secret
        self.rules = rules
        self.conversation: list[Message] = [{"role": "user", "content": rules.invitation()}]
        self._num_guesses = self._num_unclear = 0
        self._is_found = False

    async def initial_observation(self) -> list[Message]:
        """See MessageEnv."""
        return self.conversation

    async def step(self, message: Message) -> MessageStepResult:
        """See MessageEnv."""
        guess = read_guess(get_text(message))
        self._num_guesses += 1
        self._num_unclear += guess is None
        self._is_found = guess == self.secret
        answer = "Reply with a number only." if guess is None else f"{true_answer(self.secret, guess)}."
        self.conversation = [*self.conversation, message, {"role": "user", "content": answer.capitalize()}]
        is_done = self._is_found or self._num_guesses >= self.rules.max_guesses
        return MessageStepResult(float(self._is_found), is_done, self.conversation)

    def gold_replies(self) -> list[Message]:
        """See MessageEnv."""
        return [{"role": "assistant", "content": str(self.secret)}]

    def episode_metrics(self) -> Metrics:
        """See MessageEnv."""
        return {
            "found": float(self._is_found),
            "num_guesses": float(self._num_guesses),
            "unclear_guesses": float(self._num_unclear),
        }


class Exchange:
    """What two players of one game say to each other. Each waits for its own queue only."""

    def __init__(self) -> None:
        self._said: dict[str, asyncio.Queue[str | None]] = {"guesser": asyncio.Queue(), "keeper": asyncio.Queue()}

    def say_to(self, player: str, text: str) -> None:
        """Say something to the other player."""
        self._said[player].put_nowait(text)

    def hang_up_on(self, player: str) -> None:
        """Tell `player` that nothing more will be said to it."""
        self._said[player].put_nowait(None)

    async def hear(self, player: str) -> str | None:
        """What was said to `player`, as soon as it is; None, and None again whenever asked: the other one has left."""
        text = await self._said[player].get()
        if text is None:
            self.hang_up_on(player)
        return text


class GuesserEnv(MessageEnv):
    """The player who guesses, in a game of two. The number, once guessed, earns 1, whatever the keeper says."""

    def __init__(self, secret: int, rules: GuessRules, exchange: Exchange) -> None:
        self.secret = secret
        self.rules = rules
        self.exchange = exchange
        self.conversation: list[Message] = [{"role": "user", "content": rules.invitation()}]
        self._num_guesses = 0
        self._is_found = False

    async def initial_observation(self) -> list[Message]:
        """See MessageEnv."""
        return self.conversation

    async def step(self, message: Message) -> MessageStepResult:
        """See MessageEnv. Waits for the keeper's answer."""
        text = get_text(message)
        self._num_guesses += 1
        self._is_found = read_guess(text) == self.secret
        self.exchange.say_to("keeper", text)
        answer = await self.exchange.hear("guesser")
        self.conversation = [*self.conversation, message, {"role": "user", "content": answer or ""}]
        is_done = self._is_found or answer is None or self._num_guesses >= self.rules.max_guesses
        return MessageStepResult(float(self._is_found), is_done, self.conversation)

    async def leave(self) -> None:
        """See MessageEnv."""
        self.exchange.hang_up_on("keeper")

    def episode_metrics(self) -> Metrics:
        """See MessageEnv."""
        return {"guesser/found": float(self._is_found), "guesser/num_guesses": float(self._num_guesses)}


class KeeperEnv(MessageEnv):
    """The player who knows the number and answers. Each true answer earns its share of 1: reward is the share of true
    answers among all that were due (to a guess that is no number, any answer is true)."""

    def __init__(self, secret: int, rules: GuessRules, exchange: Exchange) -> None:
        self.secret = secret
        self.rules = rules
        self.exchange = exchange
        self.conversation: list[Message] = []
        self._guess: str | None = None
        self._num_answers = self._num_true = 0

    async def initial_observation(self) -> list[Message]:
        """See MessageEnv. Waits for the first guess."""
        self._guess = await self.exchange.hear("keeper")
        task = f"The number is {self.secret}. The other player guesses it. Answer each guess: higher, lower or right."
        guess = "nothing" if self._guess is None else self._guess
        self.conversation = [{"role": "user", "content": f"{task}\nGuess: {guess}"}]
        return self.conversation

    async def step(self, message: Message) -> MessageStepResult:
        """See MessageEnv. Waits for the next guess."""
        text = get_text(message)
        guess = None if self._guess is None else read_guess(self._guess)
        is_true = guess is None or read_answer(text) == true_answer(self.secret, guess)
        self._num_answers += 1
        self._num_true += is_true
        self.exchange.say_to("guesser", text)
        self._guess = await self.exchange.hear("keeper")
        self.conversation = [*self.conversation, message, {"role": "user", "content": f"Guess: {self._guess}"}]
        is_done = self._guess is None
        return MessageStepResult(self._share_of_true() if is_done else 0.0, is_done, self.conversation)

    async def leave(self) -> None:
        """See MessageEnv."""
        self.exchange.hang_up_on("guesser")

    def episode_metrics(self) -> Metrics:
        """See MessageEnv."""
        return {"keeper/true_answers": self._share_of_true()}

    def _share_of_true(self) -> float:
        return self._num_true / max(1, self._num_answers)


@dataclass(frozen=True)
class TwoPlayerGuessGroupBuilder(EnvGroupBuilder):
    """`num_games` games with one number: members 2i and 2i + 1 are the guesser and the keeper of game i.

    A keeper is compared with the other keepers and a guesser with the other guessers: the mean reward of its role is
    taken off, so that advantages do not tell the roles apart. What each role earned is in the metrics.
    """

    secret: int
    rules: GuessRules
    renderer: Renderer
    num_games: int
    # Reward of a reply that is cut off or breaks the format.
    failed_parse_reward: float = -1.0

    async def make_envs(self) -> Sequence[Env]:
        """See EnvGroupBuilder."""
        envs: list[Env] = []
        for _ in range(self.num_games):
            exchange = Exchange()
            for player in (GuesserEnv, KeeperEnv):
                message_env = player(self.secret, self.rules, exchange)
                envs.append(EnvFromMessageEnv(self.renderer, message_env, failed_parse_reward=self.failed_parse_reward))
        return envs

    async def compute_group_rewards(
        self, trajectories: list[Trajectory], envs: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """See EnvGroupBuilder."""
        earned_G = [sum(turn.reward for turn in trajectory.transitions) for trajectory in trajectories]
        means = [sum(earned_G[i_role::2]) / self.num_games for i_role in range(2)]
        return [
            (-means[i % 2], {f"{('guesser', 'keeper')[i % 2]}/reward": earned}) for i, earned in enumerate(earned_G)
        ]

    def logging_tags(self) -> list[str]:
        """See EnvGroupBuilder."""
        return ["two_players"]


@chz.chz(typecheck=True)
class GuessNumberDatasetBuilder(RLDatasetBuilder):
    """Games, each group with a number of its own."""

    # Whose tokenizer to render with.
    model_name: str
    # One of renderers.get_renderer's names.
    renderer_name: str
    # Games per group.
    group_size: int
    # Groups per batch.
    groups_per_batch: int
    # Batches.
    num_batches: int
    # 1: the environment answers the guesses; 2: another player does.
    num_players: Literal[1, 2] = 1
    # The number is from 1 to this.
    highest: int = 16
    # Guesses in one game.
    max_guesses: int = 5
    # Of the numbers drawn.
    seed: int = 0

    @chz.validate
    def _check(self) -> None:
        check_group_size(self.group_size)
        GuessRules(self.highest, self.max_guesses)
        for name in ("groups_per_batch", "num_batches"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name}={getattr(self, name)}: must be at least 1")

    async def __call__(self) -> tuple[GroupDataset, None]:
        """See RLDatasetBuilder."""
        from mint.tokenizer import load_tokenizer

        renderer = get_renderer(self.renderer_name, load_tokenizer(self.model_name))
        rules = GuessRules(self.highest, self.max_guesses)
        rng = random.Random(derive_seed("guess the number", self.seed))
        secrets = [rng.randint(1, self.highest) for _ in range(self.num_batches * self.groups_per_batch)]
        return GroupDataset([self._group(secret, rules, renderer) for secret in secrets], self.groups_per_batch), None

    def _group(self, secret: int, rules: GuessRules, renderer: Renderer) -> EnvGroupBuilder:
        if self.num_players == 2:
            return TwoPlayerGuessGroupBuilder(secret, rules, renderer, self.group_size)
        make_env = partial(GuessNumberEnv, secret, rules)
        return MessageEnvGroupBuilder(make_env, renderer, self.group_size, tags=("guess_number",))
