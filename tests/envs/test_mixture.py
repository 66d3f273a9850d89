"""Several datasets in one: shares, order, state, and a run that goes on from a checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mint
from envs import AdditionDatasetBuilder
from envs.curriculum import CurriculumConfig, ProblemStream
from envs.mixture import MixtureDataset, MixtureDatasetBuilder, MixturePart
from envs.types import Env, EnvGroupBuilder
from mint import builtin
from mint.errors import InvalidRequest
from recipe.checkpoint_utils import load_records
from recipe.rl import train
from recipe.rl.loop_modes import AsyncConfig, StreamMinibatchConfig
from recipe.run_log import read_metrics


class Nothing(EnvGroupBuilder):
    async def make_envs(self) -> Sequence[Env]:
        return []


def mixture(weights: dict[str, float], groups_per_batch: int = 4, num_batches: int = 25) -> MixtureDataset:
    config = CurriculumConfig(revisit_every=2)
    streams = [ProblemStream(name, [Nothing() for _ in range(3)], 0, config) for name in weights]
    return MixtureDataset(streams, list(weights.values()), groups_per_batch, num_batches)


def names(dataset: MixtureDataset, index: int) -> list[str]:
    found = [group.problem_id() for group in dataset.get_batch(index)]
    assert all(name is not None for name in found)
    return [name for name in found if name is not None]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_shares_are_as_near_to_the_weights_as_can_be(weights: list[int]) -> None:
    dataset = mixture({str(i): float(weight) for i, weight in enumerate(weights)}, groups_per_batch=1, num_batches=60)
    counts: Counter[str] = Counter()
    for index in range(60):
        counts[names(dataset, index)[0].partition("/")[0]] += 1
        for i, weight in enumerate(weights):
            # One whole group off at most for two parts; with more of them the choice is greedy, and may be further off.
            assert abs(counts[str(i)] - (index + 1) * weight / sum(weights)) < max(1, len(weights) - 1)


def test_two_to_one_by_hand() -> None:
    dataset = mixture({"a": 2.0, "b": 1.0}, groups_per_batch=6)
    assert [name.partition("/")[0] for name in names(dataset, 0)] == ["a", "b", "a", "a", "b", "a"]
    assert dataset.observe([])["mixture/a/share"] == pytest.approx(2 / 3)


def test_batches_come_in_order_and_the_latest_again() -> None:
    dataset = mixture({"a": 1.0})
    first = names(dataset, 0)
    assert names(dataset, 1) and names(dataset, 0) == first
    with pytest.raises(InvalidRequest, match="batch 5: a mixture of 25 batches gives them in order, and 2 is next"):
        dataset.get_batch(5)
    with pytest.raises(InvalidRequest, match="batch 25"):
        mixture({"a": 1.0}).get_batch(25)


def test_rewards_reach_the_part_they_belong_to() -> None:
    dataset = mixture({"a": 1.0, "b": 1.0})
    drawn = names(dataset, 0)
    metrics = dataset.observe([(name, [float(name.startswith("a"))] * 8) for name in drawn])
    assert metrics["curriculum/a/mean_estimate"] > 0.9 > 0.1 > metrics["curriculum/b/mean_estimate"]
    assert metrics["curriculum/a/num_settled"] == metrics["curriculum/a/num_seen"] == 2.0


@given(cut=st.integers(0, 10), ahead=st.integers(0, 2))
def test_a_restored_mixture_goes_on_as_if_nothing_had_happened(cut: int, ahead: int) -> None:
    """`ahead` batches are drawn before the rewards of a batch arrive."""
    weights = {"a": 3.0, "b": 1.0}
    whole, resumed = mixture(weights), mixture(weights)
    for index in range(10):
        if index == cut:
            state = json.loads(json.dumps(resumed.state_dict()))
            resumed = mixture(weights)
            resumed.load_state_dict(state)
        for dataset in (whole, resumed):
            for later in range(index, index + ahead + 1):
                dataset.get_batch(later)
        drawn = names(whole, index)
        assert names(resumed, index) == drawn
        rewards = [(name, [float(int(name[-1]) % 3 > 0), float(index % 2)]) for name in drawn]
        assert whole.observe(rewards) == resumed.observe(rewards)
    assert whole.state_dict() == resumed.state_dict()


def test_a_state_of_other_parts_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"the mixture has the parts \['a'\], the checkpoint's had \['b'\]"):
        mixture({"a": 1.0}).load_state_dict(mixture({"b": 1.0}).state_dict())


def additions(max_operand: int, num_test: int = 0) -> AdditionDatasetBuilder:
    return AdditionDatasetBuilder(
        model_name=str(builtin.model_dir()),
        renderer_name="qwen3_disable_thinking",
        group_size=2,
        groups_per_batch=3,
        num_batches=2,
        max_operand=max_operand,
        num_test_problems=num_test,
    )


def builder(**changes: Any) -> MixtureDatasetBuilder:
    parts = [
        MixturePart(name="small", dataset_builder=additions(9, num_test=2), weight=3.0),
        MixturePart(name="large", dataset_builder=additions(99)),
    ]
    settings: dict[str, Any] = {"parts": parts, "groups_per_batch": 4, "num_batches": 6}
    return MixtureDatasetBuilder(**{**settings, **changes})


async def test_the_builder_mixes_the_groups_and_joins_the_test_sets() -> None:
    data = builder()
    train_set, test_set = await data()
    assert len(train_set) == 6
    assert Counter(name.partition("/")[0] for name in names(train_set, 0)) == {"small": 3, "large": 1}
    assert test_set is not None and len(test_set.groups) == 2
    assert data.renderer_name == "qwen3_disable_thinking"
    group = train_set.get_batch(0)[0]
    assert len(await group.make_envs()) == 2 and group.logging_tags() == ["addition"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: builder(parts=[]), "parts is empty"),
        (lambda: builder(num_batches=0), "num_batches=0: must be at least 1"),
        (
            lambda: MixturePart(name="a", dataset_builder=additions(9), weight=0.0),
            "weight=0.0 of 'a': must be positive",
        ),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make()


def lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run without its timings and its plans."""
    return [
        {k: v for k, v in line.items() if not k.startswith(("time/", "progress/"))} for line in read_metrics(folder)
    ]


