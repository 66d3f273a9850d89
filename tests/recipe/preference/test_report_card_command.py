"""`mint report-card` on a finished stage, and the card as text."""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.errors import InvalidRequest
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.report_card import CARD_FILE, ReportCardConfig
from recipe.preference.report_card_command import command, run, stage_folder
from recipe.preference.report_card_text import card_text, findings, one_line, rewardbench_text
from recipe.preference.train import Config, main
from recipe.preference.types import PairExampleConfig
from recipe.terminal import Palette

PLAIN = Palette(is_coloured=False)


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command(parser)
    return parser.parse_args(arguments)


def rows(num_rows: int, name: str, **more: str) -> list[dict[str, str]]:
    return [
        {"prompt": f"{name} {i}?", "chosen": f"red {i}", "rejected": f"mud {i} {i}", **more} for i in range(num_rows)
    ]


def write(path: Path, lines: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def stage(service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path) -> Path:
    """The folder of a pipeline whose preference stage is finished; each probe is made for 3 prompts."""
    folder = tmp_path / "pipeline" / "preference"
    data = ListPreferenceDatasetBuilder(
        pairs=rows(4, "Train"), held_out_pairs=rows(6, "Test"), examples=PairExampleConfig(batch_size=4)
    )
    config = Config(
        log_path=str(folder), model_name=str(tiny_model_dir), dataset_builder=data, lora_rank=4, max_steps=1,
        renderer_name="qwen3_disable_thinking", report_card=ReportCardConfig(max_probe_prompts=3),
    )  # fmt: skip
    asyncio.run(main(config, service))
    return folder.parent


def test_the_card_of_the_stage_is_shown_and_made_where_it_is_missing(
    stage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = stage / "preference" / CARD_FILE
    written = file.read_bytes()
    capsys.readouterr()
    run(options(str(stage)))
    shown = capsys.readouterr().out
    assert shown.startswith(f"Report card of {stage / 'preference'} on its held-out pairs\n")
    file.unlink()
    run(options(str(stage / "preference"), "--json"))
    assert file.read_bytes() == written, "the settings are those of the run: three prompts are probed, not 64"
    assert json.loads(capsys.readouterr().out) == json.loads(written)
    assert json.loads(written)["probes"]["empty"]["num"] == 3


def test_other_pairs_and_a_rewardbench_file(stage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = write(tmp_path / "pairs.jsonl", rows(5, "Other", source="web"))
    bench = write(
        tmp_path / "bench.jsonl", [*rows(3, "Easy", subset="alpacaeval-easy"), *rows(2, "My", subset="my own")]
    )
    before = (stage / "preference" / CARD_FILE).read_bytes()
    capsys.readouterr()
    run(options(str(stage), "--pairs", pairs, "--rewardbench", bench, "--json"))
    found = json.loads(capsys.readouterr().out)
    assert found["report_card"]["by_source"]["web"]["num_pairs"] == 5
    assert found["report_card"]["accuracy"] == found["report_card"]["by_source"]["web"]
    assert {name: of["num_pairs"] for name, of in found["rewardbench"]["by_subset"].items()} == {
        "alpacaeval-easy": 3,
        "my own": 2,
    }
    value = found["rewardbench"]["by_subset"]["alpacaeval-easy"]["value"]
    assert found["rewardbench"]["sections"] == {"Chat": value, "average": value}
    assert (stage / "preference" / CARD_FILE).read_bytes() == before, "other pairs do not replace the stage's card"
    run(options(str(stage), "--pairs", pairs, "--max-rows", "2", "--json"))
    assert json.loads(capsys.readouterr().out)["accuracy"]["num_pairs"] == 2
    run(options(str(stage), "--rewardbench", bench))
    shown = capsys.readouterr().out
    assert "alpacaeval-easy" in shown and "Chat" in shown and "held-out accuracy" not in shown


def test_the_command_is_there_and_says_what_is_wrong_in_one_line(stage: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MINT_BASE_URL"}
    called = [sys.executable, "-m", "mint.cli", "report-card"]
    done = subprocess.run([*called, str(stage)], capture_output=True, encoding="utf-8", timeout=120, env=environment)
    assert done.returncode == 0 and "held-out accuracy" in done.stdout, done.stderr
    assert "\033" not in done.stdout
    done = subprocess.run([*called, str(tmp_path)], capture_output=True, encoding="utf-8", timeout=120, env=environment)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "no checkpoints.jsonl here or in preference/ below it" in done.stderr


def test_a_stage_that_is_not_finished_or_has_no_pairs_is_refused(stage: Path) -> None:
    folder = stage / "preference"
    assert stage_folder(str(stage)) == stage_folder(str(folder)) == folder
    (folder / CARD_FILE).unlink()
    config = json.loads((folder / "config.json").read_text())
    for name in [name for name in config["values"] if name.startswith("dataset_builder")]:
        del config["values"][name]
    config["values"]["dataset_builder"] = {"$import": "__main__:Mine"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidRequest, match="cannot be made again from its config.json .* or give --pairs FILE"):
        run(options(str(stage)))
    (folder / "checkpoints.jsonl").write_text('{"name": "000001", "step": 1, "sampler_path": "mint://a/b/c"}\n')
    with pytest.raises(InvalidRequest, match="the stage is not finished"):
        run(options(str(stage)))


def share(value: float, low: float, high: float, num_pairs: int = 100) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "num_pairs": num_pairs}


NO_PAIRS = {"value": None, "low": None, "high": None, "num_pairs": 0}
GOOD: dict[str, Any] = {
    "accuracy": share(0.8, 0.7, 0.9),
    "num_prompts": 50,
    "num_ties": 0,
    "num_too_long": 0,
    "length_only_accuracy": share(0.55, 0.45, 0.65),
    "beats_length_only": share(0.75, 0.6, 0.86, 40),
    "length_balanced": share(0.78, 0.66, 0.88, 60),
    "by_source": {"web": share(0.8, 0.7, 0.9)},
    "brier": 0.15,
    "ece": 0.04,
    "temperature": 1.25,
    "reliability": [
        {"low": 0.5, "high": 0.7, "mean_predicted": 0.6, "share_right": 0.75, "num_pairs": 50},
        {"low": 0.7, "high": 1.0, "mean_predicted": 1.0, "share_right": 1.0, "num_pairs": 50},
    ],
    "correlations": {"characters": 0.2, "digits": None},
    "pearson_correlations": {"characters": -0.1, "digits": None},
    "paraphrase": {
        "applicable": True,
        "num_pairs": 40,
        "share_changed": 0.05,
        "mean_abs_delta": 0.3,
        "by_wording": {"Good?": {"share_changed": 0.05, "mean_abs_delta": 0.3}},
    },
    "probes": {"empty": {"share_passed": 1.0, "low": 0.94, "high": 1.0, "mean_margin": 3.5, "num": 64, "passed": True}},
    "min_probe_share": 0.8,
    "probes_passed": True,
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(GOOD), **changes}


def probe(share_passed: float, passed: bool) -> dict[str, Any]:
    return {**GOOD["probes"]["empty"], "share_passed": share_passed, "passed": passed}


def test_worked_text() -> None:
    text = card_text(GOOD, "Report card", PLAIN)
    for line in (
        "  held-out accuracy          0.800  (0.700 to 0.900)  100 pairs of 50 prompts",
        "  from web                   0.800  (0.700 to 0.900)  100 pairs",
        "  Brier score 0.150, calibration error 0.040, temperature 1.25",
        "    0.600  0.750  ====|=====..........  50 pairs",
        "    1.000  1.000  ===================|  50 pairs",
        "    characters                 +0.20   -0.10",
        "    digits                         -       -",
        "    Good?                                                0.050    0.300",
        "      ok  empty              1.000  (0.940 to 1.000)  margin +3.50",
        "Nothing stands out.",
    ):
        assert line in text.splitlines(), line
    assert "left out" not in text
    by_source = {f"source number {i} of many": share(0.8, 0.7, 0.9, i) for i in range(1, 13)}
    many = card_text(changed(by_source=by_source), "Report card", PLAIN).splitlines()
    assert next(line for line in many if "from source" in line).startswith("  from source number 12 of…  0.800  ")
    assert "  and 2 more sources (--json has them all)" in many
    assert "left out: 2 ties, 3 too long" in card_text(changed(num_ties=2, num_too_long=3), "Report card", PLAIN)
    assert "  on length-balanced pairs       -  no pairs" in card_text(changed(length_balanced=NO_PAIRS), "", PLAIN)
    assert one_line(GOOD) == "report card: accuracy 0.800 (0.700 to 0.900), length alone 0.550, probes passed"
    assert one_line(changed(probes={"cut": probe(0.1, False)})).endswith("failed probes: cut")


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"accuracy": share(0.55, 0.45, 0.65)}, "held-out accuracy may be chance"),
        ({"beats_length_only": share(0.55, 0.45, 0.65)}, "no better than a rule about length"),
        ({"beats_length_only": NO_PAIRS}, "no better than a rule about length"),
        ({"length_balanced": share(0.55, 0.45, 0.65)}, "where length says nothing it may be guessing"),
        ({"probes": {"cut": probe(0.3, False), "echo": probe(1.0, True)}}, "failed probes: cut. "),
        ({"probes": {"cut": probe(0.75, True)}}, "weak probes, below 80% if not surely so: cut 0.75"),
        ({"ece": 0.2}, "its probabilities are off by 0.20"),
        ({"correlations": {"characters": -0.6, "digits": None}}, "the score follows characters"),
        ({"paraphrase": {**GOOD["paraphrase"], "share_changed": 0.25}}, "turns 25% of the pairs round"),
    ],
)
def test_what_stands_out(changes: dict[str, Any], finding: str) -> None:
    assert findings(GOOD) == []
    assert any(finding in found for found in findings(changed(**changes)))


def test_rewardbench_as_text() -> None:
    result = {"by_subset": {"donotanswer": share(0.5, 0.4, 0.6)}, "sections": {"Safety": 0.5}, "num_too_long": 1}
    text = rewardbench_text(result, "RewardBench", PLAIN)
    assert "    Safety                     0.500" in text.splitlines() and "left out: 1 too long" in text
    assert "no subset of RewardBench's sections" in rewardbench_text({**result, "sections": {}}, "", PLAIN)
