"""What a yardstick can be: a gold rule, a preference model that the policy does not learn from, or a judge.

Each makes a score of conversations that end with a reply; the higher the better, on whatever scale.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import chz

from envs.judges import DEFAULT_RUBRIC, EndpointJudge, SamplingClientJudge
from envs.rlhf import GoldScore, RLHFDatasetBuilder
from envs.tournament import PairJudge
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.completers import MintMessageCompleter
from recipe.model_info import resolve_renderer_name
from recipe.preference.scorer import ScorerSpec
from recipe.reply_sampling import Score
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, Renderer, get_renderer

if TYPE_CHECKING:
    import mint


@dataclass(frozen=True)
class ScoredPolicy:
    """Whose replies are to be scored: the prompts' builder, their renderer, the policy it all started from."""

    builder: RLHFDatasetBuilder
    renderer: Renderer
    start_client: mint.SamplingClient
    max_tokens: int


@chz.chz(typecheck=True)
class IndependentScore(ABC):
    """Something other than the reward, to rate replies by."""

    @abstractmethod
    async def open(self, policy: ScoredPolicy, service: mint.ServiceClient) -> Score:
        """The score. InvalidRequest where it cannot be had."""


@chz.chz(typecheck=True)
class GoldRule(IndependentScore):
    """The task's own gold score (`RLHFDatasetBuilder.gold_score`)."""

    async def open(self, policy: ScoredPolicy, service: mint.ServiceClient) -> Score:
        """See IndependentScore."""
        gold = policy.builder.gold_score()
        if gold is None:
            raise InvalidRequest(
                f"yardstick.independent=GoldRule, but {type(policy.builder).__name__} has no gold score; "
                "name a second preference model or a judge"
            )
        return gold_as_score(gold)


@chz.chz(typecheck=True)
class SecondPreferenceModel(IndependentScore):
    """The preference model of a finished stage, which should have learned from other pairs than the reward did."""

    # Folder of that stage.
    log_path: str

    async def open(self, policy: ScoredPolicy, service: mint.ServiceClient) -> Score:
        """See IndependentScore."""
        return ScorerSpec.from_log_path(self.log_path).build(service).score


@chz.chz(typecheck=True)
class ModelJudge(IndependentScore):
    """A model that reads two replies; see ReferenceJudgeScore for what it makes of one."""

    # Base model of the judge.
    model_name: str
    # mint:// path of its sampler weights; None: the base model as it is.
    sampler_path: str | None = None
    # None: the one recommended for the model.
    renderer_name: str | None = None
    rubric: str = DEFAULT_RUBRIC

    async def open(self, policy: ScoredPolicy, service: mint.ServiceClient) -> Score:
        """See IndependentScore."""
        client = await service.create_sampling_client_async(
            model_path=self.sampler_path, base_model=None if self.sampler_path else self.model_name
        )
        renderer_name = resolve_renderer_name(self.renderer_name, self.model_name)
        renderer = get_renderer(renderer_name, get_tokenizer(self.model_name))
        return ReferenceJudgeScore(SamplingClientJudge(client, renderer, self.rubric), policy)


@chz.chz(typecheck=True)
class EndpointModelJudge(IndependentScore):
    """A model behind an OpenAI-compatible endpoint, its key in OPENAI_API_KEY; see EndpointJudge."""

    base_url: str
    model: str
    rubric: str = DEFAULT_RUBRIC
    max_tokens: int = 8
    asks_logprobs: bool = True

    async def open(self, policy: ScoredPolicy, service: mint.ServiceClient) -> Score:
        """See IndependentScore."""
        judge = EndpointJudge(
            self.base_url,
            self.model,
            rubric=self.rubric,
            max_tokens=self.max_tokens,
            asks_logprobs=self.asks_logprobs,
        )
        return ReferenceJudgeScore(judge, policy)


class ReferenceJudgeScore:
    """Probability that a judge prefers the reply to the one that the policy gave to the same prompt before training.

    The mean of both orders, so that a judge who likes what it reads first counts for nothing; equal replies score one
    half. The reply of before is drawn once for each prompt.
    """

    def __init__(self, judge: PairJudge, policy: ScoredPolicy) -> None:
        self._judge = judge
        self._complete = MintMessageCompleter(policy.start_client, policy.renderer, policy.max_tokens)
        self._reference_replies: dict[str, asyncio.Task[Message]] = {}

    async def __call__(self, conversation: list[Message]) -> float:
        """The score of the conversation's last message."""
        prompt, reply = conversation[:-1], conversation[-1]
        reference = await self._reference_reply(prompt)
        if reference == reply:
            return 0.5
        first, second = await asyncio.gather(
            self._judge.compare(prompt, reply, reference), self._judge.compare(prompt, reference, reply)
        )
        return (first.first_is_better + 1.0 - second.first_is_better) / 2

    async def _reference_reply(self, prompt: Sequence[Message]) -> Message:
        key = json.dumps([dict(message) for message in prompt], sort_keys=True)
        if key not in self._reference_replies:
            drawing = self._complete(list(prompt), seed=derive_seed("yardstick reference", key))
            self._reference_replies[key] = asyncio.create_task(drawing)
        return await self._reference_replies[key]


def gold_as_score(gold: GoldScore) -> Score:
    """A gold rule as a score."""

    async def score(conversation: list[Message]) -> float:
        return float(gold(conversation))

    return score
