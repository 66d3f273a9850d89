"""The stage on the real engine, with a task simple enough to check: reply with even token ids."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chz
import pytest

import mint
from mint import types
from mint.checkpoint_store import CheckpointStore
from mint.errors import InvalidRequest
from recipe.rl.env_faults import EnvFaultConfig, EnvironmentFailed
from recipe.rl.train import Config, KLReferenceConfig, RLResult, main
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

Adapter = Callable[[str], dict[str, bytes]]


class EvenTokensEnv(Env):
    """The reward is the share of even token ids in the reply, or `constant` where given."""

    def __init__(self, prompt: list[int], constant: float | None, fuse: Path | None) -> None:
        self.prompt = prompt
        self.constant = constant
        self.fuse = fuse

    async def initial_observation(self) -> tuple[types.ModelInput, StopCondition]:
        return types.ModelInput.from_ints(self.prompt), []

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        if self.fuse is not None and self.fuse.exists():
            self.fuse.unlink()
            raise RuntimeError("the power went off")
        reward = sum(token % 2 == 0 for token in action) / len(action) if self.constant is None else self.constant
        return StepResult(reward, True, types.ModelInput.from_ints([]), [])


class EvenTokens(EnvGroupBuilder):
    def __init__(self, prompt: list[int], group_size: int, constant: float | None, fuse: Path | None) -> None:
        self.make = lambda: EvenTokensEnv(prompt, constant, fuse)
        self.group_size = group_size

    async def make_envs(self) -> Sequence[Env]:
        return [self.make() for _ in range(self.group_size)]


class EvenTokensDataset(RLDataset):
    def __init__(self, builder: EvenTokensBuilder, num_batches: int, group_size: int) -> None:
        self.builder = builder
        self.num_batches = num_batches
        self.group_size = group_size

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        fuse = Path(self.builder.fuse) if self.builder.fuse and index == 2 else None
        return [
            EvenTokens([1 + index, 2 + i], self.group_size, self.builder.constant, fuse)
            for i in range(self.builder.groups_per_batch)
        ]

    def __len__(self) -> int:
        return self.num_batches


@chz.chz(typecheck=True)
class EvenTokensBuilder(RLDatasetBuilder):
    num_batches: int = 4
    groups_per_batch: int = 2
    group_size: int = 4
    constant: float | None = None
    has_test_set: bool = False
    # While this file exists, batch 2 fails; the failure removes it.
    fuse: str | None = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        test = EvenTokensDataset(self, 1, group_size=1) if self.has_test_set else None
        return EvenTokensDataset(self, self.num_batches, self.group_size), test


@pytest.fixture
def adapter(mint_home: Path) -> Adapter:
    """path -> the files of a checkpoint that hold numbers."""

    def read(path: str) -> dict[str, bytes]:
        files = CheckpointStore(mint_home).verify(path)
        return {name: file.read_bytes() for name, file in files.items() if name.endswith(".safetensors")}

    return read


@pytest.fixture
def run(service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run the stage in its own folder under tmp_path, with any change to the config or the data."""

    async def start(
        folder: str = "run", *, evaluators: Sequence[Any] = (), data: dict[str, Any] | None = None, **changes: Any
    ) -> RLResult:
        values: dict[str, Any] = {
            "model_name": str(tiny_model_dir),
            "dataset_builder": EvenTokensBuilder(**(data or {})),
            "log_path": str(tmp_path / folder),
            "learning_rate": 1e-2,
            "max_tokens": 4,
            "lora_rank": 4,
            "num_groups_to_log": 0,
        }
        return await main(Config(**(values | changes)), service, evaluators)

    return start


def lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run without its timings."""
    kept = read_metrics(folder)
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in kept]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
async def test_the_first_step_is_on_policy_at_any_temperature(
    run: Callable[..., Any], tmp_path: Path, temperature: float
) -> None:
    await run(temperature=temperature, max_steps=3)
    for line in lines(tmp_path / "run"):
        assert abs(line["kl_sample_train_v1"]) < 1e-6
        assert line["kl_sample_train_v2"] < 1e-10


async def test_an_on_policy_step_of_two_thousand_tokens_has_no_divergence(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    """On the built-in model: a bias of the sampler's logprobs would show in the mean."""
    data = {"num_batches": 2, "groups_per_batch": 4, "group_size": 8}
    await run(model_name="mint-tiny", max_steps=2, max_tokens=64, learning_rate=1e-3, data=data)
    for line in lines(tmp_path / "run"):
        assert line["env/all/total_ac_tokens"] == 4 * 8 * 64
        assert abs(line["kl_sample_train_v1"]) < 1e-6


