"""Supervised runs on the embedded engine with a tiny random model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chz
import numpy as np
import pytest

import mint
from mint import types
from mint.errors import InvalidRequest, NonFiniteError
from recipe.checkpoint_utils import get_last_checkpoint, load_records
from recipe.config_record import load_config
from recipe.run_log import read_metrics
from recipe.supervised.data import ListSFTDatasetBuilder, SFTExampleConfig, datum_from_model_input_weights
from recipe.supervised.nll import mean_normalised, summed_nll
from recipe.supervised.train import BatchCursor, Config, SFTResult, main
from recipe.supervised.types import SupervisedDataset

WORDS = ("red", "green", "blue", "white", "black")


def chats(num: int) -> list[list[dict[str, str]]]:
    return [
        [
            {"role": "user", "content": f"Say {WORDS[i % 5]} {i} times."},
            {"role": "assistant", "content": f"{WORDS[i % 5]} " * (1 + i % 4)},
        ]
        for i in range(num)
    ]


@pytest.fixture
def make_config(tiny_model_dir: Path, tmp_path: Path) -> Callable[..., Config]:
    """Settings of a run over 10 conversations in batches of 4 (3 steps an epoch), 3 of them held out: 2 batches."""

    def make(folder: str = "run", **changes: Any) -> Config:
        settings: dict[str, Any] = {
            "log_path": str(tmp_path / folder),
            "model_name": str(tiny_model_dir),
            "renderer_name": "qwen3_disable_thinking",
            "dataset_builder": ListSFTDatasetBuilder(
                conversations=chats(13), examples=SFTExampleConfig(batch_size=4, num_test=3)
            ),
            "lora_rank": 4,
            "learning_rate": 5e-3,
            "warmup_steps": 2,
            "num_epochs": 2,
            "eval_every": 2,
            "save_every": 2,
            "seed": 3,
        }
        return Config(**{**settings, **changes})

    return make


def adapter_files(home: Path, path: str | None) -> dict[str, bytes]:
    """The tensors of a checkpoint by file name. (Its manifest names the run, which differs.)"""
    assert path is not None
    run_id, kind, name = path.removeprefix("mint://").split("/")
    (folder,) = home.rglob(f"{run_id}/{kind}/{name}")
    files = {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}
    assert "adapter_model.safetensors" in files
    return files


def without_times(log_path: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if "time/" not in key} for line in read_metrics(log_path)]


class Killed(Exception):
    """Stands for the end of the process."""


def kill_before_batch(dataset: SupervisedDataset, index: int) -> None:
    """Make the dataset end the run when its `index`-th batch of this process is asked for."""
    get_batch, asked = dataset.get_batch, iter(range(10**6))

    def get(i_batch: int) -> list[types.Datum]:
        if next(asked) == index:
            raise Killed
        return get_batch(i_batch)

    dataset.get_batch = get  # type: ignore[method-assign]


@chz.chz(typecheck=True)
class DyingBuilder(ListSFTDatasetBuilder):
    """Dies when batch `dies_at` is made."""

    dies_at: int

    def __call__(self, renderer: Any, context_length: int | None = None) -> Any:
        dataset, test_dataset = super().__call__(renderer, context_length)
        kill_before_batch(dataset, self.dies_at)
        return dataset, test_dataset


async def test_training_lowers_the_nll_and_leaves_a_complete_folder(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config()
    result = await main(config, service)
    assert result.metrics["num_steps"] == 6
    assert result.metrics["nll_after"] < 0.8 * result.metrics["nll_before"]
    lines = read_metrics(config.log_path)
    assert [line["step"] for line in lines] == list(range(7))
    assert [line["step"] for line in lines if "test/nll" in line] == [0, 2, 4, 6]
    assert [line["learning_rate"] for line in lines[:6]] == pytest.approx(
        [0.0025, 0.005, 0.005, 0.00375, 0.0025, 0.00125]
    )
    assert [line["num_sequences"] for line in lines[:6]] == [4, 4, 2, 4, 4, 2]
    assert [line["epoch"] for line in lines[:6]] == [0, 0, 0, 1, 1, 1]
    assert lines[2]["progress/done_frac"] == 0.5
    assert lines[0]["num_loss_tokens"] < lines[0]["num_tokens"]
    assert lines[0]["optim/grad_norm"] > 0
    assert [(record.name, record.step) for record in load_records(config.log_path)] == [
        ("000002", 2),
        ("000004", 4),
        ("final", 6),
    ]
    assert load_config(config.log_path, Config) == config


async def test_every_logged_key_is_defined_in_the_documentation(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config(max_steps=1)
    await main(config, service)
    page = (Path(__file__).resolve().parents[3] / "docs/metrics.md").read_text(encoding="utf-8")
    keys = {key for line in read_metrics(config.log_path) for key in line}
    assert {"train_mean_nll", "test/nll", "learning_rate", "num_tokens", "progress/done_frac", "time/step"} <= keys
    assert [key for key in sorted(keys) if f"| `{key}` |" not in page] == []


async def test_reported_nll_is_that_of_the_saved_weights(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config(max_steps=2)
    result = await main(config, service)
    client = await service.create_training_client_from_state_async(result.state_path)
    from recipe.tokenizer_utils import get_tokenizer
    from renderers import get_renderer

    _, test_dataset = config.dataset_builder(get_renderer(config.renderer_name or "", get_tokenizer(config.model_name)))
    assert test_dataset is not None
    data = test_dataset.get_batch(0)
    output = await client.forward(data, "cross_entropy")
    num_tokens = sum(datum.loss_fn_inputs["weights"].to_numpy().sum() for datum in data)
    assert output.metrics["loss:sum"] / num_tokens == pytest.approx(result.metrics["nll_after"], rel=1e-5)


async def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(
    service: mint.ServiceClient, make_config: Callable[..., Config], mint_home: Path
) -> None:
    one, two, other = make_config("one"), make_config("two"), make_config("other", seed=4)
    results = [await main(config, service) for config in (one, two, other)]
    files = [adapter_files(mint_home, result.state_path) for result in results]
    assert files[0] == files[1]
    assert files[0] != files[2]
    assert without_times(one.log_path) == without_times(two.log_path)


@pytest.mark.parametrize("dies_at", [1, 3, 5])
async def test_run_killed_and_started_again_equals_an_undisturbed_one(
    service: mint.ServiceClient, make_config: Callable[..., Config], mint_home: Path, dies_at: int
) -> None:
    whole = await main(make_config("whole"), service)
    settings = {"conversations": chats(13), "examples": SFTExampleConfig(batch_size=4, num_test=3)}
    with pytest.raises(Killed):
        await main(make_config("parts", dataset_builder=DyingBuilder(**settings, dies_at=dies_at)), service)
    resumed = await main(make_config("parts"), service)

    assert adapter_files(mint_home, resumed.state_path) == adapter_files(mint_home, whole.state_path)
    assert adapter_files(mint_home, resumed.sampler_path) == adapter_files(mint_home, whole.sampler_path)
    assert without_times(make_config("parts").log_path) == without_times(make_config("whole").log_path)
    assert resumed.metrics == whole.metrics


async def test_longer_run_goes_on_from_the_final_checkpoint(
    service: mint.ServiceClient, make_config: Callable[..., Config], mint_home: Path
) -> None:
    constant = {"lr_schedule": "constant", "warmup_steps": 0}
    whole = await main(make_config("whole", **constant, eval_every=0), service)
    await main(make_config("parts", **constant, eval_every=0, max_steps=3), service)
    longer = await main(make_config("parts", **constant, eval_every=0), service)
    assert adapter_files(mint_home, longer.state_path) == adapter_files(mint_home, whole.state_path)
    changes = (Path(make_config("parts").log_path) / "config_changes.jsonl").read_text(encoding="utf-8")
    assert json.loads(changes) == {"resume_step": 3, "changes": {"max_steps": [3, None]}}


async def test_finished_run_returns_its_result_without_training(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config(max_steps=1)
    first = await main(config, service)
    metrics_file = Path(config.log_path) / "metrics.jsonl"
    before = metrics_file.read_bytes()
    assert await main(config, service) == first
    assert metrics_file.read_bytes() == before
    assert len(load_records(config.log_path)) == 1


async def test_loaded_weights_are_the_starting_point_with_a_fresh_optimizer(
    service: mint.ServiceClient, make_config: Callable[..., Config], mint_home: Path
) -> None:
    first = await main(make_config("first", max_steps=2), service)
    second = await main(
        make_config("second", max_steps=1, load_checkpoint_path=first.state_path, learning_rate=0.0), service
    )
    name = "adapter_model.safetensors"
    loaded, saved = adapter_files(mint_home, second.state_path), adapter_files(mint_home, first.state_path)
    assert loaded[name] == saved[name]
    assert loaded["optimizer.safetensors"] != saved["optimizer.safetensors"]
    assert second.metrics["nll_before"] == first.metrics["nll_after"]


async def test_one_step_writes_train_mean_nll_and_a_final_checkpoint(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config(max_steps=1, dataset_builder=ListSFTDatasetBuilder(conversations=chats(2)))
    result = await main(config, service)
    (line,) = read_metrics(config.log_path)
    assert line["train_mean_nll"] == result.metrics["train_mean_nll"] > 0
    record = get_last_checkpoint(config.log_path)
    assert record is not None and record.is_final
    assert (result.state_path, result.sampler_path) == (record.state_path, record.sampler_path)


async def test_diverged_run_ends_with_the_engines_error_and_no_final_checkpoint(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config(learning_rate=1e36, lr_schedule="constant", warmup_steps=0, eval_every=0)
    with pytest.raises(NonFiniteError, match="not finite|non-finite"):
        await main(config, service)
    assert not any(record.is_final for record in load_records(config.log_path))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lora_rank": 8}, "lora_rank=8, but the run in this log_path was made with lora_rank=4"),
        ({"renderer_name": "role_colon"}, "made with renderer_name='qwen3_disable_thinking'"),
        ({"model_name": "mint-tiny"}, "model_name='mint-tiny', but the run in this log_path was made with model_name="),
    ],
)
async def test_resume_with_another_model_rank_or_renderer_leaves_the_run_as_it_was(
    service: mint.ServiceClient, make_config: Callable[..., Config], changed: dict[str, Any], message: str
) -> None:
    config = make_config(max_steps=1)
    await main(config, service)
    before = {path.name: path.read_bytes() for path in Path(config.log_path).iterdir()}
    with pytest.raises(InvalidRequest, match=message):
        await main(make_config(**changed), service)
    assert {path.name: path.read_bytes() for path in Path(config.log_path).iterdir()} == before


async def test_example_longer_than_the_models_context_is_refused_before_training(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    long = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "word " * 600}]
    config = make_config(dataset_builder=ListSFTDatasetBuilder(conversations=[*chats(2), long]))
    with pytest.raises(
        InvalidRequest, match=r"conversations\[2\]: the example has \d+ tokens, more than the limit of 512"
    ):
        await main(config, service)
    assert not Path(config.log_path).exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_epochs": 0}, "num_epochs=0: must be at least 1"),
        ({"max_steps": 0}, "max_steps=0: must be at least 1"),
        ({"save_every": -1}, "save_every=-1: must be at least 0"),
        ({"save_every": 0, "ttl_seconds": 60}, "ttl_seconds=60 with save_every=0: only periodic checkpoints"),
    ],
)
def test_impossible_settings_are_refused(
    make_config: Callable[..., Config], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make_config(**changed)


def test_misspelt_and_mistyped_settings_are_refused(tmp_path: Path) -> None:
    good: dict[str, Any] = {"log_path": str(tmp_path), "dataset_builder": ListSFTDatasetBuilder(conversations=[])}
    with pytest.raises(Exception, match="learning_rat"):
        chz.Blueprint(Config).apply({**good, "optimizer.learning_rat": 1.0}).make()
    with pytest.raises(TypeError, match="num_epochs"):
        Config(**good, num_epochs="two")  # pyright: ignore[reportArgumentType]


def test_weights_are_divided_by_the_total_of_the_batch() -> None:
    one = datum_from_model_input_weights(types.ModelInput.from_ints([1, 2, 3]), [0.0, 1.0, 1.0])
    two = datum_from_model_input_weights(types.ModelInput.from_ints([1, 2, 3, 4]), [0.0, 0.0, 1.0, 1.0])
    assert [datum.loss_fn_inputs["weights"].tolist() for datum in mean_normalised([one, two])] == [
        [0.25, 0.25],
        [0.0, 0.25, 0.25],
    ]
    with pytest.raises(InvalidRequest, match="the weights of the batch sum to 0.0"):
        mean_normalised([datum_from_model_input_weights(types.ModelInput.from_ints([1, 2]), [0.0, 0.0])])


def test_summed_nll_counts_each_token_by_its_weight() -> None:
    datum = datum_from_model_input_weights(types.ModelInput.from_ints([1, 2, 3]), [0.0, 1.0, 0.5])
    logprobs = types.TensorData.from_numpy(np.array([-2.0, -3.0], dtype=np.float32))
    output = types.ForwardBackwardOutput(
        loss_fn_output_type="x", loss_fn_outputs=[{"logprobs": logprobs}], metrics={"loss:sum": 3.5}
    )
    assert summed_nll([datum], output) == 2.0 + 0.5 * 3.0


class CountingDataset(SupervisedDataset):
    """Three batches, each one datum that names epoch seed and batch."""

    def __init__(self) -> None:
        self.seed = -1

    def set_epoch(self, seed: int) -> None:
        self.seed = seed

    def get_batch(self, index: int) -> list[types.Datum]:
        tokens = types.ModelInput.from_ints([self.seed % 1000, index])
        return [datum_from_model_input_weights(tokens, [0.0, 1.0])]

    def __len__(self) -> int:
        return 3


def test_batch_of_a_step_does_not_depend_on_where_the_cursor_started() -> None:
    def batch_at(cursor: BatchCursor, step: int) -> tuple[int, int]:
        (datum,) = cursor.at(step)
        return datum.model_input.to_ints()[0], datum.loss_fn_inputs["target_tokens"].tolist()[0]

    from_start = BatchCursor(CountingDataset(), seed=1)
    straight = [batch_at(from_start, step) for step in range(9)]
    assert straight == [batch_at(BatchCursor(CountingDataset(), seed=1), step) for step in range(9)]
    assert [i_batch for _, i_batch in straight] == [0, 1, 2] * 3
    assert len({epoch_seed for epoch_seed, _ in straight}) == 3


def test_result_is_a_plain_value() -> None:
    assert SFTResult("mint://a/weights/final", "mint://a/sampler_weights/final").metrics == {}
