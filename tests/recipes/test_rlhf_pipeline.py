"""The main recipe from end to end, each stage for one step, on the built-in model and from files."""

from __future__ import annotations

import json
import logging
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
from safetensors.torch import load_file

from mint.checkpoint_store import CheckpointStore
from recipe.run_log import read_metrics
from tests.random_model import make_random_model
from tests.recipes.loading import load_recipe

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "rlhf_pipeline.py"
ONE_STEP = ["sft.max_steps=1", "preference.max_steps=1", "rl.max_steps=1"]
SMALL = [
    "sft.dataset_builder.num_train=16",
    "sft.dataset_builder.num_test=8",
    "preference.dataset_builder.num_train=16",
    "preference.dataset_builder.num_test=160",
    "rl.dataset_builder.num_test=4",
    "rl.dataset_builder.group_size=4",
    "rl.dataset_builder.groups_per_batch=4",
    "comparison.replies_per_prompt=1",
]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load_recipe("rlhf_pipeline")


def adapter(path: str, home: Path) -> bytes:
    run_id, kind, name = path.removeprefix("mint://").split("/")
    return (home / "runs" / run_id / kind / name / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def finished(recipe: ModuleType, tmp_path_factory: pytest.TempPathFactory):
    """A pipeline of one step a stage: its folder, its storage, its summary."""
    root = tmp_path_factory.mktemp("pipeline")
    patch = pytest.MonkeyPatch()
    patch.setenv("MINT_HOME", str(root / "home"))
    patch.delenv("MINT_BASE_URL", raising=False)
    recipe.main([f"log_path={root / 'run'}", *ONE_STEP, *SMALL])
    yield root / "run", root / "home", json.loads((root / "run" / "summary.json").read_text())
    patch.undo()


def test_each_stage_takes_one_step_and_reports_it(finished):
    run, _, _ = finished
    sft, preference, rl = (read_metrics(run / stage) for stage in ("sft", "preference", "rl"))
    assert sft[0]["train_mean_nll"] > 0 and sft[0]["test/nll"] > 0
    assert preference[0]["loss"] > 0 and 0 <= preference[0]["pair_accuracy"] <= 1
    assert "env/all/reward/total" in rl[0] and rl[0]["env/all/reward_source_prm"] == 1.0
    for stage in ("sft", "preference", "rl"):
        records = [json.loads(line) for line in (run / stage / "checkpoints.jsonl").read_text().splitlines()]
        assert records[-1]["name"] == "final" and records[-1]["step"] == 1


def test_the_summary_has_the_whole_table(finished):
    _, home, summary = finished
    store = CheckpointStore(home)
    for stage in ("sft", "preference", "rl"):
        for kind in ("state_path", "sampler_path"):
            store.verify(summary[f"{stage}.{kind}"])
    numbers = {
        "sft.nll_before", "sft.nll_after", "preference.test_pair_accuracy", "rl.gold_before", "rl.gold_after",
        "rl.gold_win_rate", "rl.kl_to_sft", "seconds",
    }  # fmt: skip
    assert all(isinstance(summary[name], float) for name in numbers)
    assert summary["sft.nll_after"] < summary["sft.nll_before"]
    assert 0 <= summary["rl.gold_after"] <= 1 and summary["rl.kl_to_sft"] > -1


def test_stage_3_starts_from_the_weights_of_stage_1(finished):
    run, home, summary = finished
    recorded = json.loads((run / "rl" / "config.json").read_text())["values"]
    assert recorded["load_checkpoint_path"] == summary["sft.state_path"]
    assert CheckpointStore(home).manifest(summary["rl.state_path"]).parent == summary["sft.state_path"]
    # One Adam step moves no weight by more than the learning rate; anything but stage 1's weights would be far off.
    sft, rl = (load_file_of(summary[f"{stage}.state_path"], home) for stage in ("sft", "rl"))
    largest = max(float((sft[name] - rl[name]).abs().max()) for name in sft)
    assert 0 < largest <= 1.01 * read_metrics(run / "rl")[0]["learning_rate"]


def load_file_of(path: str, home: Path) -> dict:
    run_id, kind, name = path.removeprefix("mint://").split("/")
    return load_file(home / "runs" / run_id / kind / name / "adapter_model.safetensors")


def test_the_same_command_again_changes_nothing(finished, recipe: ModuleType):
    run, _, summary = finished
    files = {path: path.read_bytes() for path in run.rglob("*.jsonl")}
    recipe.main([f"log_path={run}", *ONE_STEP, *SMALL])
    again = json.loads((run / "summary.json").read_text())
    assert {**again, "seconds": 0} == {**summary, "seconds": 0}
    assert {path: path.read_bytes() for path in run.rglob("*.jsonl")} == files


def test_two_runs_are_identical_bit_for_bit(finished, recipe: ModuleType, tmp_path: Path):
    run, home, summary = finished
    recipe.main([f"log_path={tmp_path / 'run'}", *ONE_STEP, *SMALL])
    other = json.loads((tmp_path / "run" / "summary.json").read_text())
    for stage in ("sft", "preference", "rl"):
        assert adapter(other[f"{stage}.state_path"], home) == adapter(summary[f"{stage}.state_path"], home)
        ours, theirs = ([timeless(line) for line in read_metrics(folder / stage)] for folder in (run, tmp_path / "run"))
        assert ours == theirs
    numbers = {name for name in summary if not name.endswith("_path") and name != "seconds"}
    assert {name: other[name] for name in numbers} == {name: summary[name] for name in numbers}


def timeless(line: dict) -> dict:
    return {key: value for key, value in line.items() if not key.startswith("time/")}


def test_without_pairs_the_rule_based_reward_is_used(finished, recipe: ModuleType, tmp_path: Path, caplog):
    with caplog.at_level(logging.WARNING):
        recipe.main([f"log_path={tmp_path}", *ONE_STEP, *SMALL, "preference.dataset_builder.num_train=0"])
    assert "the preference stage failed (no preference pairs" in caplog.text
    assert read_metrics(tmp_path / "rl")[0]["env/all/reward_source_prm"] == 0.0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rl.reward_source_prm"] == 0.0 and summary["preference.test_pair_accuracy"] is None


def readme_command(name: str) -> list[str]:
    """The arguments of the README's command after the marker of that name."""
    text = (RECIPE.parents[1] / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- command: {name} -->\n```bash\n(.+)\n```", text)
    assert found is not None, f"README.md has no command {name!r}"
    program, script, *arguments = shlex.split(found.group(1))
    assert (program, script) == ("python", "recipes/rlhf_pipeline.py")
    return arguments


@pytest.mark.parametrize("model", ["built in", "local folder"])
def test_the_readmes_command_trains_all_three_stages_from_files(
    model, finished, recipe: ModuleType, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("data").symlink_to(shared_data)
    folder = make_random_model(tmp_path / "model", max_position_embeddings=1024) if model == "local folder" else None
    smaller = [
        "sft.dataset_builder.max_rows=40",
        "sft.dataset_builder.examples.num_test=8",
        "sft.dataset_builder.examples.batch_size=8",
        "preference.dataset_builder.max_rows=40",
        "preference.dataset_builder.examples.batch_size=4",
        "rl.dataset_builder.max_rows=40",
        "rl.dataset_builder.num_test=4",
        "rl.dataset_builder.group_size=2",
        "rl.dataset_builder.groups_per_batch=2",
        "rl.max_tokens=16",
    ]
    given = {argument.split("=")[0] for argument in smaller}
    command = [argument for argument in readme_command("files") if argument.split("=")[0] not in given]
    # A random model does not end its replies after one step.
    other_model = [f"sft.model_name={folder}", "gates.replies_end.on_failed=warn"] if folder else []
    recipe.main([*command, *ONE_STEP, *smaller, *other_model])
    run = tmp_path / "runs" / "files"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["sft.nll_after"] < summary["sft.nll_before"]
    assert isinstance(summary["rl.reward_after"], float)
    assert "env/all/reward/total" in read_metrics(run / "rl")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rl.lora_rank=16"], r"sft \(mint-tiny, rank 32\) and rl \(mint-tiny, rank 16\) differ"),
        (["rl.dataset_builder.group_size=1"], "group_size=1: advantages need at least 2; set group_size >= 2"),
        (["sft.max_step=1"], r"Extraneous argument 'sft.max_step'.*\nDid you mean 'sft.max_steps'\?"),
        (["sft.num_epochs=many"], "Could not interpret argument 'many' provided for param 'sft.num_epochs'"),
        (["sft.num_epochs=0"], "num_epochs=0: must be at least 1"),
        (["sft.model_name=mint-tinny"], "base_model='mint-tinny' could not be loaded"),
        (["sft.renderer_name=qwen33"], "Did you mean 'qwen3'"),
        (
            ["sft.dataset_builder=recipe.supervised.data:FileSFTDatasetBuilder", "sft.dataset_builder.path=no.jsonl"],
            "no.jsonl: no such file",
        ),
    ],
)
def test_a_wrong_setting_is_one_clear_error(
    arguments, message, finished, recipe: ModuleType, tmp_path: Path, capfd, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit) as stopped:
        recipe.main([f"log_path={tmp_path}", *ONE_STEP, *SMALL[2:], *arguments])
    assert stopped.value.code in (1, 2)
    errors = capfd.readouterr().err
    assert re.search(rf"error: .*{message}", errors, re.DOTALL), errors
    assert "Traceback" not in errors
    assert not (tmp_path / "sft" / "checkpoints.jsonl").exists()
