"""Ensembles of preference models on the embedded engine with a tiny random model."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mint
from mint.errors import InvalidRequest
from recipe.checkpoint_utils import get_last_checkpoint
from recipe.config_record import load_config
from recipe.preference import ensemble, train
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.ensemble import EnsembleConfig, WithoutFoldBuilder
from recipe.preference.scorer import EnsembleScorer, ScorerSpec, conservative_mean
from recipe.preference.train import Config, main
from recipe.preference.types import PairExampleConfig, PreferencePair, prompt_key
from recipe.run_log import read_metrics
from renderers import get_text
from tests.recipe.preference.test_train import Killed, adapter_files, kill_at_step, make_pairs, without_times

NUM_STEPS = 3


@pytest.fixture
def make_config(tiny_model_dir: Path, tmp_path: Path) -> Callable[..., Config]:
    """Settings of two members over 9 pairs in batches of 3 (3 steps), 4 other prompts held out."""

    def make(folder: str = "run", **changes: Any) -> Config:
        settings: dict[str, Any] = {
            "log_path": str(tmp_path / folder),
            "model_name": str(tiny_model_dir),
            "renderer_name": "qwen3_disable_thinking",
            "dataset_builder": ListPreferenceDatasetBuilder(
                pairs=rows(make_pairs(13)[4:]),
                held_out_pairs=rows(make_pairs(4)),
                examples=PairExampleConfig(batch_size=3),
            ),
            "ensemble": EnsembleConfig(num_members=2),
            "lora_rank": 4,
            "learning_rate": 5e-3,
            "save_every": 2,
            "seed": 3,
        }
        return Config(**{**settings, **changes})

    return make


def rows(pairs: list[PreferencePair]) -> list[dict[str, str]]:
    """As in a file, so that a config.json can hold them."""
    return [
        {
            "prompt": get_text(pair.prompt[0]),
            "chosen": get_text(pair.chosen),
            "rejected": get_text(pair.rejected),
        }
        for pair in pairs
    ]


def what_it_left(config: Config) -> dict[str, Any]:
    """Everything of an ensemble's folder that does not name a run or measure time."""
    folder = Path(config.log_path)
    card = json.loads((folder / "report_card.json").read_bytes())
    members = [without_times(str(folder / "members" / str(i))) for i in range(config.ensemble.num_members)]
    return {"lines": without_times(config.log_path), "card": card, "members": members}


async def test_an_ensemble_is_a_stage_like_any_other(
    service: mint.ServiceClient, make_config: Callable[..., Config], mint_home: Path
) -> None:
    config = make_config()
    result = await main(config, service)
    lines = read_metrics(config.log_path)
    assert [line["step"] for line in lines] == list(range(NUM_STEPS + 1))
    assert result.metrics["num_steps"] == NUM_STEPS
    assert result.test_pair_accuracy == lines[-1]["test/pair_accuracy"]
    member_lines = [read_metrics(f"{config.log_path}/members/{i}") for i in (0, 1)]
    assert lines[1]["loss"] == pytest.approx((member_lines[0][1]["loss"] + member_lines[1][1]["loss"]) / 2)
    assert member_lines[0][1]["loss"] != member_lines[1][1]["loss"]
    assert lines[-1]["ensemble/disagreement"] > 0
    assert lines[-1]["ensemble/mean_member_accuracy"] == pytest.approx(
        (member_lines[0][-1]["test/pair_accuracy"] + member_lines[1][-1]["test/pair_accuracy"]) / 2
    )
    assert result.scorer.temperature == lines[-1]["test/temperature"]
    assert ScorerSpec.from_log_path(config.log_path) == result.scorer
    first, second = (adapter_files(mint_home, member.sampler_path) for member in result.scorer.members)
    assert first != second


async def test_the_first_member_is_the_single_model_of_the_same_seed(
    service: mint.ServiceClient, make_config: Callable[..., Config], mint_home: Path
) -> None:
    config = make_config()
    ensemble_result = await main(config, service)
    alone = await main(make_config("alone", ensemble=EnsembleConfig()), service)
    assert without_times(f"{config.log_path}/members/0") == without_times(make_config("alone").log_path)
    assert adapter_files(mint_home, alone.sampler_path) == adapter_files(
        mint_home, ensemble_result.scorer.members[0].sampler_path
    )


