"""The short way in: what an adapter is asked and told, where settings come from, and which loop runs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import mint
from mint.checkpoint_store import CheckpointStore
from mint.errors import InvalidRequest, MintError
from recipe.checkpoint_utils import load_records
from recipe.rl import train
from recipe.rl.adapter_dataset import AdapterDataset, AdapterDatasetBuilder
from recipe.rl.rl_core import RLAdapter, RLConfig, run_grpo, run_grpo_async
from recipe.run_log import read_metrics

VARIABLES = (
    "MINT_BASE_MODEL", "MINT_LORA_RANK", "MINT_RL_STEPS", "MINT_RL_BATCH", "MINT_RL_GROUP", "MINT_RL_LR",
    "MINT_RL_MAX_TOKENS", "MINT_RL_TEMPERATURE",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


class Letters(RLAdapter):
    """The reward is the share of letters in the reply; writes down what it is asked and told."""

    def __init__(self, samples: Sequence[str] = ("a", "b", "c", "d", "e", "f")) -> None:
        self.samples = samples
        self.responses: list[tuple[str, str]] = []
        self.told: list[tuple[int, list[float], int]] = []

    def build_dataset(self) -> Sequence[str]:
        return self.samples

    def make_prompt(self, sample: str, tokenizer: Any) -> list[int]:
        return tokenizer.encode(f"{sample}:")

    def compute_reward(self, response: str, sample: str) -> float:
        self.responses.append((sample, response))
        return sum(character.isalpha() for character in response) / max(len(response), 1)

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        self.told.append((step, rewards, num_datums))


@pytest.fixture
def config(tiny_model_dir: Path, tmp_path: Path) -> Callable[..., RLConfig]:
    def make(**changes: Any) -> RLConfig:
        values: dict[str, Any] = {
            "base_model": str(tiny_model_dir),
            "log_path": str(tmp_path / "run"),
            "steps": 2,
            "batch_size": 3,
            "max_tokens": 4,
            "rank": 4,
            "learning_rate": 1e-2,
        }
        return RLConfig(**(values | changes))

    return make


def test_the_defaults_are_those_of_the_interface() -> None:
    values = RLConfig()
    assert (values.loss_fn, values.group_size, values.batch_size, values.max_tokens) == (
        "importance_sampling",
        4,
        8,
        16,
    )
    assert (values.learning_rate, values.temperature, values.kl_penalty_coef) == (2e-5, 0.8, 0.0)
    assert (values.betas, values.eps, values.weight_decay) == ((0.9, 0.999), 1e-8, 0.0)
    assert (values.rank, values.train_mlp, values.train_attn, values.train_unembed) == (16, True, True, True)


def test_the_environment_comes_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("mint-tiny", "2", "7", "5", "6", "0.5", "9", "1.25")
    for variable, value in zip(VARIABLES, given, strict=True):
        monkeypatch.setenv(variable, value)
    values = RLConfig()
    assert (values.base_model, values.rank, values.steps, values.batch_size) == ("mint-tiny", 2, 7, 5)
    assert (values.group_size, values.learning_rate, values.max_tokens, values.temperature) == (6, 0.5, 9, 1.25)


def test_arguments_then_command_line_then_environment_then_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for variable in ("MINT_RL_GROUP", "MINT_RL_BATCH", "MINT_RL_STEPS"):
        monkeypatch.setenv(variable, "3")
    argv = ["group_size=5", "batch_size=5", "betas=0.8,0.9"]
    values = RLConfig.from_command_line(argv, group_size=7, log_path="elsewhere")
    assert (values.group_size, values.batch_size, values.steps, values.max_tokens) == (7, 5, 3, 16)
    assert (values.betas, values.log_path) == ((0.8, 0.9), "elsewhere")
    assert "group_size on the command line has no effect: the script sets it to 7" in caplog.text


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("MINT_RL_GROUP", "four", "^MINT_RL_GROUP='four': must be a whole number; set it to one, or unset it"),
        ("MINT_RL_STEPS", "2.5", "^MINT_RL_STEPS='2.5': must be a whole number"),
        ("MINT_RL_LR", "fast", "^MINT_RL_LR='fast': must be a number"),
        ("MINT_BASE_MODEL", " ", "^MINT_BASE_MODEL='': must be a name"),
        ("MINT_RL_GROUP", "1", r"^MINT_RL_GROUP=1 \(the setting group_size\): must be at least 2"),
        ("MINT_RL_TEMPERATURE", "0", r"^MINT_RL_TEMPERATURE=0.0 \(the setting temperature\): must be positive"),
        ("MINT_RL_LR", "nan", r"^MINT_RL_LR=nan \(the setting learning_rate\): must be positive"),
    ],
)
def test_a_bad_variable_is_one_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidRequest, match=message):
        RLConfig()


def test_a_bad_variable_ends_a_script_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINT_RL_GROUP", "four")
    with pytest.raises(SystemExit) as left:
        RLConfig.from_command_line([])
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "error: MINT_RL_GROUP='four': must be a whole number; set it to one, or unset it.\n"
    )


def test_a_variable_that_an_argument_overrides_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINT_RL_GROUP", "four")
    assert RLConfig(group_size=3).group_size == 3
    assert RLConfig.from_command_line(["group_size=3"]).group_size == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 1}, "^group_size=1: must be at least 2"),
        ({"batch_size": 0}, "^batch_size=0: must be at least 1"),
        ({"learning_rate": 0.0}, "^learning_rate=0.0: must be positive"),
    ],
)
def test_a_bad_argument_is_refused_by_its_own_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        RLConfig(**changes)


def test_every_setting_reaches_the_stage(config: Callable[..., RLConfig]) -> None:
    changes: dict[str, Any] = {
        "betas": (0.7, 0.8), "eps": 1e-6, "weight_decay": 0.1, "train_mlp": False, "train_unembed": False,
        "loss_fn": "ppo", "advantage": "leave_one_out", "kl_penalty_coef": 0.2, "group_size": 5, "temperature": 0.9,
        "load_checkpoint_path": "mint://run/weights/sft", "seed": 3,
    }  # fmt: skip
    values = config(**changes).train_config(Letters())
    assert (values.optimizer.beta1, values.optimizer.beta2, values.optimizer.eps) == (0.7, 0.8, 1e-6)
    assert (values.optimizer.weight_decay, values.learning_rate, values.lora_rank) == (0.1, 1e-2, 4)
    targets = values.lora_targets
    assert (targets.train_mlp, targets.train_attn, targets.train_unembed) == (False, True, False)
    assert (values.loss_fn, values.advantage, values.temperature, values.max_tokens) == ("ppo", "leave_one_out", 0.9, 4)
    assert (values.kl_penalty_coef, values.seed, values.remove_constant_reward_groups) == (0.2, 3, True)
    reference = values.kl_reference_config
    assert reference is not None
    assert reference.load_checkpoint_path == values.load_checkpoint_path == "mint://run/weights/sft"
    data: Any = values.dataset_builder
    assert (data.group_size, data.groups_per_batch, data.num_steps, data.seed) == (5, 3, 2, 3)


async def test_the_adapter_is_told_every_reward_and_what_was_trained_on(
    service: mint.ServiceClient, config: Callable[..., RLConfig], tmp_path: Path
) -> None:
    adapter = Letters()
    result = await run_grpo_async(adapter, config(), service)
    lines = read_metrics(tmp_path / "run")
    assert [step for step, _, _ in adapter.told] == [1, 2]
    for (_, rewards, num_datums), line in zip(adapter.told, lines, strict=True):
        assert len(rewards) == 3 * 4
        assert sum(rewards) / 12 == pytest.approx(line["env/all/reward/total"])
        assert num_datums == line["batch/num_datums"]
        assert num_datums == 4 * (3 - line["batch/num_constant_groups"])
    assert isinstance(result, train.RLResult)
    assert len(adapter.responses) == 24
    assert not any("<|" in response for _, response in adapter.responses)


async def test_it_is_the_run_that_the_stage_makes(
    service: mint.ServiceClient, config: Callable[..., RLConfig], mint_home: Path, tmp_path: Path
) -> None:
    short = await run_grpo_async(Letters(), config(), service)
    long = await train.main(config(log_path=str(tmp_path / "other")).train_config(Letters()), service)

    def adapter_of(path: str) -> bytes:
        return CheckpointStore(mint_home).verify(path)["adapter_model.safetensors"].read_bytes()

    assert adapter_of(short.state_path) == adapter_of(long.state_path)


async def test_a_run_goes_on_where_it_stopped_and_a_finished_one_says_so(
    service: mint.ServiceClient, config: Callable[..., RLConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Drawn(Letters):
        def build_dataset(self) -> list[str]:
            return [chr(97 + random.randrange(26)) + str(np.random.randint(10)) for _ in range(10)]

    whole, first, second = Drawn(), Drawn(), Drawn()
    await run_grpo_async(whole, config(log_path=str(tmp_path / "whole"), steps=3), service)
    await run_grpo_async(first, config(steps=2), service)
    await run_grpo_async(second, config(steps=3), service)
    assert first.told + second.told == whole.told
    assert [step for step, _, _ in second.told] == [3]
    assert "config changed on resume at step 2: max_steps" not in caplog.text
    await run_grpo_async(second, config(steps=3), service)
    assert "holds a finished run; for a new one use another log_path" in caplog.text


def dataset(adapter: RLAdapter, model: Path, **changes: Any) -> AdapterDataset:
    values: dict[str, Any] = {"group_size": 2, "groups_per_batch": 4, "num_steps": 5}
    return AdapterDatasetBuilder(adapter=adapter, model_name=str(model), **(values | changes)).dataset


def test_a_batch_is_drawn_without_repeats_and_is_the_same_whenever_it_is_asked_for(tiny_model_dir: Path) -> None:
    data = dataset(Letters(), tiny_model_dir)
    batches = [[group.sample for group in data.get_batch(i)] for i in range(5)]
    assert all(len(set(batch)) == 4 for batch in batches)
    assert len({tuple(batch) for batch in batches}) > 1
    assert [group.sample for group in data.get_batch(3)] == batches[3]
    other = dataset(Letters(), tiny_model_dir, seed=1)
    assert [[group.sample for group in other.get_batch(i)] for i in range(5)] != batches


def test_building_a_dataset_leaves_the_global_generators_alone(tiny_model_dir: Path) -> None:
    class Greedy(Letters):
        def build_dataset(self) -> list[str]:
            return [str(random.random()), str(np.random.rand())]

    random.seed(5)
    np.random.seed(5)
    expected = (random.random(), np.random.rand())
    random.seed(5)
    np.random.seed(5)
    dataset(Greedy(), tiny_model_dir).get_batch(0)
    assert (random.random(), np.random.rand()) == expected


def test_fewer_samples_than_a_batch_are_all_taken_and_none_are_refused(tiny_model_dir: Path) -> None:
    assert len(dataset(Letters(["a", "b"]), tiny_model_dir).get_batch(0)) == 2
    with pytest.raises(InvalidRequest, match=r"build_dataset\(\) of <adapter .*:Letters> gave no samples"):
        dataset(Letters([]), tiny_model_dir).get_batch(0)


async def test_a_prompt_that_is_no_list_of_tokens_is_refused(
    service: mint.ServiceClient, config: Callable[..., RLConfig]
) -> None:
    class Text(Letters):
        def make_prompt(self, sample: str, tokenizer: Any) -> Any:
            return sample

    with pytest.raises(MintError, match=r"make_prompt\(\) of <adapter .*Text> returned '.'; it must be a list"):
        await run_grpo_async(Text(), config(), service)


async def test_groups_that_teach_nothing_give_no_datum_and_are_counted(
    service: mint.ServiceClient, config: Callable[..., RLConfig], tmp_path: Path
) -> None:
    class Settled(Letters):
        def compute_reward(self, response: str, sample: str) -> float:
            return 1.0 if sample == "a" else 0.0

    adapter = Settled(["a", "b", "c"])
    await run_grpo_async(adapter, config(steps=1), service)
    (line,) = read_metrics(tmp_path / "run")
    assert (line["batch/num_all_right_groups"], line["batch/num_all_wrong_groups"]) == (1, 2)
    assert (line["batch/num_datums"], line["batch/is_skipped"]) == (0, 1)
    assert adapter.told[0][2] == 0


async def test_the_new_adapter_is_on_the_matrices_that_are_asked_for(
    service: mint.ServiceClient, config: Callable[..., RLConfig], mint_home: Path
) -> None:
    result = await run_grpo_async(Letters(), config(steps=1, train_mlp=False, train_unembed=False), service)
    files = CheckpointStore(mint_home).verify(result.state_path)
    with safe_open(files["adapter_model.safetensors"], framework="np") as tensors:
        names = list(tensors.keys())
    assert names and all("self_attn" in name for name in names)


async def test_the_stop_text_is_the_adapters(
    service: mint.ServiceClient, config: Callable[..., RLConfig], tmp_path: Path
) -> None:
    class Never(Letters):
        def get_stop_sequences(self, tokenizer: Any) -> list[int]:
            return list(range(tokenizer.vocab_size))

    await run_grpo_async(Never(), config(steps=1), service)
    (line,) = read_metrics(tmp_path / "run")
    assert line["ac_tokens_per_turn"] == 1


def test_the_sync_form_returns_the_same(
    service: mint.ServiceClient, config: Callable[..., RLConfig], tmp_path: Path
) -> None:
    result = run_grpo(Letters(), config(steps=1), service)
    assert load_records(tmp_path / "run")[-1].state_path == result.state_path
    recorded = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert "object at 0x" not in json.dumps(recorded)
