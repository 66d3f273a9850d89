"""Which prompts a policy is asked, and how many of its replies end by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

import mint
from mint.errors import InvalidRequest
from recipe.reply_endings import (
    ENDINGS_FILE,
    ReplyEndings,
    held_out_prompts,
    measure_reply_endings,
    read_endings,
    write_endings,
)
from recipe.supervised.data import ListSFTDatasetBuilder, SFTExampleConfig
from recipe.supervised.types import SupervisedDataset
from renderers import Renderer, TrainOnWhat, get_renderer

QUESTIONS = ["How do I brew tea?", "How do I plan a picnic in the park?", "How do I save money?"]


@pytest.fixture(scope="module")
def renderer(tokenizer) -> Renderer:
    return get_renderer("qwen3_disable_thinking", tokenizer)


def conversation(question: str) -> list:
    turns = [("user", question), ("assistant", "Warm the pot."), ("user", "And then?"), ("assistant", "Wait a while.")]
    return [{"role": role, "content": content} for role, content in turns]


def dataset(renderer: Renderer, train_on_what: TrainOnWhat) -> SupervisedDataset:
    examples = SFTExampleConfig(batch_size=2, train_on_what=train_on_what)
    train, _ = ListSFTDatasetBuilder(conversations=[conversation(q) for q in QUESTIONS], examples=examples)(renderer)
    return train


@pytest.mark.parametrize("train_on_what", [TrainOnWhat.LAST_ASSISTANT_MESSAGE, TrainOnWhat.ALL_ASSISTANT_MESSAGES])
def test_a_prompt_is_all_before_the_last_taught_reply(renderer: Renderer, train_on_what: TrainOnWhat) -> None:
    prompts = held_out_prompts(dataset(renderer, train_on_what), 10)
    assert len(prompts) == 3
    for question, prompt in zip(QUESTIONS, prompts, strict=True):
        messages = conversation(question)
        assert prompt.tokens == renderer.build_generation_prompt(messages[:-1]).to_ints()
        reply = messages[-1]["content"]
        assert (
            prompt.num_reply_tokens == len(renderer.tokenizer.encode(reply, add_special_tokens=False)) + 1
        )  # the stop


def test_as_many_prompts_as_asked_for(renderer: Renderer) -> None:
    held_out = dataset(renderer, TrainOnWhat.LAST_ASSISTANT_MESSAGE)
    assert [len(held_out_prompts(held_out, num)) for num in (1, 2, 3, 4)] == [1, 2, 3, 3]


async def measured(service: mint.ServiceClient, renderer: Renderer, **settings) -> ReplyEndings:
    client = await service.create_sampling_client_async(base_model="mint-tiny")
    held_out = dataset(renderer, TrainOnWhat.ALL_ASSISTANT_MESSAGES)
    settings = {"num_replies": 3, "max_tokens": None, "context_length": 1024, **settings}
    return await measure_reply_endings(client, "mint://x", held_out, renderer.get_stop_sequences(), **settings)


async def test_replies_are_counted_that_end_in_time(service: mint.ServiceClient, renderer: Renderer) -> None:
    found = await measured(service, renderer, max_tokens=100)
    assert found == ReplyEndings("mint://x", 3, 3, 100, 3, 100)  # the built-in model has learned to stop
    assert (await measured(service, renderer, max_tokens=1)).num_ended == 0
    assert await measured(service, renderer, max_tokens=100) == found


async def test_the_limit_follows_from_the_replies_and_the_context(service, renderer: Renderer) -> None:
    prompts = held_out_prompts(dataset(renderer, TrainOnWhat.ALL_ASSISTANT_MESSAGES), 3)
    assert (await measured(service, renderer)).max_tokens == max(16, 2 * max(p.num_reply_tokens for p in prompts))
    context = max(len(p.tokens) for p in prompts) + 5
    assert (await measured(service, renderer, context_length=context)).max_tokens == 5


def test_the_file_says_for_what_it_was_made(tmp_path: Path) -> None:
    assert read_endings(tmp_path) is None
    endings = ReplyEndings("mint://a", 8, 7, 40, 32, None)
    write_endings(tmp_path, endings)
    assert read_endings(tmp_path) == endings
    assert endings.is_for("mint://a", 32, None)
    assert not endings.is_for("mint://b", 32, None) and not endings.is_for("mint://a", 16, None)
    assert not endings.is_for("mint://a", 32, 40)
    (tmp_path / ENDINGS_FILE).write_text("{}")
    with pytest.raises(InvalidRequest, match=r"reply_endings\.json: damaged"):
        read_endings(tmp_path)
