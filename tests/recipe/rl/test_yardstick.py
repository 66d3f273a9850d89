"""The yardstick on the real engine: a policy learns to write long, which the independent score dislikes or likes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chz
import numpy as np
import pytest

import mint
from mint import types
from mint.checkpoint_store import CheckpointStore
from mint.errors import InvalidRequest
from recipe.reply_sampling import Score
from recipe.rl.env_faults import EnvFaultConfig, EnvironmentFailed
from recipe.rl.train import Config, main
from recipe.rl.types import (
    ActionExtra,
    Env,
    EnvGroupBuilder,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    StopCondition,
)
from recipe.rl.yardstick import Yardstick, YardstickSampling, read_best, read_measurements, text_metrics
from recipe.rl.yardstick_record import Measurement, best_of
from recipe.run_log import read_metrics
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, Renderer, get_renderer, get_text

PROMPTS: list[list[Message]] = [[{"role": "user", "content": f"Say {word}"}] for word in "abcdefghijkl"]
FILES = ("yardstick.jsonl", "yardstick_best.json", "disagreements.jsonl")


def length_of(conversation: list[Message]) -> float:
    return len(get_text(conversation[-1])) / 10


async def length(conversation: list[Message]) -> float:
    return length_of(conversation)


async def brevity(conversation: list[Message]) -> float:
    return -length_of(conversation)


class LongReplyEnv(Env):
    def __init__(self, prompt: list[Message], renderer: Renderer, fuse: Path | None) -> None:
        self.prompt, self.renderer, self.fuse = prompt, renderer, fuse

    async def initial_observation(self) -> tuple[types.ModelInput, StopCondition]:
        return self.renderer.build_generation_prompt(self.prompt), self.renderer.get_stop_sequences()

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        if self.fuse is not None and self.fuse.exists():
            self.fuse.unlink()
            raise RuntimeError("the power went off")
        reply, _ = self.renderer.parse_response(action)
        return StepResult(length_of([reply]), True, types.ModelInput.from_ints([]), [])


class LongReplies(EnvGroupBuilder):
    def __init__(self, prompt: list[Message], renderer: Renderer, fuse: Path | None) -> None:
        self.make = lambda: LongReplyEnv(prompt, renderer, fuse)

    async def make_envs(self) -> Sequence[Env]:
        return [self.make() for _ in range(4)]


@chz.chz(typecheck=True)
class LongReplyBuilder(RLDatasetBuilder):
    model_name: str
    num_batches: int
    # While this file exists, the last batch fails; the failure removes it.
    fuse: str | None = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        return LongReplyDataset(self), None


class LongReplyDataset(RLDataset):
    def __init__(self, builder: LongReplyBuilder) -> None:
        self.builder = builder
        self.renderer = get_renderer("role_colon", get_tokenizer(builder.model_name))

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        fuse = Path(self.builder.fuse) if self.builder.fuse and index == len(self) - 1 else None
        return [LongReplies(prompt, self.renderer, fuse) for prompt in PROMPTS[:4]]

    def __len__(self) -> int:
        return self.builder.num_batches


Start = Callable[..., Any]


@pytest.fixture
def run(service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path) -> Start:
    """Train in a folder of its own, with the yardstick of that score, or without one."""
    model = str(tiny_model_dir)

    async def start(
        folder: str, independent: Score | None, *, fuse: Path | None = None, sampling: Any = None, **changes: Any
    ) -> Path:
        log_path = tmp_path / folder
        values: dict[str, Any] = {
            "model_name": model,
            "dataset_builder": LongReplyBuilder(model_name=model, num_batches=6, fuse=str(fuse) if fuse else None),
            "log_path": str(log_path),
            "learning_rate": 1e-2,
            "max_tokens": 6,
            "lora_rank": 4,
            "eval_every": 0,
            "save_every": 2,
            "num_groups_to_log": 0,
            "env_faults": EnvFaultConfig(on_fault="stop"),
            **changes,
        }
        yardsticks: list[Yardstick] = []
        if independent is not None:
            yardstick = Yardstick(
                sampling or YardstickSampling(every=3, num_disagreements=3),
                PROMPTS,
                get_renderer("role_colon", get_tokenizer(model)),
                length,
                independent,
                log_path,
                max_tokens=6,
                reference_client=await service.create_sampling_client_async(base_model=model),
                service=service,
                ttl_seconds=changes.get("ttl_seconds"),
            )
            yardsticks.append(yardstick)
        await main(Config(**values), service, yardsticks)
        return log_path

    return start


def contents(folder: Path, files: Sequence[str] = FILES) -> dict[str, str]:
    """The files, without the names that storage draws for training runs."""
    return {name: re.sub(r"mint://[0-9a-f]{16}/", "mint://RUN/", (folder / name).read_text()) for name in files}


def training_metrics(folder: Path) -> list[dict[str, Any]]:
    lines = read_metrics(folder)
    kept = [{k: v for k, v in line.items() if not k.startswith(("time/", "yardstick/"))} for line in lines]
    return [line for line in kept if "loss" in line]


async def test_a_reward_that_parts_from_the_independent_score_is_noticed(
    run: Start, mint_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = await run("parted", brevity)
    measurements = read_measurements(folder)
    assert [measured.iteration for measured in measurements] == [0, 3, 6]
    first, last = measurements[0].metrics, measurements[-1].metrics
    assert last["yardstick/reward"] > first["yardstick/reward"]
    assert last["yardstick/independent"] < first["yardstick/independent"]
    assert first["yardstick/alarm"] == 0.0 and last["yardstick/alarm"] == last["yardstick/alarm_parted"] == 1.0
    assert "since iteration 0 the reward rose from" in caplog.text
    assert abs(first["yardstick/kl_per_reply"]) < 1e-3 < last["yardstick/kl_per_reply"]
    logged = [line for line in read_metrics(folder) if "yardstick/alarm" in line]
    assert [line["step"] for line in logged] == [0, 3, 6]
    for line, measured in zip(logged, measurements, strict=True):
        assert {key: line[key] for key in measured.metrics} == measured.metrics

    # The reward is best at the end; the checkpoint kept is the one that the independent score likes best.
    best = read_best(folder)
    assert best is not None and best.iteration == 0 and best.value == first["yardstick/independent"]
    store = CheckpointStore(mint_home)
    store.verify(best.state_path)
    store.verify(best.sampler_path)
    assert best.sampler_path.endswith("/sampler_weights/yardstick_000000")


async def test_replies_on_which_the_two_disagree_most_are_kept(run: Start) -> None:
    folder = await run("parted", brevity, max_steps=1)
    lines = [json.loads(line) for line in (folder / "disagreements.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 0, 0, 1, 1, 1]
    first = lines[0]
    assert first["prompt"] == PROMPTS[first["i_prompt"]]
    assert first["reward"] == pytest.approx(len(first["reply"]) / 10) == -first["independent"]
    # The scores are opposites, so the widest apart are the longest and the shortest reply.
    all_rewards = read_measurements(folder)[0].reward_PR
    assert first["reward"] in (all_rewards.min(), all_rewards.max())
    assert first["reward_place"] + first["independent_place"] == pytest.approx(1.0)
    apart = [abs(line["reward_place"] - line["independent_place"]) for line in lines[:3]]
    assert apart == sorted(apart, reverse=True)


async def test_where_both_rise_there_is_no_alarm_and_the_best_changes(run: Start, mint_home: Path) -> None:
    folder = await run("agreeing", length, ttl_seconds=10_000)
    measurements = read_measurements(folder)
    assert all(measured.metrics["yardstick/alarm"] == 0.0 for measured in measurements)
    assert measurements[-1].metrics["yardstick/rank_correlation"] == pytest.approx(1.0)
    best = read_best(folder)
    assert best is not None and best.iteration == 6
    # The best outlives the run's other checkpoints; the one it replaced does not.
    store, former = CheckpointStore(mint_home), measurements[0]
    assert former.sampler_path is not None
    assert store.info(best.state_path).expires_at is None and store.info(best.sampler_path).expires_at is None
    assert store.info(former.sampler_path).expires_at is not None


async def test_training_is_the_same_with_and_without_it(run: Start) -> None:
    with_one = await run("with", brevity, max_steps=4)
    without = await run("without", None, max_steps=4)
    assert training_metrics(with_one) == training_metrics(without)
    assert not (without / "yardstick.jsonl").exists()


async def test_a_run_that_broke_off_ends_with_the_same_files(run: Start, tmp_path: Path) -> None:
    """It breaks in the last iteration, after a measurement that its last checkpoint does not know of."""
    sampling = YardstickSampling(every=1, num_prompts=4, num_disagreements=2)
    whole = await run("whole", length, sampling=sampling)
    fuse = tmp_path / "fuse"
    fuse.touch()
    with pytest.raises(EnvironmentFailed, match="the power went off"):
        await run("parts", length, fuse=fuse, sampling=sampling)
    assert [measured.iteration for measured in read_measurements(tmp_path / "parts")] == [0, 1, 2, 3, 4, 5]
    parts = await run("parts", length, fuse=fuse, sampling=sampling)
    assert contents(parts) == contents(whole)
    assert training_metrics(parts) == training_metrics(whole)


async def test_a_run_that_broke_off_before_its_first_checkpoint_starts_afresh(run: Start, tmp_path: Path) -> None:
    fuse = tmp_path / "fuse"
    fuse.touch()
    with pytest.raises(EnvironmentFailed, match="the power went off"):
        await run("parts", length, fuse=fuse, save_every=0)
    parts = await run("parts", length, fuse=fuse, save_every=0)
    assert [measured.iteration for measured in read_measurements(parts)] == [0, 3, 6]


def test_the_best_is_the_earliest_of_equals() -> None:
    measurements = [
        Measurement(i, {}, np.zeros((1, 1)), np.array([[value]])) for i, value in enumerate((0.1, 0.5, 0.5))
    ]
    best = best_of(measurements)
    assert best is not None and best.iteration == 1
    assert best_of([]) is None


def test_what_is_seen_of_the_text(tokenizer: Any) -> None:
    from recipe.completers import TokensWithLogprobs

    renderer = get_renderer("role_colon", tokenizer)
    texts = ("one two three four one two three four", "one two")
    tokens = [tokenizer.encode(text) for text in texts]
    replies = [[TokensWithLogprobs(t, [-0.5] * len(t), "stop")] for t in tokens[:1]]
    replies += [[TokensWithLogprobs(t, [-1.0] * len(t), "length")] for t in tokens[1:]]
    metrics = text_metrics(replies, renderer)
    sizes = [len(t) for t in tokens]
    assert metrics["reply_tokens"] == sum(sizes) / 2 and metrics["cut_share"] == 0.5
    assert metrics["entropy"] == pytest.approx((0.5 * sizes[0] + 1.0 * sizes[1]) / sum(sizes))
    assert metrics["repetition"] == pytest.approx((1 / 5 + 0) / 2)
    assert metrics["distinct_2"] == pytest.approx(4 / 8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"every": -1}, "every=-1 must be at least 0"),
        ({"num_prompts": 0}, "num_prompts=0 must be at least 1"),
        ({"replies_per_prompt": 0}, "replies_per_prompt=0 must be at least 1"),
        ({"alpha": 0.0}, "alpha=0.0 must be between 0 and 1"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        YardstickSampling(**values)


async def test_a_score_that_is_not_finite_is_named(run: Start) -> None:
    async def broken(conversation: list[Message]) -> float:
        return float("nan")

    with pytest.raises(InvalidRequest, match="the independent score of a held-out reply is not finite"):
        await run("broken", broken)
