"""Two policies on the same held-out prompts: gold score, who wins, and how far apart they are.

Axes: _P prompts, _R replies to one prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from envs.tournament import PairJudge, play_tournament
from mint import types
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.completers import MintTokenCompleter, TokensWithLogprobs

if TYPE_CHECKING:
    import mint
    from renderers import Message, Renderer

Score = Callable[[list["Message"]], Awaitable[float]]
"""A conversation that ends with the reply -> its score."""


@dataclass(frozen=True)
class PolicyComparison:
    """before, after: mean score over all replies. win_rate: share of prompts whose mean score is higher after (a tie
    counts one half). kl_per_reply, kl_per_token: KL(after || before) in nats, on replies drawn from after."""

    before: float
    after: float
    win_rate: float
    kl_per_reply: float
    kl_per_token: float


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
        _draw(before, prompts, renderer, replies_per_prompt, max_tokens, seed),
        _draw(after, prompts, renderer, replies_per_prompt, max_tokens, seed),
    )
    scores_before_PR, scores_after_PR = await asyncio.gather(
        _score(replies_before, prompts, renderer, score), _score(replies_after, prompts, renderer, score)
    )
    kl_per_reply, kl_per_token = await _kl(before, prompts, renderer, replies_after)
    return PolicyComparison(
        float(scores_before_PR.mean()),
        float(scores_after_PR.mean()),
        win_rate(scores_before_PR, scores_after_PR),
        kl_per_reply,
        kl_per_token,
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
        *(_draw(client, prompts, renderer, 1, max_tokens, seed) for client in (before, after))
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


async def _draw(
    client: mint.SamplingClient,
    prompts: Sequence[list[Message]],
    renderer: Renderer,
    replies_per_prompt: int,
    max_tokens: int,
    seed: int,
) -> list[list[TokensWithLogprobs]]:
    complete, stop = MintTokenCompleter(client, max_tokens), renderer.get_stop_sequences()
    flat = await asyncio.gather(
        *(
            complete(renderer.build_generation_prompt(prompt), stop, seed=derive_seed(seed, "comparison", i, r))
            for i, prompt in enumerate(prompts)
            for r in range(replies_per_prompt)
        )
    )
    return [flat[i * replies_per_prompt : (i + 1) * replies_per_prompt] for i in range(len(prompts))]


async def _score(
    replies_PR: list[list[TokensWithLogprobs]], prompts: Sequence[list[Message]], renderer: Renderer, score: Score
) -> np.ndarray:
    conversations = [
        [*prompt, renderer.parse_response(reply.tokens)[0]]
        for prompt, replies in zip(prompts, replies_PR, strict=True)
        for reply in replies
    ]
    scores = await asyncio.gather(*(score(conversation) for conversation in conversations))
    return np.asarray(scores, dtype=np.float64).reshape(len(prompts), -1)


async def _kl(
    reference: mint.SamplingClient,
    prompts: Sequence[list[Message]],
    renderer: Renderer,
    replies_PR: list[list[TokensWithLogprobs]],
) -> tuple[float, float]:
    """The mean of log p_after - log p_before over replies drawn from after: an unbiased estimate of the KL."""

    async def log_ratio(prompt_tokens: list[int], reply: TokensWithLogprobs) -> float:
        tokens = types.ModelInput.from_ints(prompt_tokens + reply.tokens)
        scored = await reference.compute_logprobs(tokens, prompt_logprobs_last_n=len(reply.tokens))
        reference_logprobs = np.asarray(scored[len(prompt_tokens) :], dtype=np.float64)
        return float(np.sum(reply.logprobs) - reference_logprobs.sum())

    ratios = await asyncio.gather(
        *(
            log_ratio(renderer.build_generation_prompt(prompt).to_ints(), reply)
            for prompt, replies in zip(prompts, replies_PR, strict=True)
            for reply in replies
        )
    )
    num_tokens = sum(len(reply.tokens) for replies in replies_PR for reply in replies)
    return float(np.mean(ratios)), float(np.sum(ratios)) / num_tokens