@pytest.mark.parametrize(
    "mode",
    [
        {},
        {"stream_minibatch_config": StreamMinibatchConfig(num_minibatches=2)},
        {"async_config": AsyncConfig(max_steps_off_policy=1)},
    ],
    ids=["on-policy", "streaming", "asynchronous"],
)
async def test_a_resumed_run_chooses_the_same_problems(
    mode: dict[str, Any], service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    def config(folder: str, max_steps: int) -> train.Config:
        # The random model gets nothing right: two wrong replies settle a problem here.
        data = builder(curriculum=CurriculumConfig(skip_below=0.3, revisit_every=2))
        return train.Config(
            model_name=str(tiny_model_dir),
            dataset_builder=data,
            log_path=str(tmp_path / folder),
            learning_rate=1e-3,
            max_tokens=3,
            lora_rank=4,
            eval_every=0,
            max_steps=max_steps,
            **mode,
        )

    await train.main(config("whole", 6), service)
    for max_steps in (2, 6):
        await train.main(config("parts", max_steps), service)
    if "async_config" not in mode:  # which groups meet in a batch is a matter of time there
        assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert lines(tmp_path / "whole")[-1]["curriculum/small/num_passed"] > 0
    states = [load_records(tmp_path / name)[-1].loop_state["dataset"] for name in ("whole", "parts")]
    assert states[0]["next_batch"] == states[1]["next_batch"] == 6
    assert states[0] == states[1] or "async_config" in mode
