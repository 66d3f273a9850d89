"""The preference environment: where rewards come from, what is measured, and in which order prompts are met."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import (
    ListRLHFDatasetBuilder,
    RLHFDataset,
    RLHFEnvGroupBuilder,
    TokensWithLogprobs,
    Trajectory,
    Transition,
)
from envs.rule_reward import rule_based_reward
from mint import types
from mint.errors import InvalidRequest
from renderers import Message, Renderer, get_text

PROMPT: list[Message] = [{"role": "user", "content": "How do I keep a garden healthy?"}]
END = "<|im_end|>"


class LengthScorer:
    """Scores a reply by its characters and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[Message]] = []

    async def score(self, conversation: list[Message]) -> float:
        self.asked.append(conversation)
        return float(len(get_text(conversation[-1])))


def gold_score(conversation: list[Message]) -> float:
    return 0.5 if "compost" in get_text(conversation[-1]) else 0.0


async def _play(
    builder: RLHFEnvGroupBuilder, tokenizer: Any, replies: list[str]
) -> list[tuple[float, dict[str, float]]]:
    """(total reward, all metrics) of each member, given what it replies; a reply without <|im_end|> is cut off."""
    envs = await builder.make_envs()
    trajectories = []
    for env, reply in zip(envs, replies, strict=True):
        observation, _ = await env.initial_observation()
        tokens = tokenizer.encode(reply, add_special_tokens=False)
        action = TokensWithLogprobs(tokens, [0.0] * len(tokens), "stop" if reply.endswith(END) else "length")
        result = await env.step(tokens, extra={"stop_reason": action.stop_reason})
        assert result.episode_done
        turn = Transition(observation, action, result.reward, result.episode_done, result.metrics)
        trajectories.append(Trajectory([turn], types.ModelInput.empty()))
    added = await builder.compute_group_rewards(trajectories, envs)
    return [
        (trajectory.transitions[0].reward + reward, {**trajectory.transitions[0].metrics, **metrics})
        for trajectory, (reward, metrics) in zip(trajectories, added, strict=True)
    ]


async def test_scorer_rates_the_conversation_and_gold_is_only_reported(renderer: Renderer, tokenizer: Any) -> None:
    scorer = LengthScorer()
    builder = RLHFEnvGroupBuilder(PROMPT, renderer, group_size=2, scorer=scorer, gold=gold_score)
    (first, first_metrics), (second, second_metrics) = await _play(
        builder, tokenizer, ["add compost" + END, "no" + END]
    )
    assert (first, second) == (11.0, 2.0)
    assert scorer.asked[0] == [*PROMPT, {"role": "assistant", "content": "add compost"}]
    assert (first_metrics["gold"], second_metrics["gold"]) == (0.5, 0.0)
    assert first_metrics["reward_source_prm"] == 1.0


async def test_rule_based_reward_stands_in_for_a_missing_scorer(renderer: Renderer, tokenizer: Any) -> None:
    builder = RLHFEnvGroupBuilder(PROMPT, renderer, group_size=2)
    reply = "keep the garden soil healthy with compost every spring"
    (good, good_metrics), (poor, _) = await _play(builder, tokenizer, [reply + END, END])
    assert good == rule_based_reward([*PROMPT, {"role": "assistant", "content": reply}]) == 1.0
    assert poor == 0.0
    assert good_metrics["reward_source_prm"] == 0.0
    assert "gold" not in good_metrics


async def test_cut_off_reply_is_below_all_others_and_counts_in_gold(renderer: Renderer, tokenizer: Any) -> None:
    builder = RLHFEnvGroupBuilder(PROMPT, renderer, 1, LengthScorer(), gold_score, failed_reply_reward=-3.0)
    ((reward, metrics),) = await _play(builder, tokenizer, ["add compost"])
    assert reward == -3.0
    assert metrics == {
        "parse_error": 0.0,
        "cut_off": 1.0,
        "context_overflow": 0.0,
        "reward_source_prm": 1.0,
        "gold": 0.5,
    }


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("", 0.0),
        ("...", 0.0),
        # One of 8 words; no repeat; none of keep, garden, healthy.
        ("water", (1 / 8 + 1 + 0) / 3),
        # 4 of 8 words; half of them repeats; one of three content words, which counts double.
        ("garden yes garden yes", (1 / 2 + 1 / 2 + 2 / 3) / 3),
        ("keep the garden soil healthy with compost every spring", 1.0),
    ],
)
def test_rule_based_reward_by_hand(reply: str, reward: float) -> None:
    assert rule_based_reward([*PROMPT, {"role": "assistant", "content": reply}]) == pytest.approx(reward)


def _prompts(num_prompts: int) -> list[list[Message]]:
    return [[{"role": "user", "content": f"prompt {i}"}] for i in range(num_prompts)]


def _batch(dataset: RLHFDataset, index: int) -> list[str]:
    """What the user says in each prompt of a batch."""
    contents = []
    for builder in dataset.get_batch(index):
        assert isinstance(builder, RLHFEnvGroupBuilder)
        contents.append(builder.prompt[0]["content"])
    return contents


