"""Two policies on the same held-out prompts: gold score, who wins, and how far apart they are.

Axes: _P prompts, _R replies to one prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from envs.tournament import PairJudge, play_tournament
from mint.errors import InvalidRequest
from recipe.reply_sampling import Score, draw_replies, log_ratios, score_replies

if TYPE_CHECKING:
    import mint
    from renderers import Message, Renderer

__all__ = ["PolicyComparison", "Score", "compare_policies", "judged_win_rate", "reply_win_rate", "win_rate"]


@dataclass(frozen=True)
class PolicyComparison:
    """before, after: mean score over all replies. win_rate: share of prompts whose mean score is higher after (a tie
    counts one half). kl_per_reply, kl_per_token: KL(after || before) in nats, on replies drawn from after.
    reply_win_rate: probability that one reply of after scores higher than one of before, ties counting one half.
    scores_before_PR: what the replies of before scored, for others to be compared with."""

    before: float
    after: float
    win_rate: float
    kl_per_reply: float
    kl_per_token: float
    reply_win_rate: float
    scores_before_PR: np.ndarray


async def compare_policies(
    before: mint.SamplingClient,
    after: mint.SamplingClient,
    prompts: Sequence[list[Message]],
    renderer: Renderer,
    score: Score,
    *,
    replies_per_prompt: int,
    max_tokens: int,
    seed: int,
) -> PolicyComparison:
    """Draw replies from both at temperature 1 with the same seeds, and score them."""
    if not prompts:
        raise InvalidRequest("comparing policies needs at least one prompt")
    replies_before, replies_after = await asyncio.gather(
        draw_replies(before, prompts, renderer, replies_per_prompt, max_tokens, seed, "comparison"),
        draw_replies(after, prompts, renderer, replies_per_prompt, max_tokens, seed, "comparison"),
    )
    scores_before_PR, scores_after_PR = await asyncio.gather(
        score_replies(replies_before, prompts, renderer, score), score_replies(replies_after, prompts, renderer, score)
    )
    log_ratios_flat = (await log_ratios(before, prompts, renderer, replies_after)).ravel()
    num_tokens = sum(len(reply.tokens) for replies in replies_after for reply in replies)
    return PolicyComparison(
        before=float(scores_before_PR.mean()),
        after=float(scores_after_PR.mean()),
        win_rate=win_rate(scores_before_PR, scores_after_PR),
        kl_per_reply=float(log_ratios_flat.mean()),
        kl_per_token=float(log_ratios_flat.sum()) / num_tokens,
        reply_win_rate=reply_win_rate(scores_before_PR, scores_after_PR),
        scores_before_PR=scores_before_PR,
    )


async def judged_win_rate(
    before: mint.SamplingClient,
    after: mint.SamplingClient,
    prompts: Sequence[list[Message]],
    renderer: Renderer,
    judge: PairJudge,
    *,
    max_tokens: int,
    seed: int,
) -> float:
    """How often the judge prefers the reply of `after`: the mean probability, over the prompts and both orders.

    One reply from each policy for each prompt, at temperature 1; equal replies draw.
    """
    drawn_before, drawn_after = await asyncio.gather(
        *(draw_replies(client, prompts, renderer, 1, max_tokens, seed, "comparison") for client in (before, after))
    )
    standings_P = await asyncio.gather(
        *(
            play_tournament(prompt, [renderer.parse_response(reply.tokens)[0] for reply in (*old, *new)], judge)
            for prompt, old, new in zip(prompts, drawn_before, drawn_after, strict=True)
        )
    )
    return float(np.mean([standings.win_rate_G[1] for standings in standings_P]))


def win_rate(scores_before_PR: np.ndarray, scores_after_PR: np.ndarray) -> float:
    """Share of prompts whose mean score rose; a tie counts one half."""
    difference_P = scores_after_PR.mean(axis=1) - scores_before_PR.mean(axis=1)
    return float(np.where(difference_P > 0, 1.0, np.where(difference_P == 0, 0.5, 0.0)).mean())


def reply_win_rate(scores_before_PR: np.ndarray, scores_after_PR: np.ndarray) -> float:
    """Mean over the prompts of the share of pairs (a reply after, a reply before) that `after` wins; a tie is 1/2.

    The numbers of replies to a prompt may differ.
    """
    difference_PRR = scores_after_PR[:, :, None] - scores_before_PR[:, None, :]
    return float((np.sign(difference_PRR) + 1).mean() / 2)
