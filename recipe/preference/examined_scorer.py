"""A scorer with what its report card needs to know besides: how long a reply may be, and what a score is worth."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envs.types import ConversationScorer
from mint.errors import InvalidRequest
from recipe.model_info import get_context_length
from recipe.preference.judge_wording import NO_WORDING, reworded
from recipe.preference.readouts import Readout
from recipe.preference.scorer import ScorerSpec
from recipe.preference.types import PreferencePair, prompt_key
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, get_renderer, get_text

if TYPE_CHECKING:
    import mint

Fits = Callable[[Sequence[Message]], bool]


def _anything(conversation: Sequence[Message]) -> bool:
    return True


@dataclass(frozen=True)
class ExaminedScorer:
    """A scorer to examine. With the defaults: any `ConversationScorer`, whose scores are taken as log-odds.

    raw_per_score: what a difference of 1 between two scores is in raw rewards. temperature: raw rewards over it are
    log-odds. reworded: the same model asked in other words, by question; where there is none, not_reworded_because
    says why.
    """

    scorer: ConversationScorer
    raw_per_score: float = 1.0
    temperature: float = 1.0
    reworded: Mapping[str, ConversationScorer] = field(default_factory=dict)
    not_reworded_because: str = NO_WORDING
    fits_one: Fits = _anything
    fits_one_reworded: Fits = _anything

    @property
    def log_odds_per_score(self) -> float:
        """What a difference of 1 between two scores is in log-odds of the better reply."""
        return self.raw_per_score / self.temperature

    def fits(self, *conversations: Sequence[Message]) -> bool:
        """Whether the model can read every one of them."""
        return all(self.fits_one(conversation) for conversation in conversations)

    def fits_reworded(self, pair: PreferencePair) -> bool:
        """Whether the model can read both replies with every wording of its question."""
        return self.fits_one_reworded(pair.chosen_conversation) and self.fits_one_reworded(pair.rejected_conversation)

    @classmethod
    async def of(
        cls,
        spec: ScorerSpec,
        service: mint.ServiceClient,
        judge_wordings: Sequence[str] = (),
        known_to_fit: Sequence[PreferencePair] = (),
    ) -> ExaminedScorer:
        """The scorer of a finished preference stage.

        known_to_fit: pairs that were scored before. Where a remote service does not say how much its model can read,
        it is taken to be the longest of these; without any, everything is taken to fit.
        """
        other_readouts = reworded(spec.readout, judge_wordings)
        limit = await get_context_length(service, spec.model_name) or _longest(spec, known_to_fit)
        return cls(
            spec.build(service),
            raw_per_score=spec.scale.std,
            temperature=spec.temperature,
            reworded={
                question: dataclasses.replace(spec, readout=readout).build(service)
                for question, readout in other_readouts.items()
            },
            fits_one=_fits(spec, [spec.readout], limit),
            fits_one_reworded=_fits(spec, list(other_readouts.values()), limit),
        )


def _longest(spec: ScorerSpec, pairs: Sequence[PreferencePair]) -> int | None:
    """Tokens of the longest reply of these pairs, its prompt included; None where there are none."""
    renderer = get_renderer(spec.renderer_name, get_tokenizer(spec.model_name))
    conversations = [one for pair in pairs for one in (pair.chosen_conversation, pair.rejected_conversation)]
    return max((len(spec.readout.render(one, renderer).tokens) for one in conversations), default=None)


def _fits(spec: ScorerSpec, readouts: Sequence[Readout], limit: int | None) -> Fits:
    if limit is None:
        return _anything
    renderer = get_renderer(spec.renderer_name, get_tokenizer(spec.model_name))

    def fits(conversation: Sequence[Message]) -> bool:
        return all(len(readout.render(conversation, renderer).tokens) <= limit for readout in readouts)

    return fits


async def scores_by_conversation(
    scorer: ConversationScorer, conversations: Sequence[list[Message]]
) -> dict[str, float]:
    """`prompt_key` -> score, all computed together, equal conversations once. InvalidRequest for a score that is no
    finite number."""
    by_key = {prompt_key(conversation): conversation for conversation in conversations}
    scores = await asyncio.gather(*(scorer.score(conversation) for conversation in by_key.values()))
    for conversation, score in zip(by_key.values(), scores, strict=True):
        if not math.isfinite(score):
            raise InvalidRequest(
                f"the scorer gives {score} to the reply {get_text(conversation[-1])[:60]!r}: a score must be a finite "
                "number"
            )
    return dict(zip(by_key, scores, strict=True))
