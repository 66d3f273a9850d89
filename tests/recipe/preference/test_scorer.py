"""Scores from a snapshot of a preference model on the embedded engine."""

from __future__ import annotations

import asyncio
import math
import pickle
from pathlib import Path

import pytest

import mint
from mint.errors import InvalidRequest
from recipe.checkpoint_utils import CheckpointRecord
from recipe.preference.losses import pair_statistics
from recipe.preference.pair_evaluation import length_only_accuracy, reward_pairs
from recipe.preference.readouts import Readout, SequenceLogprob, Verdict, VerdictAndLikelihood
from recipe.preference.rendered_pairs import PairBatch, render_pairs
from recipe.preference.scorer import PreferenceScorer, RewardScale, ScorerSpec, target_logprobs
from recipe.preference.types import PreferencePair
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, Renderer, get_renderer

READOUTS = [
    Verdict(),
    VerdictAndLikelihood(),
    SequenceLogprob(),
    SequenceLogprob(is_per_token=True),
    SequenceLogprob(is_relative_to_base=True),
]


def make_pairs(num: int = 5) -> list[PreferencePair]:
    return [
        PreferencePair(
            prompt=[{"role": "user", "content": f"Tell me {i} things about tea."}],
            chosen={"role": "assistant", "content": "It is " + "very " * i + "hot."},
            rejected={"role": "assistant", "content": "No " * (7 - i) + "idea."},
        )
        for i in range(num)
    ]


@pytest.fixture
def renderer(tiny_model_dir: Path) -> Renderer:
    return get_renderer("qwen3_disable_thinking", get_tokenizer(str(tiny_model_dir)))


async def _trained_client(service: mint.ServiceClient, model: Path, renderer: Renderer) -> mint.TrainingClient:
    """An adapter moved away from the base model by a few steps, so that base and adapter differ."""
    client = await service.create_lora_training_client_async(str(model), rank=4, seed=1)
    batch = PairBatch.of(render_pairs(make_pairs(), SequenceLogprob(), renderer).pairs)
    for _ in range(3):
        await client.forward_backward(batch.datums_D, "cross_entropy")
        await client.optim_step(mint.AdamParams(learning_rate=0.01))
    return client


@pytest.mark.parametrize("readout", READOUTS)
async def test_training_and_scoring_read_the_same_rewards(
    service: mint.ServiceClient, tiny_model_dir: Path, renderer: Renderer, readout: Readout
) -> None:
    client = await _trained_client(service, tiny_model_dir, renderer)
    pairs = render_pairs(make_pairs(), readout, renderer).pairs
    batch = PairBatch.of(pairs)
    base_client = None
    base_logprobs_D = None
    if readout.subtracts_base:
        base_client = await service.create_sampling_client_async(base_model=str(tiny_model_dir))
        base_logprobs_D = [await target_logprobs(base_client, reply) for reply in batch.replies_D]
    seen: list[list[float]] = []

    def loss_fn(data, logprobs_D):
        chosen_N, rejected_N = batch.rewards(readout, logprobs_D, base_logprobs_D)
        seen.extend([chosen_N.tolist(), rejected_N.tolist()])
        return (chosen_N - rejected_N).sum(), {}

    await client.forward_backward_custom(batch.datums_D, loss_fn)
    scorer = PreferenceScorer(
        await client.save_weights_and_get_sampling_client_async(), renderer, readout, base_client=base_client
    )
    rewards = await reward_pairs(scorer, pairs)
    assert rewards.chosen_N.tolist() == pytest.approx(seen[0], abs=1e-4)
    assert rewards.rejected_N.tolist() == pytest.approx(seen[1], abs=1e-4)
    assert len(set(seen[0])) == len(pairs), "rewards that are all alike would agree without proving anything"


async def test_verdict_is_the_log_odds_of_yes(
    service: mint.ServiceClient, tiny_model_dir: Path, renderer: Renderer
) -> None:
    client = await service.create_sampling_client_async(base_model=str(tiny_model_dir))
    conversation = make_pairs()[0].chosen_conversation
    readout = Verdict()
    tokens = readout.render(conversation, renderer).tokens
    (logprob,) = (await client.compute_logprobs(mint.ModelInput.from_ints(tokens)))[-1:]
    assert logprob is not None
    p = math.exp(logprob)
    scorer = PreferenceScorer(client, renderer, readout)
    assert await scorer.score(conversation) == pytest.approx(math.log(p) - math.log(1 - p), rel=1e-4)


async def test_scores_do_not_depend_on_what_is_scored_beside_them(
    service: mint.ServiceClient, tiny_model_dir: Path, renderer: Renderer
) -> None:
    client = await service.create_sampling_client_async(base_model=str(tiny_model_dir))
    scorer = PreferenceScorer(client, renderer, Verdict())
    conversations = [pair.chosen_conversation for pair in make_pairs()]
    together = await scorer.score_many(conversations)
    alone = [await scorer.score(conversation) for conversation in conversations]
    assert together == pytest.approx(alone, abs=1e-4)
    assert await scorer.score_many(conversations[::-1]) == pytest.approx(together[::-1], abs=1e-4)


