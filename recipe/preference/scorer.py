"""Rewards from a trained preference model, or from several of them: a conversation in, one number out.

Axes: _T target tokens of one conversation, _M member of an ensemble.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mint.errors import InvalidRequest
from recipe.checkpoint_utils import CheckpointRecord, get_last_checkpoint
from recipe.preference.readouts import Readout, RenderedReply, readout_from_json
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, Renderer, get_renderer

if TYPE_CHECKING:
    import mint

# Where a checkpoint record's loop_state keeps what `ScorerSpec.to_json` gives.
SCORER_KEY = "scorer"


@dataclass(frozen=True)
class RewardScale:
    """Puts raw rewards on a common scale: (raw − mean) / std.

    The training stage measures both on held-out replies, so a score of 1 is one standard deviation above the average
    reply whatever the readout and however confident the model. Ranking and Bradley-Terry margins up to that factor stay
    the same; what changes is that the RL stage can add penalties and a KL term of known size.
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std > 0):
            raise InvalidRequest(f"reward scale mean={self.mean}, std={self.std}: both must be finite and std above 0")

    @classmethod
    def of(cls, raw_rewards: Sequence[float]) -> RewardScale:
        """The scale on which these rewards have mean 0 and standard deviation 1; their spread must not be zero."""
        rewards = torch.tensor(raw_rewards, dtype=torch.float64)
        std = rewards.std(unbiased=False).item()
        # A model that cannot tell two replies apart has no scale; dividing by rounding noise would invent one.
        return cls(rewards.mean().item(), std if std > 1e-6 else 1.0)

    def apply(self, raw_reward: float) -> float:
        """The raw reward on this scale."""
        return (raw_reward - self.mean) / self.std


class PreferenceScorer:
    """Scores replies with a snapshot of a preference model. Picklable; calls run concurrently and share forwards."""

    def __init__(
        self,
        sampling_client: mint.SamplingClient,
        renderer: Renderer,
        readout: Readout,
        *,
        base_client: mint.SamplingClient | None = None,
        scale: RewardScale | None = None,
        temperature: float = 1.0,
    ) -> None:
        """base_client: the base model, exactly where the readout subtracts its logprobs. scale: None is raw rewards.
        temperature: of raw margins, for `probability`; rewards do not depend on it."""
        if readout.subtracts_base != (base_client is not None):
            wanted = "needs" if readout.subtracts_base else "does not use"
            raise InvalidRequest(f"readout {readout.name!r} with these settings {wanted} a base_client")
        self.sampling_client = sampling_client
        self.base_client = base_client
        self.renderer = renderer
        self.readout = readout
        self.scale = scale or RewardScale()
        self.temperature = temperature
        # What it was read from, so that a stage rewarded by it can tell whether it has changed.
        self.checkpoint_paths: list[str] = []

    @classmethod
    def from_checkpoint(
        cls,
        service: mint.ServiceClient,
        sampler_path: str,
        *,
        model_name: str,
        renderer_name: str,
        readout: Readout,
        scale: RewardScale | None = None,
        temperature: float = 1.0,
    ) -> PreferenceScorer:
        """The scorer with the weights at `sampler_path` (a mint:// path of sampler weights)."""
        scorer = cls(
            service.create_sampling_client(model_path=sampler_path),
            get_renderer(renderer_name, get_tokenizer(model_name)),
            readout,
            base_client=service.create_sampling_client(base_model=model_name) if readout.subtracts_base else None,
            scale=scale,
            temperature=temperature,
        )
        scorer.checkpoint_paths = [sampler_path]
        return scorer

    async def score(self, conversation: Sequence[Message]) -> float:
        """The scaled reward of the conversation's last message, an assistant reply."""
        return self.scale.apply(await self.raw_reward(conversation))

    async def score_many(self, conversations: Sequence[Sequence[Message]]) -> list[float]:
        """The scaled reward of each conversation's last message, in order, computed together."""
        return list(await asyncio.gather(*(self.score(conversation) for conversation in conversations)))

    def probability(self, score: float, other_score: float) -> float:
        """That a reply with `score` is preferred to one with `other_score`, both as `score` gives them: calibrated."""
        return torch.sigmoid(torch.tensor((score - other_score) * self.scale.std / self.temperature)).item()

    async def raw_reward(self, conversation: Sequence[Message]) -> float:
        """What the readout says, before scaling: the r of the Bradley-Terry model."""
        return await self.raw_reward_of_rendered(self.readout.render(conversation, self.renderer))

    async def raw_reward_of_rendered(self, reply: RenderedReply) -> float:
        """The raw reward of a reply that is already tokens."""
        clients = [self.sampling_client] if self.base_client is None else [self.sampling_client, self.base_client]
        logprobs_T, *base = await asyncio.gather(*(target_logprobs(client, reply) for client in clients))
        return self.readout.reward(logprobs_T, reply.weights_T, base[0] if base else None).item()


async def target_logprobs(client: mint.SamplingClient, reply: RenderedReply) -> torch.Tensor:
    """logprobs_T of the reply's target tokens, float64; those before the first weighted one are not asked for and 0."""
    logprobs = await client.compute_logprobs(reply.model_input(), prompt_logprobs_last_n=reply.num_scored)
    assert len(logprobs) == len(reply.tokens), f"{len(logprobs)} logprobs for {len(reply.tokens)} tokens"
    scored = logprobs[len(logprobs) - reply.num_scored :]
    logprobs_T = torch.zeros(len(reply.tokens) - 1, dtype=torch.float64)
    logprobs_T[len(logprobs_T) - reply.num_scored :] = torch.tensor(scored, dtype=torch.float64)
    return logprobs_T


