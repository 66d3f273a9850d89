"""Runs of the DPO family on the embedded engine with a tiny random model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import chz
import pytest

import mint
from mint.errors import InvalidRequest
from recipe.checkpoint_utils import load_records
from recipe.config_record import load_config
from recipe.numeric_faults import NonFiniteConfig
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.dpo import train
from recipe.preference.dpo.config import Config, LossConfig
from recipe.preference.dpo.labelled_replies import ListLabelledReplyDatasetBuilder
from recipe.preference.dpo.losses import PREFERENCE_LOSSES
from recipe.preference.dpo.train import main
from recipe.preference.types import PairExampleConfig
from recipe.run_log import read_metrics
from recipe.stage_manifest import read_manifest

GOOD, BAD = ("red", "green", "blue"), ("mud", "dust", "ash")


def make_rows(num: int, first: int = 0) -> list[dict[str, Any]]:
    """Replies with a good word are preferred to those with a bad one; both kinds are as often the longer one."""
    return [
        {
            "prompt": f"Colour number {i}?",
            "chosen": f"{GOOD[i % 3]} " * (1 + i % 2),
            "rejected": f"{BAD[i % 3]} " * (2 - i % 2),
        }
        for i in range(first, first + num)
    ]


def make_thumbs(num: int, first: int = 0) -> list[dict[str, Any]]:
    """One reply to each prompt, good or bad in turn."""
    return [
        {"prompt": row["prompt"], "completion": row["chosen" if i % 2 == 0 else "rejected"], "label": i % 2 == 0}
        for i, row in enumerate(make_rows(num, first))
    ]


PAIRS = ListPreferenceDatasetBuilder(
    pairs=make_rows(10, first=4), held_out_pairs=make_rows(4), examples=PairExampleConfig(batch_size=4)
)


@pytest.fixture
def make_config(tiny_model_dir: Path, tmp_path: Path) -> Callable[..., Config]:
    """Settings of a run over 10 pairs in batches of 4 (3 steps an epoch, 2 epochs), 4 other prompts held out."""

    def make(folder: str = "run", **changes: Any) -> Config:
        settings: dict[str, Any] = {
            "log_path": str(tmp_path / folder),
            "model_name": str(tiny_model_dir),
            "renderer_name": "qwen3_disable_thinking",
            "dataset_builder": PAIRS,
            "lora_rank": 4,
            "learning_rate": 5e-3,
            "num_epochs": 2,
            "eval_every": 2,
            "save_every": 2,
            "seed": 3,
        }
        return Config(**{**settings, **changes})

    return make


def adapter_files(home: Path, path: str) -> dict[str, bytes]:
    """The tensors of a checkpoint by file name. (Its manifest names the run, which differs.)"""
    run_id, kind, name = path.removeprefix("mint://").split("/")
    (folder,) = home.rglob(f"{run_id}/{kind}/{name}")
    files = {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}
    assert "adapter_model.safetensors" in files
    return files


def without_times(log_path: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if "time/" not in key} for line in read_metrics(log_path)]


class Killed(Exception):
    """Stands for the end of the process."""


def kill_at_step(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    batch_of_step = train.batch_of_step

    def batch_or_death(num_pairs: int, batch_size: int, asked: int, seed: int) -> list[int]:
        if asked == step:
            raise Killed
        return batch_of_step(num_pairs, batch_size, asked, seed)

    monkeypatch.setattr(train, "batch_of_step", batch_or_death)


@pytest.mark.parametrize("name", PREFERENCE_LOSSES)
async def test_every_loss_orders_unseen_pairs_and_leaves_a_complete_folder(
    service: mint.ServiceClient, make_config: Callable[..., Config], name: str
) -> None:
    config = make_config(loss=LossConfig(name=name), num_epochs=6, save_every=0, eval_every=0)
    result = await main(config, service)
    lines = read_metrics(config.log_path)
    assert [line["step"] for line in lines] == list(range(19))
    assert lines[-1]["test/pair_accuracy"] == 1.0 and lines[-1]["test/loss"] < lines[0]["test/loss"]
    assert lines[-1]["test/mean_margin"] > 0 and lines[0]["num_ties"] == 0
    assert result.metrics["num_steps"] == 18 and load_records(config.log_path)[-1].is_final
    folder = Path(config.log_path, "reference_logprobs")
    assert folder.exists() is PREFERENCE_LOSSES[name].uses_reference
    manifest = read_manifest(config.log_path)
    assert manifest is not None and (manifest.stage, manifest.state_path) == ("dpo", result.state_path)
    page = (Path(__file__).resolve().parents[4] / "docs" / "metrics.md").read_text(encoding="utf-8")
    keys = {key.removeprefix("test/") for line in lines for key in line}
    assert [key for key in sorted(keys) if f"`{key}`" not in page and f"`test/{key}`" not in page] == []


async def test_before_the_first_step_policy_and_reference_are_the_same(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    sft = await main(make_config("sft", loss=LossConfig(name="orpo"), num_epochs=4), service)
    config = make_config(load_checkpoint_path=sft.state_path, max_steps=1)
    await main(config, service)
    first = read_metrics(config.log_path)[0]
    assert first["loss"] == pytest.approx(0.693147, abs=1e-4)
    for name in ("mean_margin", "chosen_reward", "rejected_reward", "test/mean_margin"):
        assert first[name] == pytest.approx(0.0, abs=1e-4)


async def test_a_reference_of_its_own_is_what_the_rewards_are_measured_against(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    other = await main(make_config("other", loss=LossConfig(name="orpo"), num_epochs=4), service)
    config = make_config(reference_path=other.sampler_path, max_steps=1)
    await main(config, service)
    first = read_metrics(config.log_path)[0]
    assert first["test/mean_margin"] < -0.01, "the reference prefers the chosen replies more than the new adapter does"


@pytest.mark.parametrize(("loss", "killed_at"), [("dpo", 1), ("dpo", 3), ("dpo", 5), ("kto", 3), ("simpo", 3)])
async def test_a_resumed_run_equals_an_undisturbed_one(
    service: mint.ServiceClient,
    mint_home: Path,
    make_config: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
    loss: str,
    killed_at: int,
) -> None:
    settings = {"loss": LossConfig(name=loss)}
    undisturbed = await main(make_config("undisturbed", **settings), service)
    config = make_config("killed", **settings)
    with monkeypatch.context() as patch:
        kill_at_step(patch, killed_at)
        with pytest.raises(Killed):
            await main(config, service)
    resumed = await main(config, service)
    assert without_times(config.log_path) == without_times(make_config("undisturbed").log_path)
    assert adapter_files(mint_home, resumed.state_path) == adapter_files(mint_home, undisturbed.state_path)
    assert resumed.metrics == undisturbed.metrics


async def test_a_lost_cache_is_made_again_from_the_weights_that_the_run_started_from(
    service: mint.ServiceClient, mint_home: Path, make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    sft = await main(make_config("sft", loss=LossConfig(name="orpo"), max_steps=2), service)
    undisturbed = await main(make_config("undisturbed", load_checkpoint_path=sft.state_path), service)
    config = make_config("killed", load_checkpoint_path=sft.state_path)
    with monkeypatch.context() as patch:
        kill_at_step(patch, 4)
        with pytest.raises(Killed):
            await main(config, service)
    files = list(Path(config.log_path, "reference_logprobs").rglob("0*.json"))
    before = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    resumed = await main(config, service)
    assert [file.read_bytes() for file in files] == before
    assert adapter_files(mint_home, resumed.state_path) == adapter_files(mint_home, undisturbed.state_path)


async def test_runs_share_a_cache(
    service: mint.ServiceClient, make_config: Callable[..., Config], tmp_path: Path
) -> None:
    shared = {"reference_cache_path": str(tmp_path / "cache"), "max_steps": 1}
    await main(make_config("first", **shared), service)
    (folder,) = (tmp_path / "cache").iterdir()
    written = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}
    await main(make_config("second", loss=LossConfig(name="ipo"), **shared), service)
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()} == written
    fewer = chz.replace(PAIRS, pairs=make_rows(9, first=4))
    await main(make_config("third", dataset_builder=fewer, **shared), service)
    assert len(list((tmp_path / "cache").iterdir())) == 2


async def test_kto_learns_from_single_replies(service: mint.ServiceClient, make_config: Callable[..., Config]) -> None:
    builder = ListLabelledReplyDatasetBuilder(
        replies=make_thumbs(20, first=6), held_out_replies=make_thumbs(6), examples=PairExampleConfig(batch_size=8)
    )
    config = make_config(dataset_builder=builder, loss=LossConfig(name="kto", beta=0.3), num_epochs=6)
    result = await main(config, service)
    first, last = read_metrics(config.log_path)[0], read_metrics(config.log_path)[-1]
    assert last["test/label_accuracy"] == 1.0 and last["test/loss"] < first["test/loss"]
    assert last["test/chosen_reward"] > last["test/rejected_reward"]
    assert "test/pair_accuracy" not in last and result.metrics["kto_kl"] >= 0
    assert load_config(config.log_path, Config) == config


async def test_a_finished_run_is_not_run_again(service: mint.ServiceClient, make_config: Callable[..., Config]) -> None:
    config = make_config(max_steps=2)
    first = await main(config, service)
    written = Path(config.log_path, "metrics.jsonl").read_bytes()
    assert await main(config, service) == first
    assert Path(config.log_path, "metrics.jsonl").read_bytes() == written


async def test_a_step_that_is_not_finite_can_be_left_out(
    service: mint.ServiceClient, make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, calls = train.loss_and_metrics, []

    def sometimes_nan(*arguments: Any) -> Any:
        loss, metrics = honest(*arguments)
        calls.append(1)
        return (loss * float("nan") if len(calls) == 3 else loss), metrics

    monkeypatch.setattr(train, "loss_and_metrics", sometimes_nan)
    config = make_config(non_finite=NonFiniteConfig(action="skip"), eval_every=0)
    result = await main(config, service)
    refused = [line["step"] for line in read_metrics(config.log_path) if "faults/refused_steps" in line]
    assert refused == [1] and result.metrics["num_steps"] == 6


async def test_the_same_prompt_everywhere_is_nothing_for_kto(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    rows = [{"prompt": "Tea?", "completion": f"{i}", "label": i % 2} for i in range(4)]
    builder = ListLabelledReplyDatasetBuilder(replies=rows, examples=PairExampleConfig(held_out_share=0.0))
    with pytest.raises(InvalidRequest, match="kto estimates its KL on replies to other prompts"):
        await main(make_config(dataset_builder=builder, loss=LossConfig(name="kto")), service)


THUMBS = ListLabelledReplyDatasetBuilder(replies=make_thumbs(4))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"loss": LossConfig(name="simpo"), "reference_path": "mint://a/sampler_weights/b"},
            "reference_path='mint://a/sampler_weights/b' with loss.name='simpo': simpo compares with no reference",
        ),
        ({"loss": LossConfig(name="orpo"), "reference_cache_path": "cache"}, "reference_cache_path='cache' with"),
        ({"dataset_builder": THUMBS}, "loss.name='dpo' with a ListLabelledReplyDatasetBuilder: dpo compares two"),
        ({"max_steps": 0}, "max_steps=0: must be at least 1"),
        ({"ttl_seconds": 60, "save_every": 0}, "ttl_seconds=60 with save_every=0"),
    ],
)
def test_impossible_settings_are_refused(
    make_config: Callable[..., Config], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_config(**changes)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "data",
    ["recipe.preference.data:FilePreferenceDatasetBuilder", "FileLabelledReplyDatasetBuilder"],
)
def test_loss_and_data_can_be_set_from_the_command_line(tmp_path: Path, data: str) -> None:
    arguments = [
        f"log_path={tmp_path}",
        f"dataset_builder={data}",
        "dataset_builder.path=data.jsonl",
        "dataset_builder.examples.batch_size=3",
        "loss.name=kto",
        "loss.beta=0.5",
    ]
    config = chz.Blueprint(Config).make_from_argv(arguments)
    assert config.loss == LossConfig(name="kto", beta=0.5)
    assert config.dataset_builder.examples.batch_size == 3
