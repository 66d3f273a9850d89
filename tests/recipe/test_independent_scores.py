"""What a yardstick can be: the gold rule, a second preference model, a judge against the replies of before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import mint
from envs.rlhf import ListRLHFDatasetBuilder
from envs.tournament import Verdict
from mint.errors import InvalidRequest
from recipe.independent_scores import (
    EndpointModelJudge,
    GoldRule,
    ModelJudge,
    ReferenceJudgeScore,
    ScoredPolicy,
    SecondPreferenceModel,
)
from recipe.preference import train as preference_train
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.disjoint_half import DisjointHalfBuilder
from recipe.preference.types import PairExampleConfig
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, get_renderer, get_text

PROMPT: list[Message] = [{"role": "user", "content": "Say something"}]
PAIRS = [{"prompt": f"Question {i}?", "chosen": "a good answer", "rejected": "a bad one"} for i in range(12)]


def saying(text: str) -> list[Message]:
    return [*PROMPT, {"role": "assistant", "content": text}]


@pytest.fixture
async def policy(service: mint.ServiceClient, tiny_model_dir: Path) -> ScoredPolicy:
    model = str(tiny_model_dir)
    builder = ListRLHFDatasetBuilder(
        model_name=model,
        renderer_name="role_colon",
        group_size=2,
        groups_per_batch=1,
        prompts=[PROMPT],
        gold=lambda conversation: float(len(get_text(conversation[-1]))),
    )
    client = await service.create_sampling_client_async(base_model=model)
    return ScoredPolicy(builder, get_renderer("role_colon", get_tokenizer(model)), client, max_tokens=8)


async def test_the_gold_rule_is_the_tasks_own(policy: ScoredPolicy, service: mint.ServiceClient) -> None:
    score = await GoldRule().open(policy, service)
    assert await score(saying("four")) == 4.0
    import chz

    without = ScoredPolicy(chz.replace(policy.builder, gold=None), policy.renderer, policy.start_client, 8)
    with pytest.raises(InvalidRequest, match="ListRLHFDatasetBuilder has no gold score; name a second preference"):
        await GoldRule().open(without, service)


async def test_a_second_preference_model_is_that_of_a_finished_stage(
    policy: ScoredPolicy, service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    config = preference_train.Config(
        log_path=str(tmp_path / "second"),
        model_name=str(tiny_model_dir),
        renderer_name="role_colon",
        dataset_builder=ListPreferenceDatasetBuilder(pairs=PAIRS, examples=PairExampleConfig(batch_size=4)),
        lora_rank=4,
        max_steps=1,
    )
    trained = await preference_train.main(config, service)
    score = await SecondPreferenceModel(log_path=str(tmp_path / "second")).open(policy, service)
    conversation = saying("a good answer")
    assert await score(conversation) == await trained.scorer.build(service).score(conversation)
    with pytest.raises(InvalidRequest, match="no finished preference stage"):
        await SecondPreferenceModel(log_path=str(tmp_path / "nothing")).open(policy, service)


def test_the_halves_share_no_prompt_and_leave_none_out() -> None:
    source = ListPreferenceDatasetBuilder(pairs=PAIRS, held_out_pairs=[{**PAIRS[0], "prompt": "Held out?"}])
    halves = [DisjointHalfBuilder(source=source, half=half)() for half in (0, 1)]
    prompts = [{get_text(pair.prompt[0]) for pair in half.train} for half in halves]
    assert prompts[0] and prompts[1] and not prompts[0] & prompts[1]
    assert prompts[0] | prompts[1] == {pair["prompt"] for pair in PAIRS}
    assert list(halves[0].held_out) == list(halves[1].held_out) and len(halves[0].held_out) == 1


class LikesWhatItReadsFirst:
    """0.2 more for the first reply; apart from that the longer one is better. Keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def compare(self, prompt: list[Message], first: Message, second: Message) -> Verdict:
        self.asked.append((get_text(first), get_text(second)))
        return Verdict(0.9 if len(get_text(first)) > len(get_text(second)) else 0.3)


async def test_a_judge_compares_with_the_reply_of_before_in_both_orders(policy: ScoredPolicy) -> None:
    judge = LikesWhatItReadsFirst()
    score = ReferenceJudgeScore(judge, policy)
    long, short = await asyncio.gather(score(saying("x" * 200)), score(saying("")))
    # Better: 0.9 read first, and 0.3 for the other when read second; worse: the other way round.
    assert long == pytest.approx((0.9 + 0.7) / 2) and short == pytest.approx((0.3 + 0.1) / 2)
    references = {text for pair in judge.asked for text in pair} - {"x" * 200, ""}
    assert len(references) == 1 and len(judge.asked) == 4
    reference = references.pop()
    assert await score(saying(reference)) == 0.5 and len(judge.asked) == 4
    assert await ReferenceJudgeScore(LikesWhatItReadsFirst(), policy)(saying(reference)) == 0.5


async def test_judges_are_made_from_their_settings(
    policy: ScoredPolicy, service: mint.ServiceClient, tokenizer: Any
) -> None:
    score = await ModelJudge(model_name="mint-tiny").open(policy, service)
    assert 0 < await score(saying("water it")) < 1
    endpoint = EndpointModelJudge(base_url="http://localhost:9/v1", model="any")
    pytest.importorskip("openai")
    assert isinstance(await endpoint.open(policy, service), ReferenceJudgeScore)
