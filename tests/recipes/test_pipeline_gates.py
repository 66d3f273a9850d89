"""Gates, manifests and stages= of the pipeline, each stage for one step; runs begin in a copy of a finished one."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import ModuleType

import chz
import pytest

from envs.rlhf import ListRLHFDatasetBuilder
from recipe import pipeline
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.types import PairExampleConfig
from recipe.run_log import read_metrics
from recipe.supervised.data import ListSFTDatasetBuilder
from tests.recipes.loading import load_recipe
from tests.recipes.test_rlhf_pipeline import ONE_STEP, SMALL

ARGUMENTS = [*ONE_STEP, *SMALL, "comparison.best_of_n=0", "preference.report_card.max_probe_prompts=8"]
GATES = ["nll_falls", "replies_end", "beats_chance", "beats_length", "probes_pass", "kl_within_budget", "score_rises"]
STAGES = ("sft", "preference", "rl")


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load_recipe("rlhf_pipeline")


@pytest.fixture(scope="module")
def finished(recipe: ModuleType, tmp_path_factory: pytest.TempPathFactory):
    """The folder of a finished pipeline, and what it printed is left to the tests that run it again."""
    root = tmp_path_factory.mktemp("gates")
    patch = pytest.MonkeyPatch()
    patch.setenv("MINT_HOME", str(root / "home"))
    patch.delenv("MINT_BASE_URL", raising=False)
    recipe.main([f"log_path={root / 'run'}", *ARGUMENTS])
    yield root / "run"
    patch.undo()


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished pipeline of the test's own, on the same checkpoints."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def json_of(file: Path):
    return json.loads(file.read_text())


def bytes_of(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in (".lock", "summary.json")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def stopped(recipe: ModuleType, capfd: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one error of a command that ends with status 1."""
    with pytest.raises(SystemExit) as error:
        recipe.main(arguments)
    printed = capfd.readouterr().err
    assert error.value.code == 1 and "Traceback" not in printed
    return printed[printed.index("error: ") :]