async def test_the_stage_starts_from_exactly_the_given_weights(
    run: Callable[..., Any], service: mint.ServiceClient, adapter: Adapter, tiny_model_dir: Path, tmp_path: Path
) -> None:
    trained = await service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=5)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},  # pyright: ignore[reportArgumentType]
    )
    await trained.forward_backward([datum], "cross_entropy")
    await trained.optim_step(types.AdamParams(learning_rate=0.05))
    given = (await trained.save_state("sft")).path
    # Constant rewards and their groups removed: no update is made, so the stage saves what it started with.
    result = await run(load_checkpoint_path=given, data={"constant": 1.0}, remove_constant_reward_groups=True)
    files = adapter(given)
    assert adapter(result.state_path)["adapter_model.safetensors"] == files["adapter_model.safetensors"]
    assert adapter(result.sampler_path)["adapter_model.safetensors"] == files["adapter_model.safetensors"]
    assert lines(tmp_path / "run")[0]["batch/is_skipped"] == 1.0


async def test_two_runs_are_identical(run: Callable[..., Any], adapter: Adapter, tmp_path: Path) -> None:
    first, second = await run("first"), await run("second")
    assert lines(tmp_path / "first") == lines(tmp_path / "second")
    assert adapter(first.state_path) == adapter(second.state_path)
    rollouts = [tmp_path / name / "rollouts" / "iteration_000003.jsonl" for name in ("first", "second")]
    assert rollouts[0].read_bytes() == rollouts[1].read_bytes()


async def test_another_seed_gives_another_run(run: Callable[..., Any], tmp_path: Path) -> None:
    await run("first", max_steps=1)
    await run("second", max_steps=1, seed=1)
    assert lines(tmp_path / "first") != lines(tmp_path / "second")


async def test_a_resumed_run_equals_an_undisturbed_one(
    run: Callable[..., Any], adapter: Adapter, tmp_path: Path
) -> None:
    fuse = tmp_path / "fuse"
    settings: dict[str, Any] = {"save_every": 1, "eval_every": 2, "data": {"fuse": str(fuse), "has_test_set": True}}
    settings["env_faults"] = EnvFaultConfig(on_fault="stop")
    whole = await run("whole", **settings)
    fuse.touch()
    with pytest.raises(EnvironmentFailed, match="the power went off"):
        await run("broken", **settings)
    resumed = await run("broken", **settings)
    assert adapter(resumed.state_path) == adapter(whole.state_path)
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")
    names = [sorted(path.name for path in (tmp_path / run / "rollouts").iterdir()) for run in ("whole", "broken")]
    assert names[0] == names[1]


