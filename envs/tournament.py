"""A tournament within a group: every two replies are compared, in both orders, and a reply earns its share of wins.

Judges lean towards the reply that they read first (or second). Asking in both orders and taking the mean cancels any
such bias that does not depend on the replies, as in the swapped positions of Zheng et al. (arXiv:2306.05685).

Axes: _G reply (member of the group); _GG pair of replies, the one in the row read first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from envs.types import Metrics
from mint.errors import InvalidRequest
from renderers import Message, get_text


@dataclass(frozen=True)
class Verdict:
    """What a judge makes of two replies."""

    # Probability that the reply read first is the better one: soft, or 0, 1/2 and 1.
    first_is_better: float
    # False: what the judge said is no verdict; it counts as one half.
    is_readable: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.first_is_better <= 1.0:
            raise InvalidRequest(f"first_is_better={self.first_is_better}: must be a probability, from 0 to 1")


UNREADABLE = Verdict(0.5, is_readable=False)


@runtime_checkable
class PairJudge(Protocol):
    """Something that says which of two replies to a conversation is better. Calls run concurrently."""

    async def compare(self, prompt: list[Message], first: Message, second: Message) -> Verdict:
        """The verdict on two assistant messages, read in this order."""
        ...


@dataclass(frozen=True)
class Standings:
    """How a tournament ended."""

    # For each reply, the mean probability of being better than another one: 1/2 is average. 1/2 where it is alone.
    win_rate_G: list[float]
    # judge/comparisons: asked for. judge/unreadable: share of them without a verdict. judge/first_is_better: mean
    # probability given to the reply read first, 1/2 for a judge without bias. judge/contradictions: share of the pairs
    # whose two orders give it to different replies.
    metrics: Metrics


async def play_tournament(prompt: list[Message], replies_G: Sequence[Message], judge: PairJudge) -> Standings:
    """Compare all replies with each other; equal texts draw without being asked about. The first error is raised."""
    num_replies = len(replies_G)
    texts_G = [get_text(reply) for reply in replies_G]
    pairs = [(i, j) for i in range(num_replies) for j in range(num_replies) if texts_G[i] != texts_G[j]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(judge.compare(prompt, replies_G[i], replies_G[j])) for i, j in pairs]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return standings(num_replies, {pair: task.result() for pair, task in zip(pairs, tasks, strict=True)})


def standings(num_replies: int, verdicts: dict[tuple[int, int], Verdict]) -> Standings:
    """The standings, given the verdict on each ordered pair (i_first, i_second); pairs without one are draws.

    p_ij, the probability that i is better than j, is the mean of what the verdict on (i, j) gives to i and what that on
    (j, i) gives to i; win_rate_G[i] is the mean of p_ij over the others.
    """
    first_wins_GG = np.full((num_replies, num_replies), 0.5)
    for (i, j), verdict in verdicts.items():
        first_wins_GG[i, j] = verdict.first_is_better
    p_GG = (first_wins_GG + 1.0 - first_wins_GG.T) / 2
    np.fill_diagonal(p_GG, 0.0)
    win_rate_G = p_GG.sum(axis=1) / (num_replies - 1) if num_replies > 1 else np.full(num_replies, 0.5)
    metrics: Metrics = {"judge/comparisons": float(len(verdicts))}
    if verdicts:
        both = [(a.first_is_better, verdicts[j, i].first_is_better) for (i, j), a in verdicts.items() if i < j]
        metrics |= {
            "judge/unreadable": float(np.mean([not verdict.is_readable for verdict in verdicts.values()])),
            "judge/first_is_better": float(np.mean([verdict.first_is_better for verdict in verdicts.values()])),
            "judge/contradictions": float(np.mean([(a - 0.5) * (b - 0.5) > 0 for a, b in both])),
        }
    return Standings(win_rate_G.tolist(), metrics)