async def test_swapping_the_replies_negates_the_margin(
    service: mint.ServiceClient, tiny_model_dir: Path, renderer: Renderer
) -> None:
    client = await service.create_sampling_client_async(base_model=str(tiny_model_dir))
    scorer = PreferenceScorer(client, renderer, Verdict())
    pairs = make_pairs()
    straight, swapped = [
        await reward_pairs(scorer, render_pairs(side, Verdict(), renderer).pairs)
        for side in (pairs, [pair.swapped() for pair in pairs])
    ]
    margin = pair_statistics(straight.chosen_N, straight.rejected_N).mean_margin
    assert abs(margin) > 1e-3
    assert pair_statistics(swapped.chosen_N, swapped.rejected_N).mean_margin == pytest.approx(-margin, abs=1e-4)


async def test_only_what_is_visible_is_judged(
    service: mint.ServiceClient, tiny_model_dir: Path, renderer: Renderer
) -> None:
    client = await service.create_sampling_client_async(base_model=str(tiny_model_dir))
    scorer = PreferenceScorer(client, renderer, Verdict())
    question: Message = {"role": "user", "content": "Tea?"}
    plain: Message = {"role": "assistant", "content": "Yes."}
    thought: Message = {"role": "assistant", "content": "Yes.", "thinking": "They asked for tea."}
    assert await scorer.score([question, thought]) == await scorer.score([question, plain])


async def test_a_pickled_scorer_gives_the_same_scores(
    service: mint.ServiceClient, tiny_model_dir: Path, renderer: Renderer
) -> None:
    client = await _trained_client(service, tiny_model_dir, renderer)
    snapshot = await client.save_weights_and_get_sampling_client_async()
    scorer = PreferenceScorer(snapshot, renderer, Verdict(), scale=RewardScale(mean=0.5, std=2.0))
    conversation = make_pairs()[2].chosen_conversation
    copy = await asyncio.to_thread(lambda: pickle.loads(pickle.dumps(scorer)))
    assert await copy.score(conversation) == pytest.approx(await scorer.score(conversation), abs=1e-5)


async def test_the_scale_is_applied_to_scores_and_not_to_raw_rewards(
    service: mint.ServiceClient, tiny_model_dir: Path, renderer: Renderer
) -> None:
    client = await service.create_sampling_client_async(base_model=str(tiny_model_dir))
    scorer = PreferenceScorer(client, renderer, Verdict(), scale=RewardScale(mean=1.5, std=0.5))
    conversation = make_pairs()[0].chosen_conversation
    raw = await scorer.raw_reward(conversation)
    assert await scorer.score(conversation) == pytest.approx((raw - 1.5) / 0.5)


def test_a_scale_standardises_the_rewards_it_was_measured_on() -> None:
    scale = RewardScale.of([1.0, 3.0, 5.0, 7.0])
    assert (scale.mean, scale.std) == (4.0, pytest.approx(math.sqrt(5)))
    assert [scale.apply(reward) for reward in (4.0, 4.0 + math.sqrt(5))] == pytest.approx([0.0, 1.0])


def test_rewards_that_are_all_alike_keep_their_size() -> None:
    assert RewardScale.of([2.0, 2.0, 2.0]) == RewardScale(mean=2.0, std=1.0)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_scale_is_refused(std: float) -> None:
    with pytest.raises(InvalidRequest, match="both must be finite and std above 0"):
        RewardScale(std=std)


async def test_a_base_client_is_asked_for_exactly_where_it_is_used(
    service: mint.ServiceClient, tiny_model_dir: Path, renderer: Renderer
) -> None:
    client = await service.create_sampling_client_async(base_model=str(tiny_model_dir))
    with pytest.raises(InvalidRequest, match="'sequence_logprob' with these settings needs a base_client"):
        PreferenceScorer(client, renderer, SequenceLogprob(is_relative_to_base=True))
    with pytest.raises(InvalidRequest, match="'verdict' with these settings does not use a base_client"):
        PreferenceScorer(client, renderer, Verdict(), base_client=client)


def test_a_record_of_another_stage_has_no_scorer() -> None:
    with pytest.raises(InvalidRequest, match="checkpoint 'final' is not the final one of a preference model"):
        ScorerSpec.from_record(CheckpointRecord(name="final", step=3, sampler_path="mint://a/sampler_weights/final"))


def test_a_record_from_before_temperatures_and_ensembles_can_be_read() -> None:
    record = CheckpointRecord(
        name="final",
        step=3,
        sampler_path="mint://a/sampler_weights/final",
        base_model="m",
        renderer="role_colon",
        loop_state={"scorer": {"readout": Verdict().to_json(), "scale": {"mean": 1.0, "std": 2.0}}},
    )
    spec = ScorerSpec.from_record(record)
    assert spec == ScorerSpec("mint://a/sampler_weights/final", "m", "role_colon", Verdict(), RewardScale(1.0, 2.0))
    assert (spec.temperature, spec.members) == (1.0, ())


def test_a_folder_without_a_finished_stage_has_no_scorer(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds no finished preference stage; give the log_path of one"):
        ScorerSpec.from_log_path(tmp_path)


def test_length_only_accuracy_by_hand() -> None:
    def pair(chosen: str, rejected: str) -> PreferencePair:
        return PreferencePair(
            [{"role": "user", "content": "q"}],
            {"role": "assistant", "content": chosen},
            {"role": "assistant", "content": rejected},
        )

    assert (
        length_only_accuracy([pair("long", "no"), pair("a", "long"), pair("same", "size"), pair("ab", "c")]) == 2.5 / 4
    )