async def test_a_finished_run_returns_at_once_and_an_extended_one_goes_on(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    first = await run(max_steps=2)
    assert await run(max_steps=2) == first
    longer = await run(max_steps=3)
    assert longer.state_path != first.state_path
    assert [line["step"] for line in lines(tmp_path / "run")] == [0, 1, 2]


async def test_resume_with_another_rank_is_refused(run: Callable[..., Any]) -> None:
    await run(max_steps=1)
    with pytest.raises(InvalidRequest, match=r"lora_rank=8, but the run in this log_path was made with lora_rank=4"):
        await run(max_steps=2, lora_rank=8)


async def test_the_reward_rises(run: Callable[..., Any], tmp_path: Path) -> None:
    """With so many groups it does for each of ten seeds; with four it did for some."""
    await run(data={"num_batches": 20, "groups_per_batch": 16, "group_size": 8}, learning_rate=2e-2)
    rewards = [line["env/all/reward/total"] for line in lines(tmp_path / "run")]
    assert rewards[0] < 0.7
    assert rewards[-1] > 0.95


@pytest.mark.parametrize("loss_fn", ["ppo", "cispo", "dro"])
async def test_every_policy_loss_trains(run: Callable[..., Any], loss_fn: str) -> None:
    result = await run(max_steps=1, loss_fn=loss_fn)
    assert abs(result.metrics["kl_sample_train_v1"]) < 1e-6


async def test_substeps_after_the_first_are_off_policy(run: Callable[..., Any]) -> None:
    one, two = await run("one", max_steps=1), await run("two", max_steps=1, num_substeps=2)
    assert one.metrics["kl_sample_train_v2"] < 1e-10 < two.metrics["kl_sample_train_v2"]


async def test_constant_groups_train_to_nothing_when_they_are_kept(run: Callable[..., Any]) -> None:
    result = await run(max_steps=1, data={"constant": 0.5})
    assert result.metrics["batch/num_constant_groups"] == 2
    assert result.metrics["batch/num_dropped_groups"] == 0
    assert result.metrics["loss"] == 0.0


async def test_kl_to_the_base_model_is_zero_at_first_and_then_grows(
    run: Callable[..., Any], tiny_model_dir: Path, tmp_path: Path
) -> None:
    reference = KLReferenceConfig(base_model=str(tiny_model_dir))
    await run(kl_reference_config=reference, kl_penalty_coef=0.1, temperature=0.8)
    kls = [line["kl_policy_base"] for line in lines(tmp_path / "run")]
    assert abs(kls[0]) < 1e-5
    assert kls[-1] > 1e-3


async def test_kl_to_a_checkpoint_is_measured_on_the_test_set_too(
    run: Callable[..., Any], tiny_model_dir: Path
) -> None:
    first = await run("first", max_steps=2)
    reference = KLReferenceConfig(base_model=str(tiny_model_dir), load_checkpoint_path=first.state_path)
    result = await run(
        "second",
        max_steps=1,
        learning_rate=1e-6,
        load_checkpoint_path=first.state_path,
        kl_reference_config=reference,
        data={"has_test_set": True},
    )
    assert abs(result.metrics["kl_policy_base"]) < 1e-5
    assert abs(result.metrics["test/kl_policy_base"]) < 1e-3


async def test_evaluation_comes_first_every_so_often_and_last(run: Callable[..., Any], tmp_path: Path) -> None:
    result = await run(eval_every=2, eval_temperature=0.0, data={"has_test_set": True})
    tested = [line["step"] for line in lines(tmp_path / "run") if "test/env/all/reward/total" in line]
    assert tested == [0, 2, 4]
    assert result.metrics["test/env/all/total_episodes"] == 2
    assert "env/all/reward/total" in result.metrics


async def test_rollouts_are_exported_with_what_was_trained_on(run: Callable[..., Any], tmp_path: Path) -> None:
    await run(max_steps=1, num_groups_to_log=1)
    path = tmp_path / "run" / "rollouts" / "iteration_000000.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(record["group"], record["member"]) for record in records] == [(g, m) for g in range(2) for m in range(4)]
    for group in (records[:4], records[4:]):
        mean = sum(record["total_reward"] for record in group) / 4
        assert [record["advantage"] for record in group] == pytest.approx([r["total_reward"] - mean for r in group])
    [turn] = records[0]["turns"]
    assert len(turn["tokens"]) == len(turn["logprobs"]) == 4
    assert path.with_suffix(".txt").read_text(encoding="utf-8").count("=== group 0") == 4


async def test_the_metrics_that_the_design_names_are_there(run: Callable[..., Any], tmp_path: Path) -> None:
    await run(max_steps=1)
    [line] = read_metrics(tmp_path / "run")
    named = {
        "env/all/reward/total",
        "kl_sample_train_v1",
        "kl_sample_train_v2",
        "entropy",
        "ac_tokens_per_turn",
        "ob_tokens_per_turn",
        "time/step",
        "time/sampling",
        "time/training",
        "progress/done_frac",
        "learning_rate",
    }
    assert named <= set(line)
    assert (line["progress/done_frac"], line["ac_tokens_per_turn"], line["ob_tokens_per_turn"]) == (1.0, 4.0, 2.0)


async def test_a_checkpoint_of_another_rank_is_refused(run: Callable[..., Any]) -> None:
    first = await run("first", max_steps=1)
    with pytest.raises(InvalidRequest, match=r"lora_rank=8, but load_checkpoint_path=.* has lora_rank=4"):
        await run("second", max_steps=1, lora_rank=8, load_checkpoint_path=first.state_path)


async def test_a_dataset_without_batches_is_refused(run: Callable[..., Any]) -> None:
    with pytest.raises(InvalidRequest, match="the training dataset has no batches"):
        await run(data={"num_batches": 0})


async def test_periodic_checkpoints_are_recorded_with_the_next_step(run: Callable[..., Any], tmp_path: Path) -> None:
    await run(save_every=2)
    path = tmp_path / "run" / "checkpoints.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(record["name"], record["step"]) for record in records] == [("000002", 2), ("final", 4)]


def test_a_backend_without_temperature_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    from recipe.rl.policy_update import PolicyLoss, policy_loss_at

    remote: Any = object()
    with caplog.at_level(logging.WARNING):
        loss = policy_loss_at(0.7, "ppo", {"clip_low_threshold": 0.9}, remote)
    assert loss == PolicyLoss("ppo", {"clip_low_threshold": 0.9})
    assert "temperature=0.7: this server computes the loss at temperature 1" in caplog.text
