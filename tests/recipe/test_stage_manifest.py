"""What a stage was made from: the file, what makes it another stage, and what does not."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import chz
import pytest

import mint
from mint import types
from mint.errors import InvalidRequest
from recipe import stage_manifest
from recipe.checkpoint_utils import CheckpointRecord, RunIdentity
from recipe.config_record import config_to_json
from recipe.data_digest import Digest, digest_of_json
from recipe.preference.data import pairs_sha256
from recipe.preference.types import PreferencePair
from recipe.stage_manifest import Origin, StageChanged, StageManifest, config_sha256, open_manifest, read_manifest
from recipe.supervised import train as sft_train
from recipe.supervised.data import ListSFTDatasetBuilder, SFTExampleConfig, data_sha256
from renderers import get_renderer

IDENTITY = RunIdentity("mint-tiny", 4, "role_colon")
FINAL = CheckpointRecord("final", 3, "mint://a/weights/final", "mint://a/sampler_weights/final")


@chz.chz(typecheck=True)
class Config:
    log_path: str
    load_checkpoint_path: str | None = None
    learning_rate: float = 1e-4
    seed: int = 7


def manifest_of(folder: Path, service: mint.ServiceClient, record=None, data="d1", rewards=(), **settings):
    config = Config(log_path=str(folder), **settings)
    return open_manifest("rl", config, IDENTITY, None, data, service, record=record, reward_paths=rewards)


@dataclass
class Trained:
    """Two adapters: `first` saved under two names, `other` with a step more."""

    first: str
    again: str
    other: str


@pytest.fixture
async def trained(service: mint.ServiceClient) -> Trained:
    client = await service.create_lora_training_client_async("mint-tiny", rank=4, seed=0)
    first, again = (await client.save_state("first")).path, (await client.save_state("again")).path
    tensors = {
        "target_tokens": types.TensorData(data=[6, 7], dtype="int64", shape=[2]),
        "weights": types.TensorData(data=[1.0, 1.0], dtype="float32", shape=[2]),
    }
    datum = types.Datum(model_input=types.ModelInput.from_ints([5, 6]), loss_fn_inputs=tensors)
    await client.forward_backward([datum], "cross_entropy")
    await client.optim_step(types.AdamParams(learning_rate=1e-2))
    return Trained(first, again, (await client.save_state("other")).path)


async def test_it_is_written_at_the_beginning_and_completed_at_the_end(tmp_path: Path, service) -> None:
    manifest = await manifest_of(tmp_path, service)
    assert read_manifest(tmp_path) is None
    stage_manifest.begin(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest and not manifest.is_complete
    stage_manifest.complete(tmp_path, manifest, FINAL)
    found = read_manifest(tmp_path)
    assert found is not None and found.is_complete
    assert (found.state_path, found.sampler_path) == (FINAL.state_path, FINAL.sampler_path)
    assert replace(found, state_path=None, sampler_path=None) == manifest


async def test_a_finished_stage_keeps_its_file(tmp_path: Path, service, caplog) -> None:
    stage_manifest.complete(tmp_path, await manifest_of(tmp_path, service), FINAL)
    before = (tmp_path / stage_manifest.MANIFEST_FILE).stat().st_mtime_ns
    with caplog.at_level(logging.WARNING):
        other_data = await manifest_of(tmp_path, service, record=FINAL, data="d2")
    assert "the data of the rl stage" in caplog.text and "(SHA-256 d1, now d2)" in caplog.text
    stage_manifest.complete(tmp_path, other_data, FINAL)
    assert (tmp_path / stage_manifest.MANIFEST_FILE).stat().st_mtime_ns == before
    stage_manifest.complete(tmp_path, other_data, replace(FINAL, state_path="mint://b/weights/final"))  # trained on
    found = read_manifest(tmp_path)
    assert found is not None and found.data_sha256 == "d2"


async def test_another_parent_is_refused_and_the_same_weights_elsewhere_are_not(
    tmp_path: Path, service, trained: Trained
) -> None:
    stage_manifest.begin(tmp_path, await manifest_of(tmp_path, service, load_checkpoint_path=trained.first))
    for same in (trained.first, trained.again):
        await manifest_of(tmp_path, service, record=FINAL, load_checkpoint_path=same)
    for other, named in ((trained.other, trained.other), (None, "a new adapter")):
        with pytest.raises(StageChanged) as refused:
            await manifest_of(tmp_path, service, record=FINAL, load_checkpoint_path=other)
        assert f"started from {trained.first}, and is now given {named}" in str(refused.value)
        assert "rl.log_path=..." in str(refused.value)
    # Where nothing was trained yet, nothing is lost.
    await manifest_of(tmp_path, service, record=None, load_checkpoint_path=trained.other)


async def test_another_reward_is_refused(tmp_path: Path, service, trained: Trained) -> None:
    stage_manifest.begin(tmp_path, await manifest_of(tmp_path, service, rewards=[trained.first]))
    await manifest_of(tmp_path, service, record=FINAL, rewards=[trained.again])
    for others, named in (([trained.first, trained.other], trained.other), ([], "the rule-based reward")):
        with pytest.raises(StageChanged, match="was rewarded by") as refused:
            await manifest_of(tmp_path, service, record=FINAL, rewards=others)
        assert named in str(refused.value)


def test_weights_that_are_not_known_are_compared_by_name() -> None:
    assert Origin(["mint://a"]).is_same(Origin(["mint://a"], "x"))
    assert not Origin(["mint://a"]).is_same(Origin(["mint://b"]))
    assert not Origin([]).is_same(Origin(["mint://b"], None))
    assert Origin(["mint://a"], "x").is_same(Origin(["mint://b"], "x"))


@pytest.mark.parametrize("content", ["{", "[]", '{"stage": "rl"}', "null"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / stage_manifest.MANIFEST_FILE).write_text(content)
    with pytest.raises(InvalidRequest, match=r"stage_manifest\.json: not a stage's manifest"):
        read_manifest(tmp_path)


async def test_nothing_in_it_depends_on_the_folder(tmp_path: Path, service) -> None:
    manifests: list[StageManifest] = [await manifest_of(tmp_path / name, service) for name in ("a", "b")]
    assert manifests[0] == manifests[1]
    assert manifests[0] != await manifest_of(tmp_path / "a", service, learning_rate=1e-3)


def test_the_configs_digest_leaves_out_folders_checkpoints_and_addresses() -> None:
    def digest(**values) -> str:
        record = config_to_json(Config(log_path="a"))
        return config_sha256({**record, "values": {**record["values"], **values}})

    assert digest() == digest(log_path="b") == digest(load_checkpoint_path="mint://a/weights/final")
    assert (
        digest(**{"dataset.scorer": {"$repr": "<x>"}}) == digest(**{"kl.load_checkpoint_path": "mint://b"}) == digest()
    )
    assert digest(fn={"$repr": "<f at 0x7f01>"}) == digest(fn={"$repr": "<f at 0x7f02>"}) != digest()
    assert digest(learning_rate=2e-4) != digest()


def says(text: str) -> list:
    return [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": text}]


def test_the_data_digest_is_of_the_examples_in_their_order(tokenizer) -> None:
    renderer = get_renderer("role_colon", tokenizer)

    def digest(texts: list[str], held_out: list[str] | None = None, batch_size: int = 2) -> str:
        test = None if held_out is None else [says(text) for text in held_out]
        builder = ListSFTDatasetBuilder(
            conversations=[says(text) for text in texts],
            test_conversations=test,
            examples=SFTExampleConfig(batch_size=batch_size),
        )
        return data_sha256(*builder(renderer))

    texts = ["One", "Two", "Three"]
    assert digest(texts) == digest(list(texts)) == digest(texts, batch_size=1)
    others = [
        digest(["One", "Two"]),
        digest(["Two", "One", "Three"]),
        digest(["One", "Two", "Four"]),
        digest(texts, texts),
    ]
    assert len({digest(texts), *others}) == 5


def test_the_digest_of_pairs_knows_who_won_and_not_where_the_pair_was_found() -> None:
    def pair(chosen: str, rejected: str, **fields) -> PreferencePair:
        return PreferencePair(says("")[:1], says(chosen)[1], says(rejected)[1], **fields)

    plain = pairs_sha256([pair("a", "b")], [])
    assert plain == pairs_sha256([pair("a", "b", origin="pairs.jsonl, line 3")], [])
    others = [pair("b", "a"), pair("a", "b", strength=2.0), pair("a", "b", is_tie=True), pair("a", "b", source="x")]
    assert len({plain, pairs_sha256([], [pair("a", "b")]), *(pairs_sha256([other], []) for other in others)}) == 6


def test_borders_between_parts_count() -> None:
    assert digest_of_json(["a"], ["b"]) != digest_of_json(["a", "b"], []) != digest_of_json(["ab"], [])
    one, two = Digest(), Digest()
    one.add(b"ab")
    one.add(b"c")
    two.add(b"a")
    two.add(b"bc")
    assert one.hexdigest() != two.hexdigest()


async def test_a_stage_that_ran_before_manifests_gets_one(tmp_path: Path, service) -> None:
    config = sft_train.Config(
        log_path=str(tmp_path),
        dataset_builder=ListSFTDatasetBuilder(conversations=[says("One"), says("Two")]),
        lora_rank=4,
        max_steps=1,
    )
    result = await sft_train.main(config, service)
    file = tmp_path / stage_manifest.MANIFEST_FILE
    content = file.read_bytes()
    assert json.loads(content)["state_path"] == result.state_path
    file.unlink()
    assert await sft_train.main(config, service) == result
    assert file.read_bytes() == content
