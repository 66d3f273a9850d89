"""Whole runs with an environment that fails now and then: they end, resume to the same bytes, or name the cause."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chz
import pytest

import mint
from mint import types
from mint.checkpoint_store import CheckpointStore
from recipe.checkpoint_utils import load_records
from recipe.rl.env_faults import EnvFaultConfig, EnvironmentFailed
from recipe.rl.train import Config, RLResult, main
from recipe.rl.types import (
    ActionExtra,
    Env,
    EnvGroupBuilder,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    StopCondition,
)
from recipe.run_log import read_metrics

GROUPS_PER_BATCH = 3
NUM_BATCHES = 5


class FlakyEnv(Env):
    """The reward is the share of even token ids. Fails on replies whose first token is one of `num_bad` in 10."""

    def __init__(self, prompt: list[int], num_bad: int) -> None:
        self.prompt = prompt
        self.num_bad = num_bad

    async def initial_observation(self) -> tuple[types.ModelInput, StopCondition]:
        return types.ModelInput.from_ints(self.prompt), []

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        if action[0] % 10 < self.num_bad:
            raise ConnectionError(f"no answer to {action[0]}")
        reward = sum(token % 2 == 0 for token in action) / len(action)
        return StepResult(reward, True, types.ModelInput.empty(), [])


class FlakyGroup(EnvGroupBuilder):
    def __init__(self, prompt: list[int], group_size: int, num_bad: int) -> None:
        self.prompt = prompt
        self.group_size = group_size
        self.num_bad = num_bad

    async def make_envs(self) -> Sequence[Env]:
        return [FlakyEnv(self.prompt, self.num_bad) for _ in range(self.group_size)]


class FlakyDataset(RLDataset):
    def __init__(self, builder: FlakyBuilder, num_batches: int, group_size: int, num_bad: list[int]) -> None:
        self.builder = builder
        self.num_batches = num_batches
        self.group_size = group_size
        self.num_bad = num_bad

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        fuse = Path(self.builder.fuse or "")
        if self.builder.fuse and index == 3 and fuse.exists():
            fuse.unlink()
            raise RuntimeError("the power went off")
        return [
            FlakyGroup([1 + index, 2 + i], self.group_size, self.num_bad[index % len(self.num_bad)])
            for i in range(GROUPS_PER_BATCH)
        ]

    def __len__(self) -> int:
        return self.num_batches


@chz.chz(typecheck=True)
class FlakyBuilder(RLDatasetBuilder):
    # Per batch: replies that fail, in 10.
    num_bad: list[int]
    # The same for the test set, of which there is none where this is None.
    num_bad_tests: int | None = None
    # While this file exists, batch 3 breaks the run and removes it.
    fuse: str | None = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        test = None if self.num_bad_tests is None else FlakyDataset(self, 2, 1, [self.num_bad_tests])
        return FlakyDataset(self, NUM_BATCHES, 3, self.num_bad), test


@pytest.fixture
def run(service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run the stage in its own folder under tmp_path."""

    async def start(folder: str, rule: EnvFaultConfig, **data: Any) -> RLResult:
        config = Config(
            model_name=str(tiny_model_dir),
            dataset_builder=FlakyBuilder(**data),
            log_path=str(tmp_path / folder),
            learning_rate=1e-2,
            max_tokens=4,
            lora_rank=4,
            save_every=1,
            eval_every=3,
            num_groups_to_log=2,
            env_faults=rule,
        )
        return await main(config, service)

    return start


def lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run without its timings."""
    kept = read_metrics(folder)
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in kept]


def outcome(folder: Path, home: Path, result: RLResult) -> tuple[Any, ...]:
    """Everything a run leaves that must not depend on an interruption."""
    files = CheckpointStore(home).verify(result.state_path)
    tensors = {name: path.read_bytes() for name, path in files.items() if name.endswith(".safetensors")}
    rollouts = {path.name: path.read_bytes() for path in sorted((folder / "rollouts").iterdir())}
    return lines(folder), tensors, rollouts, [record.loop_state for record in load_records(folder)]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("on_fault", ["drop", "retry"])
async def test_a_flaky_run_ends_and_a_resumed_one_equals_it(
    run: Callable[..., Any], mint_home: Path, tmp_path: Path, on_fault: Any
) -> None:
    rule = EnvFaultConfig(on_fault=on_fault, max_retries=1)
    data: dict[str, Any] = {"num_bad": [0, 2, 1], "num_bad_tests": 2}
    whole = await run("whole", rule, **data)
    counted = lines(tmp_path / "whole")[:NUM_BATCHES]
    assert sum(line["env/all/faults/raised"] for line in counted) > 0
    acted_on = "env/all/faults/groups_retried" if on_fault == "retry" else "env/all/faults/groups_dropped"
    assert sum(line[acted_on] for line in counted) > 0
    for line in counted:
        assert line["batch/num_groups"] == GROUPS_PER_BATCH - line["env/all/faults/groups_dropped"]
    fuse = tmp_path / "fuse"
    fuse.touch()
    with pytest.raises(RuntimeError, match="the power went off"):
        await run("broken", rule, **data, fuse=str(fuse))
    resumed = await run("broken", rule, **data, fuse=str(fuse))
    assert outcome(tmp_path / "broken", mint_home, resumed) == outcome(tmp_path / "whole", mint_home, whole)


async def test_an_iteration_that_loses_every_group_is_skipped_and_recorded(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    await run("run", EnvFaultConfig(), num_bad=[0, 10, 0, 0, 0])
    line = lines(tmp_path / "run")[1]
    assert (line["batch/is_skipped"], line["batch/num_groups"], line["env/all/faults/groups_dropped"]) == (1, 0, 3)
    assert "env/all/reward/total" not in line and "loss" not in line
    failed = records(tmp_path / "run" / "rollouts" / "iteration_000001.jsonl")
    assert [(record["group"], record["member"], record["attempt"]) for record in failed] == [
        (group, member, 0) for group in range(3) for member in range(3)
    ]
    for record in failed:
        [turn] = record["turns"]
        token = turn["tokens"][0]
        assert record["fault"]["kind"] == "raised"
        assert record["fault"]["error"] == f"ConnectionError: no answer to {token}"
        assert f'{__file__}", line' in record["fault"]["traceback"]
        assert turn["reward"] is None and len(turn["logprobs"]) == 4
    text = (tmp_path / "run" / "rollouts" / "iteration_000001.txt").read_text(encoding="utf-8")
    assert text.count("=== group 0, attempt 0: raised in step() of FlakyEnv (group 0, member 0), turn 0") == 1
    assert text.count("--- fault\n") == 6


async def test_a_defect_in_the_environment_stops_the_first_iteration(run: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        await run("run", EnvFaultConfig(), num_bad=[10])
    message = str(caught.value)
    assert "failed in 3 of the last 3 groups: no group came through" in message
    assert "the first one was in iteration_000000, step() of FlakyEnv (group 0, member 0), turn 0: Conn" in message
    assert f'{__file__}", line' in message
    assert len(records(tmp_path / "run" / "rollouts" / "iteration_000000.jsonl")) == 9
    assert lines(tmp_path / "run") == []


async def test_a_resumed_run_stops_where_an_undisturbed_one_does(run: Callable[..., Any], tmp_path: Path) -> None:
    # Batch 1 loses three groups, batch 4 another three: more than 5 of 50.
    rule = EnvFaultConfig(window_groups=50, max_failed_share=0.1)
    messages: list[str] = []
    for folder in ("whole", "broken"):
        fuse = tmp_path / "fuse"
        if folder == "broken":
            fuse.touch()
            with pytest.raises(RuntimeError, match="the power went off"):
                await run(folder, rule, num_bad=[0, 10, 0, 0, 10], fuse=str(fuse))
        with pytest.raises(EnvironmentFailed) as caught:
            await run(folder, rule, num_bad=[0, 10, 0, 0, 10], fuse=str(fuse))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "failed in 6 of the last 15 groups" in messages[0]
    assert "the first one was in iteration_000001" in messages[0]


async def test_failures_in_the_test_set_are_counted_and_left_out(run: Callable[..., Any], tmp_path: Path) -> None:
    await run("run", EnvFaultConfig(), num_bad=[0], num_bad_tests=5)
    line = lines(tmp_path / "run")[0]
    dropped = line["test/env/all/faults/groups_dropped"]
    assert 0 < dropped < 2 * GROUPS_PER_BATCH
    assert line["test/env/all/total_episodes"] == 2 * GROUPS_PER_BATCH - dropped
    written = records(tmp_path / "run" / "rollouts" / "test_000000.jsonl")
    assert sum("fault" in record for record in written) == dropped
    rewards = [record["total_reward"] for record in written if "fault" not in record]
    assert line["test/env/all/reward/total"] == pytest.approx(sum(rewards) / len(rewards))


async def test_a_test_set_that_fails_as_a_whole_stops_the_run(run: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="6 of the last 6 groups: no group came through.* test_000000, step"):
        await run("run", EnvFaultConfig(), num_bad=[0], num_bad_tests=10)
    assert len(records(tmp_path / "run" / "rollouts" / "test_000000.jsonl")) == 6
