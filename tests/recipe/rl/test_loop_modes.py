"""Streaming and asynchronous mode on the real engine: same groups, same metrics, and who waits for whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chz
import numpy as np
import pytest
from safetensors.numpy import load_file

import mint
from mint import types
from mint.checkpoint_store import CheckpointStore
from mint.errors import InvalidRequest
from recipe.rl import learning, streaming
from recipe.rl.env_faults import EnvFaultConfig
from recipe.rl.loop_modes import AsyncConfig, StreamMinibatchConfig
from recipe.rl.rollouts import EnvironmentFailed
from recipe.rl.train import Config, RLResult, main
from recipe.rl.types import ActionExtra, Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult, StopCondition
from recipe.run_log import read_metrics

NUM_BATCHES, GROUPS_PER_BATCH = 5, 3
Hook = Callable[[int, int, int], Any]


class EvenTokensEnv(Env):
    """The reward is the share of even token ids; the hook may wait or raise before it is given."""

    def __init__(self, place: tuple[int, int], num_plays: int, hook: Hook | None) -> None:
        self.place = place
        self.num_plays = num_plays
        self.hook = hook

    async def initial_observation(self) -> tuple[types.ModelInput, StopCondition]:
        return types.ModelInput.from_ints([1 + self.place[0], 20 + self.place[1]]), []

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        if self.hook is not None:
            await self.hook(*self.place, self.num_plays)
        reward = sum(token % 2 == 0 for token in action) / len(action)
        logs = {"place": f"{self.place[0]}.{self.place[1]}"}
        return StepResult(reward, True, types.ModelInput.from_ints([]), [], logs=logs)


class EvenTokens(EnvGroupBuilder):
    def __init__(self, place: tuple[int, int], hook: Hook | None) -> None:
        self.place = place
        self.hook = hook
        self.num_plays = 0

    async def make_envs(self) -> Sequence[Env]:
        self.num_plays += 1
        return [EvenTokensEnv(self.place, self.num_plays, self.hook) for _ in range(4)]


class EvenTokensDataset(RLDataset):
    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [EvenTokens((index, i), HOOKS.get("step")) for i in range(GROUPS_PER_BATCH)]

    def __len__(self) -> int:
        return NUM_BATCHES


@chz.chz(typecheck=True)
class EvenTokensBuilder(RLDatasetBuilder):
    async def __call__(self) -> tuple[RLDataset, None]:
        return EvenTokensDataset(), None


# A config holds values only, so the hook of a test goes through here.
HOOKS: dict[str, Hook] = {}
Train = Callable[..., Any]


@pytest.fixture
def train(service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path) -> Train:
    async def start(folder: str, *, hook: Hook | None = None, **changes: Any) -> RLResult:
        HOOKS.clear()
        HOOKS.update({} if hook is None else {"step": hook})
        settings: dict[str, Any] = {
            "model_name": str(tiny_model_dir),
            "dataset_builder": EvenTokensBuilder(),
            "log_path": str(tmp_path / folder),
            "learning_rate": 1e-2,
            "max_tokens": 4,
            "lora_rank": 4,
            "save_every": 1,
            "num_groups_to_log": 0,
        }
        return await asyncio.wait_for(main(Config(**{**settings, **changes}), service), timeout=60)

    return start


@pytest.fixture
def adapter(mint_home: Path) -> Callable[[str], dict[str, np.ndarray]]:
    """path -> the LoRA weights of a checkpoint."""
    return lambda path: load_file(CheckpointStore(mint_home).verify(path)["adapter_model.safetensors"])


def trained_places(log_path: Path) -> list[list[str]]:
    """The groups of each iteration by their place in the dataset, as its rollouts have them."""
    iterations = []
    for path in sorted((log_path / "rollouts").glob("iteration_*.jsonl")):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        iterations.append(sorted({record["turns"][0]["logs"]["place"] for record in records if "fault" not in record}))
    return iterations


ALL_PLACES = sorted(f"{i_batch}.{i}" for i_batch in range(NUM_BATCHES) for i in range(GROUPS_PER_BATCH))


def assert_same_weights(first: dict[str, np.ndarray], second: dict[str, np.ndarray], atol: float) -> None:
    assert first.keys() == second.keys()
    for name, weights in first.items():
        np.testing.assert_allclose(weights, second[name], atol=atol, err_msg=name)


@pytest.mark.parametrize("num_minibatches", [1, 2, 3, 7])
async def test_streaming_gives_the_on_policy_weights(train: Train, adapter: Any, num_minibatches: int) -> None:
    on_policy = await train("on_policy", max_steps=2)
    stream = StreamMinibatchConfig(num_minibatches=num_minibatches)
    streamed = await train("streamed", max_steps=2, stream_minibatch_config=stream)
    # Adam divides by the root of the squared gradient, which magnifies rounding where a gradient is almost zero.
    assert_same_weights(adapter(on_policy.state_path), adapter(streamed.state_path), atol=1e-3)
    same = {key for key in on_policy.metrics if not key.startswith("time/")}
    assert same == {key for key in streamed.metrics if not key.startswith("time/")}
    for key in same - {"optim/update_norm"}:
        assert streamed.metrics[key] == pytest.approx(on_policy.metrics[key], rel=1e-3, abs=1e-6), key


async def test_streaming_trains_on_a_part_while_other_groups_still_play(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last group does not end before the first part was submitted: to wait for the whole batch would never end."""
    submitted, order = asyncio.Event(), []

    def submit_backward(*args: Any) -> Any:
        order.append("part submitted")
        submitted.set()
        return submit(*args)

    async def hook(i_batch: int, i_group: int, num_plays: int) -> None:
        if i_group == GROUPS_PER_BATCH - 1:
            await submitted.wait()
            order.append("last group played")

    submit = streaming.submit_backward
    monkeypatch.setattr(streaming, "submit_backward", submit_backward)
    await train("run", hook=hook, max_steps=1, stream_minibatch_config=StreamMinibatchConfig(num_minibatches=3))
    assert order[0] == "part submitted" and order[-1] == "part submitted"
    assert order.count("part submitted") == 3 and order.count("last group played") == 4


