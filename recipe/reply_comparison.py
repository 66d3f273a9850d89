"""Replies of two policies to the same prompts, side by side, and which of them a scorer prefers.

Axes: _P prompt, _S sample of one policy for one prompt.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mint.seeds import derive_seed
from recipe.completers import MintTokenCompleter
from recipe.preference.clustered_share import ShareEstimate, clustered_share
from renderers import Message, ParseStatus, Renderer, get_text

if TYPE_CHECKING:
    import mint
    from envs.types import ConversationScorer


@dataclass(frozen=True)
class ComparedReply:
    """One reply as text; is_cut: it reached max_tokens without an end. score: None without a scorer."""

    text: str
    num_tokens: int
    is_cut: bool
    score: float | None = None


@dataclass(frozen=True)
class ComparedPrompt:
    """A prompt and the replies of both policies to it."""

    prompt: list[Message]
    a_S: list[ComparedReply]
    b_S: list[ComparedReply]


@dataclass(frozen=True)
class Contestant:
    """A policy and how replies are drawn from it."""

    client: mint.SamplingClient
    renderer: Renderer
    temperature: float
    max_tokens: int

    async def replies(self, prompt: list[Message], num_samples: int, seed: int) -> list[tuple[Message, ComparedReply]]:
        """Replies drawn together with whatever else is asked for at the same time."""
        complete = MintTokenCompleter(self.client, self.max_tokens, self.temperature)
        model_input, stop = self.renderer.build_generation_prompt(prompt), self.renderer.get_stop_sequences()
        drawn_S = await asyncio.gather(
            *(complete(model_input, stop, seed=derive_seed(seed, "compare", s)) for s in range(num_samples))
        )
        found: list[tuple[Message, ComparedReply]] = []
        for drawn in drawn_S:
            message, status = self.renderer.parse_response(drawn.tokens)
            found.append((message, ComparedReply(get_text(message), len(drawn.tokens), status is ParseStatus.CUT)))
        return found


async def compare_replies(
    a: Contestant,
    b: Contestant,
    prompts_P: Sequence[list[Message]],
    *,
    num_samples: int,
    seed: int,
    scorer: ConversationScorer | None = None,
) -> list[ComparedPrompt]:
    """Draw num_samples replies of each to each prompt, with the same seeds, and score them: all of it in one batch."""

    async def scored(contestant: Contestant, prompt: list[Message], i: int) -> list[ComparedReply]:
        replies_S = await contestant.replies(prompt, num_samples, derive_seed(seed, i))
        if scorer is None:
            return [reply for _, reply in replies_S]
        scores_S = await asyncio.gather(*(scorer.score([*prompt, message]) for message, _ in replies_S))
        return [
            ComparedReply(**{**asdict(reply), "score": score})
            for (_, reply), score in zip(replies_S, scores_S, strict=True)
        ]

    asked = [scored(each, prompt, i) for i, prompt in enumerate(prompts_P) for each in (a, b)]
    answers = await asyncio.gather(*asked)
    return [
        ComparedPrompt(prompt, a_S, b_S)
        for prompt, a_S, b_S in zip(prompts_P, answers[::2], answers[1::2], strict=True)
    ]


def win_rate_of_b(compared_P: Sequence[ComparedPrompt]) -> ShareEstimate:
    """How often a reply of B scores higher than one of A to the same prompt (every pair of them; a tie counts one
    half), with a 95 % interval that takes the pairs of one prompt as alike. Empty where nothing was scored."""
    hits, prompts = [], []
    for i, compared in enumerate(compared_P):
        for ours in compared.a_S:
            for theirs in compared.b_S:
                if ours.score is not None and theirs.score is not None:
                    hits.append(0.5 if ours.score == theirs.score else float(theirs.score > ours.score))
                    prompts.append(i)
    return clustered_share(hits, prompts)


def summary_of(replies: Sequence[ComparedReply]) -> dict[str, float | None]:
    """mean_score (None without a scorer), mean_tokens and share_cut of one policy's replies."""
    scores = [reply.score for reply in replies if reply.score is not None]
    return {
        "mean_score": math.fsum(scores) / len(scores) if scores else None,
        "mean_tokens": sum(reply.num_tokens for reply in replies) / len(replies),
        "share_cut": sum(reply.is_cut for reply in replies) / len(replies),
    }


def comparison_document(compared_P: Sequence[ComparedPrompt], name_a: str, name_b: str) -> dict[str, Any]:
    """Everything, as JSON: a, b {name, mean_score, mean_tokens, share_cut}, win_rate_of_b {value, low, high,
    num_pairs}, share_equal, prompts [{prompt, a, b}]."""
    pairs = [(x.text, y.text) for compared in compared_P for x, y in zip(compared.a_S, compared.b_S, strict=True)]
    return {
        "a": {"name": name_a, **summary_of([reply for compared in compared_P for reply in compared.a_S])},
        "b": {"name": name_b, **summary_of([reply for compared in compared_P for reply in compared.b_S])},
        "win_rate_of_b": asdict(win_rate_of_b(compared_P)),
        "share_equal": sum(x == y for x, y in pairs) / len(pairs),
        "prompts": [
            {
                "prompt": compared.prompt,
                "a": [asdict(reply) for reply in compared.a_S],
                "b": [asdict(reply) for reply in compared.b_S],
            }
            for compared in compared_P
        ],
    }