def _contents(dataset: RLHFDataset) -> list[list[str]]:
    return [_batch(dataset, i) for i in range(len(dataset))]


@given(
    num_prompts=st.integers(1, 9),
    groups_per_batch=st.integers(1, 5),
    num_epochs=st.integers(1, 3),
    seed=st.one_of(st.none(), st.integers(0, 5)),
)
def test_every_prompt_comes_once_an_epoch(
    any_renderer: Renderer, num_prompts: int, groups_per_batch: int, num_epochs: int, seed: int | None
) -> None:
    prompts = _prompts(num_prompts)
    dataset = RLHFDataset(prompts, any_renderer, 2, groups_per_batch, num_epochs=num_epochs, shuffle_seed=seed)
    batches = _contents(dataset)
    met = [content for batch in batches for content in batch]
    names = [prompt[0]["content"] for prompt in prompts]
    for epoch in range(num_epochs):
        assert sorted(met[epoch * num_prompts : (epoch + 1) * num_prompts]) == names
    assert all(len(batch) == groups_per_batch for batch in batches[:-1])
    if seed is None:
        assert met == names * num_epochs


@pytest.fixture(scope="session")
def any_renderer(tokenizer: Any) -> Renderer:
    from renderers import get_renderer

    return get_renderer("qwen3_disable_thinking", tokenizer)


def test_order_depends_on_seed_and_epoch_alone(renderer: Renderer) -> None:
    prompts = _prompts(12)
    batches = _contents(RLHFDataset(prompts, renderer, 2, 12, num_epochs=2, shuffle_seed=0))
    again = RLHFDataset(prompts, renderer, 2, 12, num_epochs=2, shuffle_seed=0)
    # Asked in another order, a batch is the same.
    assert _batch(again, 1) == batches[1]
    assert batches[0] != batches[1]
    assert _contents(RLHFDataset(prompts, renderer, 2, 12, shuffle_seed=1))[0] != batches[0]


def _builder(**changes: Any) -> ListRLHFDatasetBuilder:
    from mint import builtin

    settings: dict[str, Any] = {
        "prompts": _prompts(5),
        "model_name": str(builtin.model_dir()),
        "renderer_name": "qwen3_disable_thinking",
        "group_size": 3,
        "groups_per_batch": 2,
    }
    return ListRLHFDatasetBuilder(**{**settings, **changes})


async def test_builder_hands_its_settings_down_to_the_environments() -> None:
    scorer = LengthScorer()
    train, test = await _builder(scorer=scorer, gold=gold_score, test_prompts=_prompts(3), failed_reply_reward=-7.0)()
    assert (len(train), test is not None and len(test)) == (3, 2)
    builder = train.get_batch(0)[0]
    assert isinstance(builder, RLHFEnvGroupBuilder)
    assert (builder.scorer, builder.gold, builder.failed_reply_reward) == (scorer, gold_score, -7.0)
    assert len(await builder.make_envs()) == 3


async def test_test_prompts_come_in_order_one_reply_each() -> None:
    _, test = await _builder(test_prompts=_prompts(3))()
    assert test is not None
    assert _contents(test) == [["prompt 0", "prompt 1"], ["prompt 2"]]
    assert len(await test.get_batch(0)[0].make_envs()) == 1


async def test_without_test_prompts_there_is_no_test_set() -> None:
    assert (await _builder()())[1] is None


def test_group_of_one_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="group_size=1: advantages need at least 2; set group_size >= 2"):
        _builder(group_size=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_prompt_tokens": 5}, r"prompt 0 has \d+ tokens, more than max_prompt_tokens=5"),
        ({"prompts": [[{"role": "assistant", "content": "x"}]]}, "prompt 0 ends with a message of role 'assistant'"),
        ({"prompts": [*_prompts(1), []]}, "prompt 1: messages is empty"),
        ({"prompts": []}, "the dataset has no groups"),
        ({"groups_per_batch": 0}, "groups_per_batch=0: must be at least 1"),
        ({"num_epochs": 0}, "num_epochs=0: must be at least 1"),
        ({"renderer_name": "qwen4"}, "Did you mean 'qwen3'"),
    ],
)
async def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await _builder(**changes)()


def test_batch_outside_the_dataset_is_refused(renderer: Renderer) -> None:
    with pytest.raises(InvalidRequest, match="batch 3: the dataset has batches 0 to 2"):
        RLHFDataset(_prompts(3), renderer, 2, 1).get_batch(3)


async def test_group_builder_survives_pickling(renderer: Renderer, tokenizer: Any) -> None:
    builder = RLHFEnvGroupBuilder(PROMPT, renderer, group_size=1, scorer=None, gold=gold_score)
    ((reward, metrics),) = await _play(pickle.loads(pickle.dumps(builder)), tokenizer, ["add compost" + END])
    assert (reward > 0, metrics["gold"]) == (True, 0.5)