@pytest.mark.parametrize("mode", ["streaming", "asynchronous"])
async def test_a_mode_gives_the_same_bytes_twice_where_environments_take_no_time(
    train: Train, adapter: Any, mode: str
) -> None:
    settings = (
        {"stream_minibatch_config": StreamMinibatchConfig(num_minibatches=2)}
        if mode == "streaming"
        else {"async_config": AsyncConfig(max_steps_off_policy=2)}
    )
    first, second = [adapter((await train(folder, **settings)).state_path) for folder in ("first", "second")]
    assert_same_weights(first, second, atol=0)


@pytest.mark.parametrize("mode", ["streaming", "asynchronous"])
async def test_a_resumed_run_trains_on_every_group_once(train: Train, tmp_path: Path, mode: str) -> None:
    settings = (
        {"stream_minibatch_config": StreamMinibatchConfig(num_minibatches=2)}
        if mode == "streaming"
        else {"async_config": AsyncConfig(max_steps_off_policy=2)}
    )

    async def hook(i_batch: int, i_group: int, num_plays: int) -> None:
        if i_batch == 3:
            raise RuntimeError("the power went off")

    with pytest.raises(EnvironmentFailed, match="the power went off"):
        await train("run", hook=hook, **settings, env_faults=EnvFaultConfig(on_fault="stop"))
    assert 0 < len(read_metrics(tmp_path / "run")) < NUM_BATCHES
    await train("run", **settings)
    iterations = trained_places(tmp_path / "run")
    assert len(iterations) == NUM_BATCHES
    assert sorted(place for places in iterations for place in places) == ALL_PLACES


@pytest.mark.parametrize("max_steps_off_policy", [1, 2, 10])
async def test_async_trains_on_every_group_once_and_none_is_too_old(
    train: Train, tmp_path: Path, max_steps_off_policy: int
) -> None:
    async def hook(i_batch: int, i_group: int, num_plays: int) -> None:
        await asyncio.sleep(0.02 * ((2 * i_batch + i_group) % 3))

    await train("run", hook=hook, async_config=AsyncConfig(max_steps_off_policy=max_steps_off_policy))
    lines = read_metrics(tmp_path / "run")
    assert max(line["async/max_steps_off_policy"] for line in lines) <= max_steps_off_policy
    assert lines[0]["async/mean_steps_off_policy"] == 0 < lines[-1]["async/mean_steps_off_policy"]
    assert lines[0]["kl_sample_train_v1"] == pytest.approx(0, abs=1e-6)
    iterations = trained_places(tmp_path / "run")
    assert [len(places) for places in iterations] == [GROUPS_PER_BATCH] * NUM_BATCHES
    assert sorted(place for places in iterations for place in places) == ALL_PLACES


async def test_async_plays_a_group_again_that_became_too_old(train: Train, tmp_path: Path) -> None:
    """Group 0.1 hangs when first played; its weights grow too old, and the second play answers at once."""
    cancelled = []

    async def hook(i_batch: int, i_group: int, num_plays: int) -> None:
        if (i_batch, i_group, num_plays) == (0, 1, 1):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.append((i_batch, i_group))
                raise

    await train("run", hook=hook, async_config=AsyncConfig(max_steps_off_policy=2))
    lines = read_metrics(tmp_path / "run")
    assert sum(line["async/num_replayed_groups"] for line in lines) == 1
    assert cancelled == [(0, 1)] * 4
    iterations = trained_places(tmp_path / "run")
    assert sorted(place for places in iterations for place in places) == ALL_PLACES
    assert not any("0.1" in places for places in iterations[:3])


async def test_async_plays_the_next_groups_while_it_trains(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch is not trained on before a group of the second is played: one after the other would never end."""
    played, order = asyncio.Event(), []

    async def hook(i_batch: int, i_group: int, num_plays: int) -> None:
        if i_batch == 1:
            order.append("second batch played")
            played.set()

    async def update_policy(*args: Any, **kwargs: Any) -> Any:
        await played.wait()
        order.append("trained")
        return await update(*args, **kwargs)

    update = learning.update_policy
    monkeypatch.setattr(learning, "update_policy", update_policy)
    await train("run", hook=hook, async_config=AsyncConfig(max_steps_off_policy=1))
    assert order[0] == "second batch played" and order.count("trained") == NUM_BATCHES


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AsyncConfig(max_steps_off_policy=0), "async_config.max_steps_off_policy=0: must be at least 1"),
        (lambda: StreamMinibatchConfig(num_minibatches=0), "num_minibatches=0: must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make()


async def test_two_modes_at_once_are_refused(train: Train) -> None:
    with pytest.raises(InvalidRequest, match="choose one of the two modes"):
        await train(
            "run",
            async_config=AsyncConfig(max_steps_off_policy=1),
            stream_minibatch_config=StreamMinibatchConfig(num_minibatches=2),
        )
