"""Replies drawn from a policy to given prompts, and how far they are from another policy's.

Axes: _P prompts, _R replies to one prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mint import types
from mint.seeds import derive_seed
from recipe.completers import MintTokenCompleter, TokensWithLogprobs

if TYPE_CHECKING:
    import mint
    from renderers import Message, Renderer

Score = Callable[[list["Message"]], Awaitable[float]]
"""A conversation that ends with the reply -> its score."""


async def draw_replies(
    client: mint.SamplingClient,
    prompts: Sequence[list[Message]],
    renderer: Renderer,
    replies_per_prompt: int,
    max_tokens: int,
    *seed: int | str,
) -> list[list[TokensWithLogprobs]]:
    """replies_PR at temperature 1. The seed of each follows from `seed` and its place alone."""
    complete, stop = MintTokenCompleter(client, max_tokens), renderer.get_stop_sequences()
    flat = await asyncio.gather(
        *(
            complete(renderer.build_generation_prompt(prompt), stop, seed=derive_seed(*seed, i, r))
            for i, prompt in enumerate(prompts)
            for r in range(replies_per_prompt)
        )
    )
    return [flat[i * replies_per_prompt : (i + 1) * replies_per_prompt] for i in range(len(prompts))]


async def score_replies(
    replies_PR: Sequence[Sequence[TokensWithLogprobs]],
    prompts: Sequence[list[Message]],
    renderer: Renderer,
    score: Score,
    failed_reply_score: float | None = None,
) -> np.ndarray:
    """Shape (P, R): the score of every reply.

    failed_reply_score: what a reply gets that was cut off or breaks the format, unseen by `score`, as in training.
    None: such a reply is scored as it reads.
    """

    async def rated(prompt: list[Message], reply: TokensWithLogprobs) -> float:
        message, status = renderer.parse_response(reply.tokens)
        if failed_reply_score is not None and (reply.stop_reason == "length" or not status):
            return failed_reply_score
        return await score([*prompt, message])

    scores = await asyncio.gather(
        *(rated(prompt, reply) for prompt, replies in zip(prompts, replies_PR, strict=True) for reply in replies)
    )
    return np.asarray(scores, dtype=np.float64).reshape(len(prompts), -1)


async def log_ratios(
    reference: mint.SamplingClient,
    prompts: Sequence[list[Message]],
    renderer: Renderer,
    replies_PR: Sequence[Sequence[TokensWithLogprobs]],
) -> np.ndarray:
    """Shape (P, R): log π(reply) − log π_ref(reply) in nats, π being the policy that the replies were drawn from.

    Their mean is an unbiased estimate of KL(π || π_ref) per reply.
    """

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
    return np.asarray(ratios, dtype=np.float64).reshape(len(prompts), -1)
