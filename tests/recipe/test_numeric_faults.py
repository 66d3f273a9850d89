"""The rule for refused steps, in whole runs: a batch with weights so extreme that loss or moments overflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import chz
import pytest

import mint
from mint import types
from mint.checkpoint_store import CheckpointStore
from mint.errors import InvalidRequest, NonFiniteError
from recipe.checkpoint_utils import get_last_checkpoint, load_records
from recipe.numeric_faults import NonFiniteConfig, NumericFaults
from recipe.run_log import read_metrics
from recipe.supervised.train import Config, SFTResult, main
from recipe.supervised.types import SupervisedDataset, SupervisedDatasetBuilder

NUM_STEPS = 6


def datum(tokens: list[int], weights: list[float]) -> types.Datum:
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[len(weights)]),
            "weights": types.TensorData(data=weights, dtype="float32", shape=[len(weights)]),
        },
    )


class Batches(SupervisedDataset):
    """Batch i is made of i; those of `bad` have weights that sum to one and are enormous."""

    def __init__(self, bad: list[int], left_out: list[int], extreme: float) -> None:
        self.batches = [i for i in range(NUM_STEPS) if i not in left_out]
        self.bad = bad
        self.extreme = [extreme, -extreme, 1.0]

    def set_epoch(self, seed: int = 0) -> None:
        """The order is fixed."""

    def get_batch(self, index: int) -> list[types.Datum]:
        i = self.batches[index]
        good = [datum([5 + i, 6, 7 + 2 * i, 8], [1.0, 1.0, 1.0]), datum([9, 4, 3 + i, 5], [0.0, 1.0, 1.0])]
        return [*good, datum([9, 8, 7, 6], self.extreme)] if i in self.bad else good

    def __len__(self) -> int:
        return len(self.batches)


@chz.chz(typecheck=True)
class BatchesBuilder(SupervisedDatasetBuilder):
    bad: list[int] = chz.field(default_factory=list)
    left_out: list[int] = chz.field(default_factory=list)
    # The square of a gradient of this size is beyond float32.
    extreme: float = 1e30

    def __call__(self, renderer: Any, context_length: int | None = None) -> tuple[SupervisedDataset, None]:
        return Batches(self.bad, self.left_out, self.extreme), None


Train = Callable[..., Any]


@pytest.fixture
def train(service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path) -> Train:
    """Run SFT on six batches, with any change to data and rule, in a folder of its own."""

    async def start(
        folder: str, *, data: dict[str, Any] | None = None, rule: dict[str, Any] | None = None, **changes: Any
    ) -> SFTResult:
        settings: dict[str, Any] = {
            "log_path": str(tmp_path / folder),
            "model_name": str(tiny_model_dir),
            "renderer_name": "role_colon",
            "dataset_builder": BatchesBuilder(**(data or {})),
            "lora_rank": 4,
            "learning_rate": 1e-2,
            "lr_schedule": "constant",
            "save_every": 2,
            "non_finite": NonFiniteConfig(**(rule or {})),
        }
        return await main(Config(**{**settings, **changes}), service)

    return start


@pytest.fixture
def tensors(mint_home: Path) -> Callable[[str], dict[str, bytes]]:
    """path -> the bytes of a checkpoint's tensor files, the optimizer's among them."""

    def read(path: str) -> dict[str, bytes]:
        files = CheckpointStore(mint_home).verify(path)
        return {name: file.read_bytes() for name, file in files.items() if name.endswith(".safetensors")}

    return read


@pytest.mark.parametrize(
    ("extreme", "message"),
    [
        (3e38, "step 3: the loss of datum 2 is not finite: nothing was updated"),
        (1e30, "step 3: the step would make weights or Adam's moments non-finite: no step was taken"),
    ],
)
async def test_a_run_stops_by_default_and_names_step_cause_and_the_way_on(
    train: Train, tmp_path: Path, extreme: float, message: str
) -> None:
    with pytest.raises(NonFiniteError, match=message) as caught:
        await train("run", data={"bad": [3], "extreme": extreme})
    assert "non_finite.action=skip" in str(caught.value)
    last = get_last_checkpoint(tmp_path / "run")
    assert last is not None and last.step == 2
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [0, 1, 2]


async def test_a_stopped_run_goes_on_with_another_rule(train: Train, tensors: Any) -> None:
    with pytest.raises(NonFiniteError):
        await train("stopped", data={"bad": [3]})
    resumed = await train("stopped", data={"bad": [3]}, rule={"action": "skip"})
    skipped = await train("skipped", data={"bad": [3]}, rule={"action": "skip"})
    assert tensors(resumed.state_path) == tensors(skipped.state_path)


async def test_skipping_equals_never_having_seen_the_batch(train: Train, tensors: Any, tmp_path: Path) -> None:
    skipped = await train("skipped", data={"bad": [1, 3]}, rule={"action": "skip"})
    never = await train("never", data={"left_out": [1, 3]})
    assert tensors(skipped.state_path) == tensors(never.state_path)
    lines = read_metrics(tmp_path / "skipped")
    assert [line.get("faults/refused_steps") for line in lines] == [None, 1.0, None, 2.0, None, None]
    assert "train_mean_nll" not in lines[1] and lines[1]["learning_rate"] == 1e-2


async def test_the_count_survives_a_resume(train: Train, tmp_path: Path) -> None:
    rule = {"action": "skip", "max_refused": 1}
    with pytest.raises(NonFiniteError, match=r"2 steps of this run were refused, more than non_finite.max_refused=1"):
        await train("run", data={"bad": [1, 4]}, rule=rule)
    (second, fourth) = load_records(tmp_path / "run")
    assert (second.loop_state, fourth.loop_state) == ({"num_refused_steps": 1}, {"num_refused_steps": 1})
    with pytest.raises(NonFiniteError, match="2 steps of this run were refused"):
        await train("run", data={"bad": [1, 4]}, rule=rule)


async def test_rolling_back_takes_weights_and_optimizer_of_the_last_checkpoint(
    train: Train, tensors: Any, tmp_path: Path
) -> None:
    """The checkpoint after batches 0 and 1 is taken at batch 3, so that batch 2 has no effect either."""
    rolled_back = await train("back", data={"bad": [3]}, rule={"action": "roll_back"})
    never = await train("never", data={"left_out": [2, 3]})
    assert tensors(rolled_back.state_path) == tensors(never.state_path)
    assert read_metrics(tmp_path / "back")[3]["faults/rolled_back_to_step"] == 2.0


async def test_a_damaged_checkpoint_is_passed_over_in_a_roll_back(
    train: Train, tensors: Any, tmp_path: Path, mint_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Batch 5 is refused and the checkpoint of step 4 cut off: the run goes on from step 2, without batches 2 to 5."""
    with pytest.raises(NonFiniteError):
        await train("run", data={"bad": [5]})
    second, fourth = load_records(tmp_path / "run")
    assert fourth.state_path is not None
    client = await mint.ServiceClient(home=str(mint_home)).create_training_client_from_state_with_optimizer_async(
        fourth.state_path
    )
    faults = NumericFaults(NonFiniteConfig(action="roll_back"), client, tmp_path / "run")
    folder = CheckpointStore(mint_home).verify(fourth.state_path)["adapter_model.safetensors"]
    folder.write_bytes(folder.read_bytes()[:100])
    metrics = await faults.handle(NonFiniteError("the loss of datum 2 is not finite"), step=5)
    assert metrics["faults/rolled_back_to_step"] == second.step == 2
    assert "is not used" in caplog.text
    saved = await client.save_state("after")
    assert second.state_path is not None
    assert tensors(saved.path) == tensors(second.state_path)


async def test_before_the_first_checkpoint_a_run_rolls_back_to_its_start(train: Train, tensors: Any) -> None:
    rolled_back = await train("back", data={"bad": [1]}, rule={"action": "roll_back"}, save_every=0)
    never = await train("never", data={"left_out": [0, 1]}, save_every=0)
    assert tensors(rolled_back.state_path) == tensors(never.state_path)


async def test_diverged_weights_end_a_run_that_skips(train: Train, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="3 steps of this run were refused.*lower the learning rate"):
        await train("run", rule={"action": "skip", "max_refused": 2}, learning_rate=1e36)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"max_refused": 0}, "non_finite.max_refused=0: must be at least 1"),
        ({"action": "ignore"}, "ignore"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidRequest, TypeError), match=message):
        NonFiniteConfig(**rule)