class EnsembleScorer(PreferenceScorer):
    """Several preference models as one that trusts a reply as far as they agree: mean − std_coef·std over the members.

    Each member is put on its own scale first, so that none counts more for being more confident. std is that of the
    members themselves (divided by their number). Members share readout and renderer; their requests go out together.
    Raw rewards are in standard deviations of a member; `scale` is that of their combination.
    """

    def __init__(
        self,
        members: Sequence[PreferenceScorer],
        std_coef: float,
        *,
        scale: RewardScale | None = None,
        temperature: float = 1.0,
    ) -> None:
        first = members[0]
        super().__init__(
            first.sampling_client,
            first.renderer,
            first.readout,
            base_client=first.base_client,
            scale=scale,
            temperature=temperature,
        )
        self.members = list(members)
        self.std_coef = std_coef
        self.checkpoint_paths = [path for member in members for path in member.checkpoint_paths]

    async def raw_reward_of_rendered(self, reply: RenderedReply) -> float:
        """mean − std_coef·std of the members' scaled rewards."""
        raw_M = await asyncio.gather(*(member.raw_reward_of_rendered(reply) for member in self.members))
        scores_M = [member.scale.apply(raw) for member, raw in zip(self.members, raw_M, strict=True)]
        return conservative_mean(torch.tensor(scores_M, dtype=torch.float64), self.std_coef).item()


def conservative_mean(scores_M: torch.Tensor, std_coef: float) -> torch.Tensor:
    """mean − std_coef·std over the first axis, the members; std with 1/M."""
    return scores_M.mean(dim=0) - std_coef * scores_M.std(dim=0, unbiased=False)


@dataclass(frozen=True)
class ScorerSpec:
    """Everything needed to make a scorer again, in this process or another; kept in the final checkpoint's record.

    members: those of an ensemble, of which sampler_path is the first one's and `readout` replaces their own; () for a
    single model. std_coef: of an ensemble.
    """

    sampler_path: str
    model_name: str
    renderer_name: str
    readout: Readout
    scale: RewardScale
    temperature: float = 1.0
    members: tuple[ScorerSpec, ...] = ()
    std_coef: float = 0.0

    def build(self, service: mint.ServiceClient) -> PreferenceScorer:
        """The scorer."""
        if self.members:
            members = [replace(member, readout=self.readout).build(service) for member in self.members]
            return EnsembleScorer(members, self.std_coef, scale=self.scale, temperature=self.temperature)
        return PreferenceScorer.from_checkpoint(
            service,
            self.sampler_path,
            model_name=self.model_name,
            renderer_name=self.renderer_name,
            readout=self.readout,
            scale=self.scale,
            temperature=self.temperature,
        )

    @classmethod
    def from_record(cls, record: CheckpointRecord) -> ScorerSpec:
        """The spec in a final checkpoint's record. InvalidRequest for a record of anything else."""
        saved: dict[str, Any] | None = record.loop_state.get(SCORER_KEY)
        if saved is None or record.sampler_path is None or record.base_model is None or record.renderer is None:
            raise InvalidRequest(
                f"checkpoint {record.name!r} is not the final one of a preference model: it has no scorer; "
                "give the log_path of a finished preference stage"
            )
        return cls._from_json(saved, record.sampler_path, record.base_model, record.renderer)

    @classmethod
    def from_log_path(cls, log_path: str | Path) -> ScorerSpec:
        """The spec of the finished stage in this folder, ensemble or not. InvalidRequest where there is none."""
        record = get_last_checkpoint(log_path, "sampler_path")
        if record is None or not record.is_final:
            raise InvalidRequest(
                f"{str(log_path)!r} holds no finished preference stage; give the log_path of one, or start it again to "
                "finish it"
            )
        return cls.from_record(record)

    def to_json(self) -> dict[str, Any]:
        """What a record's loop_state holds under SCORER_KEY; checkpoint, model and renderer are the record's own."""
        document = scorer_state(self.readout, self.scale, self.temperature)
        if self.members:
            document["std_coef"] = self.std_coef
            document["members"] = [{"sampler_path": one.sampler_path, **one.to_json()} for one in self.members]
        return document

    @classmethod
    def _from_json(cls, document: dict[str, Any], sampler_path: str, model_name: str, renderer_name: str) -> ScorerSpec:
        return cls(
            sampler_path=sampler_path,
            model_name=model_name,
            renderer_name=renderer_name,
            readout=readout_from_json(document["readout"]),
            scale=RewardScale(**document["scale"]),
            temperature=document.get("temperature", 1.0),
            members=tuple(
                cls._from_json(member, member["sampler_path"], model_name, renderer_name)
                for member in document.get("members", ())
            ),
            std_coef=document.get("std_coef", 0.0),
        )


def scorer_state(readout: Readout, scale: RewardScale, temperature: float = 1.0) -> dict[str, Any]:
    """What a single model's record has in its loop_state under SCORER_KEY; a temperature of 1 is left out."""
    document: dict[str, Any] = {"readout": readout.to_json(), "scale": {"mean": scale.mean, "std": scale.std}}
    return document if temperature == 1.0 else {**document, "temperature": temperature}