async def test_the_score_is_mean_less_spread_of_members_on_their_own_scales(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config(ensemble=EnsembleConfig(num_members=3, std_coef=0.5))
    result = await main(config, service)
    scorer = result.scorer.build(service)
    assert isinstance(scorer, EnsembleScorer) and len(scorer.members) == 3
    conversations = [pair.chosen_conversation for pair in make_pairs(4)]
    conversations += [pair.rejected_conversation for pair in make_pairs(4)]
    scores = await scorer.score_many(conversations)
    assert torch.tensor(scores).mean().item() == pytest.approx(0.0, abs=1e-4)
    assert torch.tensor(scores).std(unbiased=False).item() == pytest.approx(1.0, abs=1e-4)
    for conversation, score in zip(conversations[:2], scores, strict=False):
        by_member = [await member.build(service).score(conversation) for member in result.scorer.members]
        mean = sum(by_member) / 3
        std = (sum((one - mean) ** 2 for one in by_member) / 3) ** 0.5
        assert await scorer.raw_reward(conversation) == pytest.approx(mean - 0.5 * std, abs=1e-4)
        assert score == pytest.approx(result.scorer.scale.apply(mean - 0.5 * std), abs=1e-4)
    copy = await asyncio.to_thread(lambda: pickle.loads(pickle.dumps(scorer)))
    assert await copy.score(conversations[0]) == pytest.approx(scores[0], abs=1e-5)


@pytest.mark.parametrize("killed_in", [0, 1, "combine"])
async def test_an_ensemble_killed_anywhere_ends_as_if_undisturbed(
    service: mint.ServiceClient,
    mint_home: Path,
    make_config: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
    killed_in: int | str,
) -> None:
    undisturbed = await main(make_config("undisturbed"), service)
    config = make_config("killed")
    with monkeypatch.context() as patch:
        if killed_in == "combine":
            patch.setattr(ensemble, "_mean_lines", _die)
        elif killed_in == 1:
            _kill_in_second_member(patch)
        else:
            kill_at_step(patch, 2)
        with pytest.raises(Killed):
            await main(config, service)
    assert get_last_checkpoint(config.log_path) is None
    resumed = await main(config, service)
    assert what_it_left(config) == what_it_left(make_config("undisturbed"))
    for one, other in zip(resumed.scorer.members, undisturbed.scorer.members, strict=True):
        assert adapter_files(mint_home, one.sampler_path) == adapter_files(mint_home, other.sampler_path)
    assert resumed.scorer.scale == undisturbed.scorer.scale
    assert resumed.metrics == undisturbed.metrics


def _die(*arguments: object) -> None:
    raise Killed


def _kill_in_second_member(patch: pytest.MonkeyPatch) -> None:
    batch_of_step = train.batch_of_step
    seeds: list[int] = []

    def batch_or_death(num_pairs: int, batch_size: int, asked: int, seed: int) -> list[int]:
        seeds.append(seed)
        if len(set(seeds)) == 2 and asked == 2:
            raise Killed
        return batch_of_step(num_pairs, batch_size, asked, seed)

    patch.setattr(train, "batch_of_step", batch_or_death)


async def test_a_finished_ensemble_is_not_run_again_and_another_weight_of_the_spread_is_applied(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config()
    first = await main(config, service)
    written = Path(config.log_path, "metrics.jsonl").read_bytes()
    assert await main(config, service) == first
    assert Path(config.log_path, "metrics.jsonl").read_bytes() == written
    bold = await main(make_config(ensemble=EnsembleConfig(num_members=2, std_coef=0.0)), service)
    assert bold.scorer.members == first.scorer.members
    assert bold.scorer.std_coef == 0.0 and bold.scorer.scale != first.scorer.scale


async def test_members_on_folds_go_without_different_prompts(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config(ensemble=EnsembleConfig(num_members=3, differ_by="folds"))
    everything = {prompt_key(pair.prompt) for pair in config.dataset_builder().train}
    left_out = []
    for member in ensemble.member_configs(config):
        split = member.dataset_builder()
        left_out.append(everything - {prompt_key(pair.prompt) for pair in split.train})
        assert list(split.held_out) == list(config.dataset_builder().held_out)
        assert member.dataset_builder.examples.batch_size == 3
    assert [len(prompts) for prompts in left_out] == [3, 3, 3]
    assert set.union(*left_out) == everything
    result = await main(config, service)
    assert result.metrics["num_steps"] == 2  # 6 of the 9 pairs in batches of 3
    assert result.test_pair_accuracy is not None
    assert load_config(f"{config.log_path}/members/1", Config) == ensemble.member_configs(config)[1]


def test_more_members_than_prompts_cannot_have_folds(make_config: Callable[..., Config]) -> None:
    source = ListPreferenceDatasetBuilder(pairs=make_pairs(4)[1:], held_out_pairs=make_pairs(1))
    with pytest.raises(InvalidRequest, match="ensemble.num_members=4: there are only 3 training prompts"):
        WithoutFoldBuilder(source=source, num_folds=4, i_fold=0)()


async def test_a_folder_is_one_model_or_one_ensemble(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    await main(make_config(max_steps=1), service)
    for other in (EnsembleConfig(), EnsembleConfig(num_members=3), EnsembleConfig(num_members=2, differ_by="folds")):
        with pytest.raises(InvalidRequest, match="was made with ensemble.num_members=2, ensemble.differ_by=seeds"):
            await main(make_config(max_steps=1, ensemble=other), service)
    await main(make_config("single", max_steps=1, ensemble=EnsembleConfig()), service)
    with pytest.raises(InvalidRequest, match="was made with ensemble.num_members=1 and is now asked for"):
        await main(make_config("single", max_steps=1), service)


def test_a_spec_of_an_ensemble_survives_json(make_config: Callable[..., Config]) -> None:
    config = make_config()
    member = ScorerSpec(
        "mint://a/sampler_weights/final", "m", "role_colon", config.readout, train.RewardScale(1, 2), 1.5
    )
    whole = ScorerSpec(
        member.sampler_path, "m", "role_colon", config.readout, train.RewardScale(3, 4), 0.5, (member, member), 0.25
    )
    record = train.checkpoint_utils.CheckpointRecord(
        "final", 3, "mint://a/weights/final", member.sampler_path, {"scorer": whole.to_json()}, "m", "role_colon", 4
    )
    reread = record.from_dict(json.loads(json.dumps(record.to_dict())))
    assert ScorerSpec.from_record(reread) == whole


def test_conservative_mean_by_hand() -> None:
    # Members say (1, 3) of one reply, 2 ± 1, and (2, 2) of another, which is as good on average and agreed on.
    scores = conservative_mean(torch.tensor([[1.0, 2.0], [3.0, 2.0]]), 0.5)
    assert scores.tolist() == pytest.approx([1.5, 2.0])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_members": 0}, "ensemble.num_members=0: must be at least 1"),
        ({"std_coef": -0.5}, "ensemble.std_coef=-0.5: must be finite and at least 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        EnsembleConfig(**settings)
    assert words in str(caught.value)
