"""Preference runs on the embedded engine with a tiny random model."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chz
import pytest
import torch

import mint
from mint.errors import InvalidRequest
from recipe.checkpoint_utils import get_last_checkpoint, load_records
from recipe.config_record import load_config
from recipe.preference import train
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.readouts import SequenceLogprob, Verdict
from recipe.preference.rendered_pairs import PairBatch, render_pairs
from recipe.preference.report_card import ReportCardConfig
from recipe.preference.scorer import PreferenceScorer, ScorerSpec
from recipe.preference.train import Config, main, pair_loss
from recipe.preference.types import PairExampleConfig, PreferenceDatasetBuilder, PreferencePair, PreferenceSplit
from recipe.run_log import read_metrics
from recipe.tokenizer_utils import get_tokenizer
from renderers import get_renderer

GOOD, BAD = ("red", "green", "blue"), ("mud", "dust", "ash")


def make_pairs(num: int) -> list[PreferencePair]:
    """Replies with a good word are preferred to those with a bad one; both kinds are as often the longer one."""
    return [
        PreferencePair(
            prompt=[{"role": "user", "content": f"Colour number {i}?"}],
            chosen={"role": "assistant", "content": f"{GOOD[i % 3]} " * (1 + i % 2)},
            rejected={"role": "assistant", "content": f"{BAD[i % 3]} " * (2 - i % 2)},
        )
        for i in range(num)
    ]


@pytest.fixture
def make_config(tiny_model_dir: Path, tmp_path: Path) -> Callable[..., Config]:
    """Settings of a run over 10 pairs in batches of 4 (3 steps an epoch, 2 epochs), 4 other prompts held out."""

    def make(folder: str = "run", **changes: Any) -> Config:
        settings: dict[str, Any] = {
            "log_path": str(tmp_path / folder),
            "model_name": str(tiny_model_dir),
            "renderer_name": "qwen3_disable_thinking",
            "dataset_builder": ListPreferenceDatasetBuilder(
                pairs=make_pairs(14)[4:], held_out_pairs=make_pairs(4), examples=PairExampleConfig(batch_size=4)
            ),
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


async def test_training_orders_unseen_pairs_and_leaves_a_complete_folder(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config(num_epochs=6)
    result = await main(config, service)
    lines = read_metrics(config.log_path)
    assert [line["step"] for line in lines] == list(range(19))
    assert [line["step"] for line in lines if "test/pair_accuracy" in line] == list(range(0, 19, 2))
    assert lines[-2]["loss"] < 0.3 < lines[0]["loss"]
    assert result.test_pair_accuracy == lines[-1]["test/pair_accuracy"] == 1.0
    assert result.metrics["test/pair_accuracy_before"] == lines[0]["test/pair_accuracy"]
    assert result.metrics["test/length_only_accuracy"] == 0.5
    assert result.metrics["test/pair_accuracy_low"] == pytest.approx(4 / (4 + 1.959964**2))
    assert result.metrics["num_steps"] == 18
    assert load_records(config.log_path)[-1].is_final


async def test_a_run_can_be_set_up_again_from_its_folder(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    rows = [{"prompt": f"Colour {i}?", "chosen": "red", "rejected": "mud"} for i in range(4)]
    config = make_config(
        dataset_builder=ListPreferenceDatasetBuilder(pairs=rows),
        readout=Verdict(judge_question="Good?"),
        max_steps=1,
    )
    await main(config, service)
    assert load_config(config.log_path, Config) == config


async def test_every_step_reports_what_it_did(service: mint.ServiceClient, make_config: Callable[..., Config]) -> None:
    config = make_config()
    await main(config, service)
    lines = read_metrics(config.log_path)[:6]
    assert [line["num_pairs"] for line in lines] == [4, 4, 2, 4, 4, 2]
    assert [line["epoch"] for line in lines] == [0, 0, 0, 1, 1, 1]
    assert [line["learning_rate"] for line in lines] == pytest.approx([5e-3 * (6 - i) / 6 for i in range(6)])
    assert [line["progress/done_frac"] for line in lines] == pytest.approx([(i + 1) / 6 for i in range(6)])
    for line in lines:
        assert line["loss"] > 0 and 0 <= line["pair_accuracy"] <= 1 and line["optim/grad_norm"] > 0
        assert line["num_tokens"] > 0 and line["num_dropped"] == 0 and line["time/step"] > 0
        assert "mean_margin" in line


async def test_the_scorer_of_the_result_is_the_model_that_was_evaluated(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config()
    result = await main(config, service)
    scorer = result.scorer.build(service)
    pairs = make_pairs(4)
    chosen = await scorer.score_many([pair.chosen_conversation for pair in pairs])
    rejected = await scorer.score_many([pair.rejected_conversation for pair in pairs])
    scores = torch.tensor([*chosen, *rejected])
    assert scores.mean().item() == pytest.approx(0.0, abs=1e-4)
    assert scores.std(unbiased=False).item() == pytest.approx(1.0, abs=1e-4)
    margin = sum(c - r for c, r in zip(chosen, rejected, strict=True)) / 4
    assert margin * result.scorer.scale.std == pytest.approx(result.metrics["test/mean_margin"], abs=1e-4)
    record = get_last_checkpoint(config.log_path)
    assert record is not None and ScorerSpec.from_record(record) == result.scorer


@pytest.mark.parametrize("killed_at", [1, 3, 5])
async def test_a_resumed_run_equals_an_undisturbed_one(
    service: mint.ServiceClient,
    mint_home: Path,
    make_config: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
    killed_at: int,
) -> None:
    undisturbed = await main(make_config("undisturbed"), service)
    config = make_config("killed")
    with monkeypatch.context() as patch:
        kill_at_step(patch, killed_at)
        with pytest.raises(Killed):
            await main(config, service)
    resumed = await main(config, service)
    assert without_times(config.log_path) == without_times(make_config("undisturbed").log_path)
    assert adapter_files(mint_home, resumed.state_path) == adapter_files(mint_home, undisturbed.state_path)
    assert resumed.scorer.scale == undisturbed.scorer.scale
    assert resumed.metrics == undisturbed.metrics


async def test_a_finished_run_is_not_run_again(service: mint.ServiceClient, make_config: Callable[..., Config]) -> None:
    config = make_config(max_steps=2)
    first = await main(config, service)
    written = Path(config.log_path, "metrics.jsonl").read_bytes()
    assert await main(config, service) == first
    assert Path(config.log_path, "metrics.jsonl").read_bytes() == written


async def test_resuming_with_another_rank_is_refused(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    await main(make_config(max_steps=1), service)
    with pytest.raises(InvalidRequest, match="lora_rank=8, but the run in this log_path was made with lora_rank=4"):
        await main(make_config(max_steps=1, lora_rank=8), service)


async def test_a_loaded_checkpoint_gives_the_weights_and_nothing_else(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config("first", num_epochs=4)
    first = await main(config, service)
    second = await main(make_config("second", load_checkpoint_path=first.state_path, max_steps=1), service)
    before = read_metrics(make_config("second").log_path)[0]
    assert before["test/loss"] == pytest.approx(first.metrics["test/loss"], abs=1e-5)
    assert second.metrics["num_steps"] == 1


@pytest.mark.parametrize(
    "readout", [SequenceLogprob(is_per_token=True), SequenceLogprob(is_relative_to_base=True)], ids=["mean", "base"]
)
async def test_sequence_logprob_trains_and_scores(
    service: mint.ServiceClient, make_config: Callable[..., Config], readout: SequenceLogprob
) -> None:
    result = await main(make_config(readout=readout), service)
    assert result.metrics["test/loss"] < read_metrics(make_config().log_path)[0]["test/loss"]
    assert result.scorer.readout == readout
    conversation = make_pairs(1)[0].chosen_conversation
    assert isinstance(await result.scorer.build(service).score(conversation), float)


async def test_a_pair_has_the_same_rewards_whatever_is_in_its_batch(
    service: mint.ServiceClient, tiny_model_dir: Path
) -> None:
    renderer = get_renderer("qwen3_disable_thinking", get_tokenizer(str(tiny_model_dir)))
    client = await service.create_lora_training_client_async(str(tiny_model_dir), rank=4, seed=0)
    long = PreferencePair(
        [{"role": "user", "content": "Go on."}],
        {"role": "assistant", "content": "word " * 60},
        {"role": "assistant", "content": "a b c " * 30},
    )
    short, long = render_pairs([make_pairs(1)[0], long], Verdict(), renderer).pairs

    async def margin_and_loss(pairs: list[Any]) -> tuple[float, float]:
        batch = PairBatch.of(pairs)
        output = await client.forward_backward_custom(batch.datums_D, pair_loss(batch, Verdict()))
        return output.metrics["mean_margin"], output.metrics["loss"]

    (margin_a, loss_a), (margin_b, loss_b) = await margin_and_loss([short]), await margin_and_loss([long])
    margin, loss = await margin_and_loss([short, long])
    assert margin == pytest.approx((margin_a + margin_b) / 2, abs=1e-4)
    assert loss == pytest.approx((loss_a + loss_b) / 2, abs=1e-4)
    swapped = PairBatch.of([short, long])
    swapped = PairBatch(
        swapped.datums_D,
        swapped.replies_D,
        [type(slots)(slots.pair_id, slots.i_rejected, slots.i_chosen) for slots in swapped.slots_N],
    )
    output = await client.forward_backward_custom(swapped.datums_D, pair_loss(swapped, Verdict()))
    assert output.metrics["mean_margin"] == pytest.approx(-margin, abs=1e-5)


async def test_ties_are_trained_on_and_left_out_of_accuracies(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    ties = [dataclasses.replace(pair, is_tie=True) for pair in make_pairs(8)]
    builder = ListPreferenceDatasetBuilder(
        pairs=ties[4:], held_out_pairs=[*make_pairs(3), ties[3]], examples=PairExampleConfig(batch_size=4)
    )
    result = await main(make_config(dataset_builder=builder, num_epochs=8), service)
    lines = read_metrics(make_config().log_path)
    assert lines[7]["loss"] < lines[0]["loss"] and lines[7]["loss"] == pytest.approx(math.log(2), abs=0.05)
    assert "pair_accuracy" not in lines[0] and "mean_margin" not in lines[0]
    assert result.metrics["test/num_pairs"] == 3


async def test_an_objective_is_set_from_the_command_line_and_trained_on(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    arguments = ["objective.label_smoothing=0.2", "objective.centring_coef=0.01", "objective.length_debias_coef=1.0"]
    values = {"log_path": "unused", "dataset_builder": make_config().dataset_builder}
    objective = chz.Blueprint(Config).apply(values).make_from_argv(arguments).objective
    plain = await main(make_config("plain", max_steps=2, report_card=ReportCardConfig(is_on=False)), service)
    other = await main(
        make_config("other", max_steps=2, objective=objective, report_card=ReportCardConfig(is_on=False)), service
    )
    first, first_other = (read_metrics(make_config(name).log_path)[0] for name in ("plain", "other"))
    assert first["test/loss"] == first_other["test/loss"] and first["mean_margin"] == first_other["mean_margin"]
    assert first["loss"] != first_other["loss"]
    assert plain.metrics["test/loss"] != other.metrics["test/loss"]


async def test_the_temperature_is_reported_once_and_kept_with_the_scorer(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config(num_epochs=1)
    result = await main(config, service)
    lines = read_metrics(config.log_path)
    assert [line["step"] for line in lines if "test/temperature" in line] == [3]
    assert result.scorer.temperature == lines[-1]["test/temperature"] > 0
    scorer = result.scorer.build(service)
    margin = 0.7 * result.scorer.scale.std / result.scorer.temperature
    assert scorer.probability(0.5, -0.2) == pytest.approx(1 / (1 + math.exp(-margin)))
    assert scorer.probability(1.0, 1.0) == 0.5


async def test_without_held_out_pairs_there_are_no_test_metrics_and_still_a_scale(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    builder = ListPreferenceDatasetBuilder(
        pairs=make_pairs(6), examples=PairExampleConfig(batch_size=4, held_out_share=0.0)
    )
    config = make_config(dataset_builder=builder)
    result = await main(config, service)
    assert not any(key.startswith("test/") for line in read_metrics(config.log_path) for key in line)
    assert result.test_pair_accuracy is None and result.is_better_than_chance is None
    assert result.scorer.scale.std != 1.0


async def test_an_accuracy_that_may_be_chance_is_said_aloud(
    service: mint.ServiceClient, make_config: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        result = await main(make_config(max_steps=1, learning_rate=0.0), service)
    assert result.is_better_than_chance is False
    assert "which may be chance: train longer, or check the pairs" in caplog.text


@chz.chz(typecheck=True)
class NothingBuilder(PreferenceDatasetBuilder):
    """A builder of the user's own that finds no pairs."""

    def __call__(self) -> PreferenceSplit:
        return PreferenceSplit(train=[])


