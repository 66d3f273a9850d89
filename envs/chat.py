"""Chat without a scorer: the replies to a prompt are judged against each other, and a reply earns its share of wins.

Axes: _G reply (member of the group).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import chz

from envs.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from envs.rlhf import RLHFDatasetBuilder, RLHFEnvGroupBuilder
from envs.tournament import PairJudge, play_tournament
from envs.types import Env, EnvGroupBuilder, Metrics, RLDataset, RLDatasetBuilder, Trajectory
from mint.errors import InvalidRequest
from renderers import Message


class ReplyEnv(MessageEnv):
    """One turn that earns nothing by itself; the group's tournament rates it."""

    def __init__(self, prompt: list[Message]) -> None:
        self.prompt = prompt
        # The reply, once it is complete; cut off or broken ones never get here.
        self.reply: Message | None = None

    async def initial_observation(self) -> list[Message]:
        """See MessageEnv."""
        return self.prompt

    async def step(self, message: Message) -> MessageStepResult:
        """See MessageEnv."""
        self.reply = message
        return MessageStepResult(reward=0.0, episode_done=True, next_messages=[*self.prompt, message])


@dataclass(frozen=True)
class TournamentGroupBuilder(EnvGroupBuilder):
    """The group of `prompts`, rated by a tournament. Failed replies (cut off, broken) earn their own reward instead
    and take no part; metrics, gold score and tags are those of the other builder, with `judge/...` beside them."""

    prompts: RLHFEnvGroupBuilder
    judge: PairJudge

    async def make_envs(self) -> Sequence[Env]:
        """See EnvGroupBuilder."""
        group = self.prompts
        return [
            EnvFromMessageEnv(group.renderer, ReplyEnv(group.prompt), failed_parse_reward=group.failed_reply_reward)
            for _ in range(group.group_size)
        ]

    async def compute_group_rewards(
        self, trajectories: list[Trajectory], envs: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """The win rate of each complete reply, 1/2 where there is no other to compare it with."""
        replies_G = [_reply_of(env) for env in envs]
        complete_G = [reply for reply in replies_G if reply is not None]
        standings = await play_tournament(self.prompts.prompt, complete_G, self.judge)
        win_rates = iter(standings.win_rate_G)
        gold_G = await self.prompts.compute_group_rewards(trajectories, envs)
        return [
            (0.0 if reply is None else next(win_rates), {**metrics, **standings.metrics})
            for reply, (_, metrics) in zip(replies_G, gold_G, strict=True)
        ]

    def logging_tags(self) -> list[str]:
        """See EnvGroupBuilder."""
        return [*self.prompts.logging_tags(), "tournament"]


class TournamentDataset(RLDataset):
    """The groups of another dataset, rated by a tournament."""

    def __init__(self, prompts: RLDataset, judge: PairJudge) -> None:
        self._prompts = prompts
        self._judge = judge

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """See RLDataset."""
        groups: list[EnvGroupBuilder] = []
        for group in self._prompts.get_batch(index):
            assert isinstance(group, RLHFEnvGroupBuilder), f"a {type(group).__name__} has no prompt to reply to"
            groups.append(TournamentGroupBuilder(group, self._judge))
        return groups

    def __len__(self) -> int:
        return len(self._prompts)


@chz.chz(typecheck=True)
class TournamentDatasetBuilder(RLDatasetBuilder):
    """Prompts whose replies are judged against each other, all pairs in both orders: group_size² − group_size
    comparisons a group. Held-out prompts have one reply each, so nothing but the gold score is measured there."""

    # The prompts; `scorer` must be None. Choose failed_reply_reward below 0: the worst complete reply earns 0.
    prompts: RLHFDatasetBuilder
    # An envs.judges.EndpointJudge, SamplingClientJudge or any other PairJudge.
    judge: PairJudge

    @chz.validate
    def _check(self) -> None:
        if self.prompts.scorer is not None:
            raise InvalidRequest("prompts.scorer is set: the tournament rates the replies; leave the scorer out")
        if self.prompts.failed_reply_reward >= 0:
            raise InvalidRequest(
                f"prompts.failed_reply_reward={self.prompts.failed_reply_reward}: must be below 0, which is what the "
                "worst complete reply earns"
            )

    @chz.init_property
    def renderer_name(self) -> str:
        """The renderer of the prompts."""
        return self.prompts.renderer_name

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """See RLDatasetBuilder."""
        train, test = await self.prompts()
        return TournamentDataset(train, self.judge), None if test is None else TournamentDataset(test, self.judge)


def _reply_of(env: Env) -> Message | None:
    assert isinstance(env, EnvFromMessageEnv) and isinstance(env.message_env, ReplyEnv), f"not ours: {env}"
    return env.message_env.reply