def not_better_than_chance(run: Path) -> None:
    """Let the finished preference stage have measured a model that may be guessing."""
    lines = read_metrics(run / "preference")
    lines[-1] |= {"test/pair_accuracy": 0.52, "test/pair_accuracy_low": 0.44, "test/pair_accuracy_high": 0.6}
    (run / "preference" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_every_gate_and_every_stage_is_on_record(finished: Path):
    gates = json_of(finished / "gates.json")
    assert [gate["name"] for gate in gates] == GATES
    assert json_of(finished / "summary.json")["gates"] == gates
    by_name = {gate["name"]: gate for gate in gates}
    assert by_name["nll_falls"]["passed"] is True and by_name["replies_end"]["passed"] is True
    assert by_name["beats_chance"]["interval"][0] > 0.5 and by_name["beats_chance"]["passed"] is True
    assert by_name["score_rises"]["passed"] is False  # four prompts and one step show nothing
    endings = json_of(finished / "sft" / "reply_endings.json")
    assert endings["num_replies"] == 8 and endings["num_ended"] / 8 == by_name["replies_end"]["value"]


def test_manifests_say_what_each_stage_was_made_from(finished: Path):
    summary = json_of(finished / "summary.json")
    manifests = {stage: json_of(finished / stage / "stage_manifest.json") for stage in STAGES}
    for stage, manifest in manifests.items():
        assert manifest["stage"] == stage and manifest["base_model"] == "mint-tiny" and manifest["seed"] == 0
        assert manifest["state_path"] == summary[f"{stage}.state_path"]
        assert manifest["renderer"] == "qwen3_disable_thinking" and len(manifest["stop_token_ids"]) > 0
        assert len(manifest["data_sha256"]) == len(manifest["config_sha256"]) == 64
    assert len({manifest["data_sha256"] for manifest in manifests.values()}) == 3
    assert manifests["sft"]["parent"] is None and manifests["rl"]["parent"] == summary["sft.state_path"]
    assert manifests["rl"]["reward"] == [summary["preference.sampler_path"]]


def test_the_same_command_again_says_the_same(run: Path, recipe: ModuleType):
    before, summary = bytes_of(run), json_of(run / "summary.json")
    recipe.main([f"log_path={run}", *ARGUMENTS])
    assert bytes_of(run) == before
    assert {**json_of(run / "summary.json"), "seconds": 0} == {**summary, "seconds": 0}


def test_what_a_kill_kept_from_being_written_is_made_again_with_the_same_bytes(run: Path, recipe: ModuleType):
    before, summary = bytes_of(run), json_of(run / "summary.json")
    for name in ("gates.json", "summary.json", "sft/reply_endings.json", "sft/stage_manifest.json"):
        (run / name).unlink()
    manifest = json_of(run / "rl" / "stage_manifest.json") | {"state_path": None, "sampler_path": None}
    (run / "rl" / "stage_manifest.json").write_text(json.dumps(manifest))
    recipe.main([f"log_path={run}", *ARGUMENTS])
    assert bytes_of(run) == before
    assert {**json_of(run / "summary.json"), "seconds": 0} == {**summary, "seconds": 0}


def test_a_failed_gate_stops_the_pipeline_and_says_what_to_try(run: Path, recipe: ModuleType, capfd):
    shutil.rmtree(run / "preference")
    message = stopped(recipe, capfd, [f"log_path={run}", *ARGUMENTS, "gates.nll_falls.min_fall=0.9"])
    assert "sft nll_falls: fall of the held-out NLL per token, as a share, 0.0" in message
    assert "at least 0.9 asked for. Try: raise sft.learning_rate" in message
    assert "gates.nll_falls.on_failed=warn" in message and str(run / "gates.json") in message
    assert [gate["name"] for gate in json_of(run / "gates.json")] == GATES[:2]
    assert not (run / "preference").exists()


def test_a_gate_of_the_last_stage_fails_the_command_once_all_is_written(run: Path, recipe: ModuleType, capfd):
    (run / "summary.json").unlink()
    message = stopped(recipe, capfd, [f"log_path={run}", *ARGUMENTS, "gates.score_rises.on_failed=stop"])
    assert "rl score_rises: share of 4 held-out prompts won by gold score" in message
    assert len(json_of(run / "summary.json")["gates"]) == 7


def test_a_failed_gate_may_be_a_warning(run: Path, recipe: ModuleType, caplog, capfd):
    with caplog.at_level(logging.WARNING):
        recipe.main([f"log_path={run}", *ARGUMENTS, "gates.nll_falls.min_fall=0.9", "gates.nll_falls.on_failed=warn"])
    assert "sft nll_falls: fall of the held-out NLL" in caplog.text and "Try: raise sft.learning_rate" in caplog.text
    printed = capfd.readouterr().out
    assert "failed: sft nll_falls: fall of the held-out NLL" in printed and "gates: " in printed
    assert json_of(run / "gates.json")[0]["passed"] is False


def test_a_model_no_better_than_chance_leaves_the_reward_to_the_rule(run: Path, recipe: ModuleType, caplog, capfd):
    not_better_than_chance(run)
    shutil.rmtree(run / "rl")
    recipe.main([f"log_path={run}", *ARGUMENTS])
    assert "held-out pair accuracy 0.52 (0.44 to 0.6), above 0.5 asked for; stage 3 uses the rule-based" in caplog.text
    assert read_metrics(run / "rl")[0]["env/all/reward_source_prm"] == 0.0
    assert json_of(run / "rl" / "stage_manifest.json")["reward"] == []
    capfd.readouterr()
    # Once the rule has been the reward, a model that is trusted again is another run.
    message = stopped(recipe, capfd, [f"log_path={run}", *ARGUMENTS, "gates.beats_chance.on_failed=warn"])
    assert f"the rl stage in log_path='{run / 'rl'}' was rewarded by the rule-based reward, and is now" in message
    assert json_of(run / "summary.json")["preference.sampler_path"] in message and "rl.log_path=" in message


@pytest.mark.parametrize(("on_failed", "source"), [("stop", None), ("warn", 1.0)])
def test_a_model_no_better_than_chance_can_be_refused_or_used(
    on_failed: str, source: float | None, run: Path, recipe: ModuleType, capfd
):
    not_better_than_chance(run)
    shutil.rmtree(run / "rl")
    arguments = [f"log_path={run}", *ARGUMENTS, f"gates.beats_chance.on_failed={on_failed}"]
    if source is None:
        assert "preference beats_chance: held-out pair accuracy 0.52" in stopped(recipe, capfd, arguments)
        assert not (run / "rl").exists()
    else:
        recipe.main(arguments)
        assert json_of(run / "summary.json")["rl.reward_source_prm"] == source


def test_a_stage_that_began_from_another_policy_is_refused(run: Path, recipe: ModuleType, capfd):
    before = json_of(run / "rl" / "stage_manifest.json")["parent"]
    longer = [argument for argument in ARGUMENTS if not argument.startswith("sft.max_steps")]
    message = stopped(recipe, capfd, [f"log_path={run}", *longer, "sft.max_steps=2", "sft.num_epochs=2"])
    now = json_of(run / "sft" / "stage_manifest.json")["state_path"]
    assert now != before
    assert f"the rl stage in log_path='{run / 'rl'}' started from {before}, and is now given {now}" in message
    assert f"move {run / 'rl'} away" in message


def test_one_stage_on_the_folders_of_the_others(run: Path, recipe: ModuleType):
    summary = json_of(run / "summary.json")
    shutil.rmtree(run / "rl")
    before = bytes_of(run / "sft") | bytes_of(run / "preference")
    recipe.main([f"log_path={run}", *ARGUMENTS, "stages=rl"])
    assert bytes_of(run / "sft") | bytes_of(run / "preference") == before
    again = json_of(run / "summary.json")
    numbers = {name for name in summary if name.startswith("rl.") and not name.endswith("_path")}
    assert {name: again[name] for name in numbers} == {name: summary[name] for name in numbers}
    assert again["gates"] == summary["gates"]


def test_a_stage_run_again_by_itself_leaves_the_summary_of_the_others(run: Path, recipe: ModuleType):
    summary, gates = json_of(run / "summary.json"), (run / "gates.json").read_bytes()
    recipe.main([f"log_path={run}", *ARGUMENTS, "stages=sft"])
    assert {**json_of(run / "summary.json"), "seconds": 0} == {**summary, "seconds": 0}
    assert (run / "gates.json").read_bytes() == gates
    longer = [argument for argument in ARGUMENTS if not argument.startswith("sft.max_steps")]
    recipe.main([f"log_path={run}", *longer, "stages=sft", "sft.max_steps=2", "sft.num_epochs=2"])
    assert json_of(run / "summary.json")["rl.state_path"] is None  # it began from another policy


def test_stages_run_alone_where_they_need_nothing(recipe: ModuleType, finished: Path, tmp_path: Path, capfd):
    recipe.main([f"log_path={tmp_path}", *ARGUMENTS, "stages=preference"])
    assert not (tmp_path / "sft").exists() and not (tmp_path / "rl").exists()
    summary = json_of(tmp_path / "summary.json")
    assert summary["sft.state_path"] is None and summary["rl.state_path"] is None
    assert (
        summary["preference.test_pair_accuracy"] == json_of(finished / "summary.json")["preference.test_pair_accuracy"]
    )
    assert "Stage 3 of 3: not run" in capfd.readouterr().out


def test_what_a_stage_needs_can_be_named(recipe: ModuleType, finished: Path, tmp_path: Path):
    given = json_of(finished / "summary.json")["sft.state_path"]
    folder = f"preference.log_path={finished / 'preference'}"
    recipe.main([f"log_path={tmp_path}", *ARGUMENTS, "stages=rl", f"rl.load_checkpoint_path={given}", folder])
    manifest = json_of(tmp_path / "rl" / "stage_manifest.json")
    assert manifest["parent"] == given and not (tmp_path / "sft").exists()
    assert json_of(tmp_path / "gates.json")[0]["stage"] == "preference"


@pytest.mark.parametrize(
    ("stages", "kept", "message"),
    [
        ("rl", None, "stage 3 starts from the policy of stage 1, and {run}/sft holds no finished run of it"),
        ("sft,rl", "sft", "{run}/preference holds no finished run of it. Add preference to the stages, or name"),
    ],
)
def test_a_missing_stage_is_one_clear_error(
    stages: str, kept: str | None, message: str, finished: Path, recipe: ModuleType, tmp_path: Path, capfd
):
    if kept is not None:
        shutil.copytree(finished / kept, tmp_path / kept)
    error = stopped(recipe, capfd, [f"log_path={tmp_path}", *ARGUMENTS, f"stages={stages}"])
    assert message.format(run=tmp_path) in error
    assert not (tmp_path / "rl").exists()


def test_an_unknown_stage_is_refused(recipe: ModuleType, tmp_path: Path, capfd):
    with pytest.raises(SystemExit) as error:
        recipe.main([f"log_path={tmp_path}", *ARGUMENTS, "stages=sft,prefrence"])
    assert error.value.code == 2
    assert "Did you mean 'preference'?" in capfd.readouterr().err


async def test_without_held_out_data_no_gate_is_checked_and_none_fails(
    recipe: ModuleType, finished: Path, tmp_path: Path
):
    def says(user: str, assistant: str) -> list:
        return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]

    pairs = [{"prompt": f"Advice on tea {i}?", "chosen": f"Warm the pot {i}.", "rejected": "Tea."} for i in range(4)]
    whole = recipe_config(recipe, [f"log_path={tmp_path}", *ONE_STEP, "rl.max_tokens=8"])
    config = chz.replace(
        whole,
        sft=chz.replace(
            whole.sft, dataset_builder=ListSFTDatasetBuilder(conversations=[says("Tea?", "Warm the pot.")] * 4)
        ),
        preference=chz.replace(
            whole.preference,
            dataset_builder=ListPreferenceDatasetBuilder(pairs=pairs, examples=PairExampleConfig(held_out_share=0.0)),
        ),
        rl=chz.replace(
            whole.rl,
            dataset_builder=ListRLHFDatasetBuilder(
                model_name="mint-tiny",
                renderer_name="qwen3_disable_thinking",
                group_size=2,
                groups_per_batch=2,
                prompts=[[{"role": "user", "content": "Advice on coffee?"}]] * 2,
            ),
        ),
    )
    summary = await pipeline.main(config)
    assert [gate["name"] for gate in summary["gates"]] == GATES
    assert all(gate["passed"] is None and gate["advice"] for gate in summary["gates"])
    assert summary["rl.reward_source_prm"] == 1.0


def recipe_config(recipe: ModuleType, arguments: list[str]) -> pipeline.Config:
    from recipe.command_line import parse_config

    return parse_config(pipeline.Config, recipe.PRESET, arguments)