async def test_no_pairs_are_an_error_before_anything_is_made(
    service: mint.ServiceClient, mint_home: Path, make_config: Callable[..., Config]
) -> None:
    for builder in (NothingBuilder(), ListPreferenceDatasetBuilder(pairs=[])):
        config = make_config(dataset_builder=builder)
        with pytest.raises(InvalidRequest, match="no preference pairs: there is nothing to train on"):
            await main(config, service)
        assert not Path(config.log_path).exists()


async def test_a_pair_beyond_the_models_context_is_refused(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    pair = PreferencePair(
        [{"role": "user", "content": "Go on."}],
        {"role": "assistant", "content": "word " * 600},
        {"role": "assistant", "content": "No."},
    )
    builder = ListPreferenceDatasetBuilder(pairs=[*make_pairs(3), pair])
    with pytest.raises(InvalidRequest, match="more than the limit of 512"):
        await main(make_config(dataset_builder=builder), service)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_steps": 0}, "max_steps=0: must be at least 1"),
        ({"eval_every": -1}, "eval_every=-1: must be at least 0"),
        ({"ttl_seconds": 60, "save_every": 0}, "ttl_seconds=60 with save_every=0"),
    ],
)
def test_impossible_settings_are_refused(
    make_config: Callable[..., Config], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_config(**changes)
    assert words in str(caught.value)


def test_readout_and_sizes_can_be_set_from_the_command_line(tmp_path: Path) -> None:
    arguments = [
        f"log_path={tmp_path}",
        "dataset_builder=FilePreferenceDatasetBuilder",
        "dataset_builder.path=pairs.jsonl",
        "dataset_builder.examples.batch_size=3",
        "readout=SequenceLogprob",
        "readout.is_per_token=True",
    ]
    config = chz.Blueprint(Config).make_from_argv(arguments)
    assert config.readout == SequenceLogprob(is_per_token=True)
    assert config.dataset_builder.examples.batch_size == 3


async def test_scoring_never_changes_once_training_goes_on(service: mint.ServiceClient, tiny_model_dir: Path) -> None:
    renderer = get_renderer("qwen3_disable_thinking", get_tokenizer(str(tiny_model_dir)))
    client = await service.create_lora_training_client_async(str(tiny_model_dir), rank=4, seed=0)
    scorer = PreferenceScorer(await client.save_weights_and_get_sampling_client_async(), renderer, Verdict())
    conversation = make_pairs(1)[0].chosen_conversation
    before = await scorer.score(conversation)
    batch = PairBatch.of(render_pairs(make_pairs(4), Verdict(), renderer).pairs)
    await client.forward_backward_custom(batch.datums_D, pair_loss(batch, Verdict()))
    await client.optim_step(mint.AdamParams(learning_rate=0.05))
    assert await scorer.score(conversation) == before
