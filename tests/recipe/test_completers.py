"""Continuing tokens and answering messages, on the embedded engine with a tiny random model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import mint
from recipe.completers import MintMessageCompleter, MintTokenCompleter
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, Renderer, get_renderer

QUESTION: list[Message] = [{"role": "user", "content": "Say red."}]


@pytest.fixture
def renderer(tiny_model_dir: Path) -> Renderer:
    return get_renderer("qwen3_disable_thinking", get_tokenizer(str(tiny_model_dir)))


@pytest.fixture
async def sampling_client(service: mint.ServiceClient, tiny_model_dir: Path) -> mint.SamplingClient:
    return await service.create_sampling_client_async(base_model=str(tiny_model_dir))


async def test_same_seed_gives_the_same_tokens_and_another_seed_others(
    sampling_client: mint.SamplingClient, renderer: Renderer
) -> None:
    complete = MintTokenCompleter(sampling_client, max_tokens=12)
    prompt = renderer.build_generation_prompt(QUESTION)
    one, same, other = await asyncio.gather(*(complete(prompt, [], seed=seed) for seed in (7, 7, 8)))
    assert one.tokens == same.tokens != other.tokens
    # Rows of one batch: the matrix product rounds them alike only up to the last bits.
    assert one.logprobs == pytest.approx(same.logprobs, abs=1e-5)
    assert len(one.tokens) == len(one.logprobs) == 12
    assert one.stop_reason == "length"


async def test_limit_of_a_call_holds_only_below_the_completers_own(
    sampling_client: mint.SamplingClient, renderer: Renderer
) -> None:
    complete = MintTokenCompleter(sampling_client, max_tokens=6)
    prompt = renderer.build_generation_prompt(QUESTION)
    lengths = [len((await complete(prompt, [], seed=1, max_tokens=limit)).tokens) for limit in (None, 3, 50)]
    assert lengths == [6, 3, 6]


async def test_stop_token_is_among_the_tokens(sampling_client: mint.SamplingClient, renderer: Renderer) -> None:
    prompt = renderer.build_generation_prompt(QUESTION)
    complete = MintTokenCompleter(sampling_client, max_tokens=8, temperature=0.0)
    first = (await complete(prompt, [], seed=1)).tokens[0]
    stopped = await complete(prompt, [first], seed=1)
    assert (stopped.tokens, stopped.stop_reason) == ([first], "stop")


async def test_message_completer_answers_as_the_assistant(
    sampling_client: mint.SamplingClient, renderer: Renderer
) -> None:
    answer = MintMessageCompleter(sampling_client, renderer, max_tokens=5)
    message = await answer(QUESTION, seed=3)
    assert message["role"] == "assistant"
    assert message["content"]
    assert message == await answer(QUESTION, seed=3)
