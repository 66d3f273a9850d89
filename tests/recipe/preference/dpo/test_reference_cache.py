"""The reference's logprobs on disk: read back as they were, computed again where they cannot be, never mixed up."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mint
from recipe.preference.dpo import reference_cache
from recipe.preference.dpo.reference_cache import ABOUT_FILE, ReferenceCache, ReferenceIdentity, cache_key
from recipe.preference.readouts import RenderedReply, SequenceLogprob
from recipe.tokenizer_utils import get_tokenizer
from renderers import get_renderer

WHOSE = ReferenceIdentity("mint-tiny", "base", "qwen3_disable_thinking")


def make_replies(num: int = 7) -> list[RenderedReply]:
    renderer = get_renderer("qwen3_disable_thinking", get_tokenizer("mint-tiny"))
    return [
        SequenceLogprob().render(
            [{"role": "user", "content": f"Tea {i}?"}, {"role": "assistant", "content": "Yes " * (i + 1)}], renderer
        )
        for i in range(num)
    ]


class Reference:
    """Opens the base model of the tiny model, and counts how often it was asked for."""

    def __init__(self, service: mint.ServiceClient, model: Path) -> None:
        self.service, self.model, self.num_opened = service, str(model), 0

    async def __call__(self) -> mint.SamplingClient:
        self.num_opened += 1
        return await self.service.create_sampling_client_async(base_model=self.model)


@pytest.fixture
def reference(service: mint.ServiceClient, tiny_model_dir: Path) -> Reference:
    return Reference(service, tiny_model_dir)


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_cache, "STRETCH", 3)


def files_of(cache: ReferenceCache) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in cache.path.iterdir()}


async def test_the_sums_are_those_of_the_replies_own_tokens(reference: Reference, tmp_path: Path) -> None:
    replies = make_replies()
    found = await ReferenceCache(tmp_path, WHOSE, replies).logprobs(reference)
    client = await reference()
    for reply, logprob in zip(replies, found, strict=True):
        logprobs = await client.compute_logprobs(reply.model_input())
        wanted = sum(
            weight * value for weight, value in zip(reply.weights[1:], logprobs[1:], strict=True) if value is not None
        )
        assert logprob == pytest.approx(wanted, abs=1e-4)


async def test_a_second_run_reads_the_same_numbers_and_opens_no_model(reference: Reference, tmp_path: Path) -> None:
    cache = ReferenceCache(tmp_path, WHOSE, make_replies())
    first = await cache.logprobs(reference)
    written = files_of(cache)
    again = ReferenceCache(tmp_path, WHOSE, make_replies())
    assert await again.logprobs(reference) == first
    assert reference.num_opened == 1 and files_of(again) == written
    assert sorted(written) == ["000000000.json", "000000003.json", "000000006.json", ABOUT_FILE]


async def test_a_run_that_was_killed_computes_only_what_is_missing(reference: Reference, tmp_path: Path) -> None:
    cache = ReferenceCache(tmp_path, WHOSE, make_replies())
    first = await cache.logprobs(reference)
    written = files_of(cache)
    kept = cache.path / "000000000.json"
    moment = kept.stat().st_mtime_ns
    (cache.path / "000000003.json").unlink()
    (cache.path / "000000006.json").unlink()
    assert await ReferenceCache(tmp_path, WHOSE, make_replies()).logprobs(reference) == first
    assert files_of(cache) == written and kept.stat().st_mtime_ns == moment


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace("-", "", 1),
        lambda text: json.dumps({**json.loads(text), "first": 3}),
        lambda text: json.dumps({**json.loads(text), "logprobs": [float("nan")] * 3}),
    ],
    ids=["cut off", "empty", "another kind", "a sign lost", "another place", "not numbers"],
)
async def test_a_damaged_file_is_named_and_computed_anew(
    reference: Reference, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage
) -> None:
    cache = ReferenceCache(tmp_path, WHOSE, make_replies())
    first = await cache.logprobs(reference)
    written = files_of(cache)
    file = cache.path / "000000000.json"
    file.write_text(damage(file.read_text()))
    assert file.read_bytes() != written[file.name]
    with caplog.at_level(logging.WARNING):
        assert await ReferenceCache(tmp_path, WHOSE, make_replies()).logprobs(reference) == first
    assert f"{file} is damaged" in caplog.text and files_of(cache) == written


async def test_a_file_of_other_replies_is_not_believed(reference: Reference, tmp_path: Path) -> None:
    cache, other = (ReferenceCache(tmp_path, WHOSE, replies) for replies in (make_replies(), make_replies()[::-1]))
    first, reverse = await cache.logprobs(reference), await other.logprobs(reference)
    assert cache.path != other.path and first[:3] != reverse[:3]
    (cache.path / "000000000.json").write_bytes((other.path / "000000000.json").read_bytes())
    assert await cache.logprobs(reference) == first


def test_everything_that_the_numbers_follow_from_is_in_the_key(tmp_path: Path) -> None:
    replies = make_replies()
    weighted = RenderedReply(replies[0].tokens, replies[0].weights * np.float32(0.5))
    keys = {
        cache_key(WHOSE, replies),
        cache_key(WHOSE, replies[:-1]),
        cache_key(WHOSE, replies[::-1]),
        cache_key(WHOSE, [weighted, *replies[1:]]),
        cache_key(replace(WHOSE, base_model="Qwen/Qwen3-0.6B"), replies),
        cache_key(replace(WHOSE, reference="mint://run/weights/final"), replies),
        cache_key(replace(WHOSE, renderer_name="qwen3"), replies),
    }
    assert len(keys) == 7
    assert cache_key(WHOSE, make_replies()) in keys


def test_another_model_in_the_same_folder_has_another_key(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"one")
    whose = replace(WHOSE, base_model=str(tmp_path))
    before = cache_key(whose, make_replies(1))
    assert cache_key(whose, make_replies(1)) == before
    (tmp_path / "model.safetensors").write_bytes(b"other")
    assert cache_key(whose, make_replies(1)) != before
