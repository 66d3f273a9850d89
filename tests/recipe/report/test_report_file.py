"""From a run's folder to the page: what is in it, whatever state the folder is in."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.generated_rollouts import HOSTILE_TEXT
from mint.cli import main as mint_command
from mint.errors import InvalidRequest
from recipe.report import bring_up_to_date, reported, write_report
from recipe.report.report_file import SCRIPTS, STYLES
from recipe.report.rollout_chunks import rollout_files, within_budget

PAGE_FOLDER = Path(write_report.__code__.co_filename).parent / "page"

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
EPISODE_FIELDS = ("group", "member", "turns", "metrics", "tags", "fault", "total_reward", "advantage", "env")
TURN_FIELDS = ("prompt", "response", "tokens", "token_lengths", "logprobs", "advantages", "metrics", "logs")


def data_in(page: Path, name: str) -> Any:
    """A block of data of the page, unpacked as the browser does it."""
    match = re.search(rf'id="data-{name}">([A-Za-z0-9+/=]*)</script>', page.read_text(encoding="utf-8"))
    assert match, f"no block {name}"
    return json.loads(zlib.decompress(base64.b64decode(match[1])))


def episode(**changes: Any) -> dict[str, Any]:
    """A line of a rollout file."""
    turn = {
        "prompt": "ab",
        "response": "cd",
        "prompt_tokens": [0, 1],
        "tokens": [2, 3],
        "token_lengths": [1, 1],
        "logprobs": [-0.25, -0.5],
        "advantages": 0.5,
        "stop_reason": "stop",
        "reward": 1.0,
        "metrics": {},
        "logs": {},
    }
    return {
        "version": 2,
        "group": 0,
        "member": 0,
        "env": "E",
        "tags": [],
        "total_reward": 1.0,
        "final_reward": 0.0,
        "advantage": 0.5,
        "metrics": {},
        "turns": [turn],
    } | changes


def stage(folder: Path, *episodes: dict[str, Any] | str, name: str = "iteration_000000") -> Path:
    """A stage's folder with one line of metrics and these rollouts."""
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text('{"step": 0, "env/all/reward/total": 1.5}\n')
    lines = [line if isinstance(line, str) else json.dumps(line) for line in episodes]
    (folder / "rollouts" / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def test_the_page_holds_every_stage_metric_and_episode(page_path: Path, run_folder: Path) -> None:
    core, index = data_in(page_path, "core"), data_in(page_path, "index")
    assert [(one["name"], one["kind"]) for one in core["stages"]] == [
        ("sft", "sft"),
        ("preference", "preference"),
        ("rl", "rl"),
    ]
    lines = [json.loads(line) for line in (run_folder / "rl" / "metrics.jsonl").read_text().splitlines()]
    column = core["stages"][2]["metrics"]["columns"]["env/all/gold"]
    assert column == pytest.approx([line["env/all/gold"] for line in lines], rel=1e-5)
    files = sorted((run_folder / "rl" / "rollouts").glob("iteration_*.jsonl"))
    records = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert index["num_episodes"] == len(records)
    rated = [(i, record["total_reward"]) for i, record in enumerate(records) if "fault" not in record]
    assert [index["columns"]["reward"][i] for i, _ in rated] == pytest.approx([r for _, r in rated], rel=1e-5)
    assert sum(reward is None for reward in index["columns"]["reward"]) == len(records) - len(rated) == 1
    texts = [one for i in range(len(files)) for one in data_in(page_path, f"texts-{i}")]
    assert [one["turns"][-1]["response"] for one in texts] == [r["turns"][-1]["response"] for r in records]
    assert core["gates"][5]["passed"] is False and core["problems"] == []


def test_the_same_run_has_the_same_bytes_and_its_file_is_left_alone(page_path: Path, run_folder: Path) -> None:
    before, written_at = page_path.read_bytes(), page_path.stat().st_mtime_ns
    summary = run_folder / "summary.json"
    summary.write_text(summary.read_text().replace('"seconds": 161.0', '"seconds": 3.0'))
    assert write_report(run_folder).read_bytes() == before
    assert page_path.stat().st_mtime_ns == written_at


def test_one_stage_alone_and_an_unfinished_run_have_a_report(run_folder: Path, tmp_path: Path) -> None:
    assert [one["name"] for one in data_in(write_report(stage(tmp_path / "rl")), "core")["stages"]] == ["rl"]
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text('{"config_class": {"$import": "recipe.rl.config:Config"}}')
    assert data_in(write_report(tmp_path / "begun"), "core")["stages"][0]["kind"] == "rl"
    with pytest.raises(InvalidRequest, match="holds no run"):
        write_report(run_folder / "rl" / "rollouts")
    with pytest.raises(InvalidRequest, match="no such folder"):
        write_report(tmp_path / "nowhere")


def test_damaged_files_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    no_turns, wrong_type = episode() | {"turns": None}, episode(group="zero")
    folder = stage(tmp_path / "rl", "{", episode(), no_turns, wrong_type, "[1]", episode(member=1))
    (folder / "metrics.jsonl").write_text(
        '{"step": 0, "loss": NaN, "entropy": 1e999}\n{"loss": 1}\nnot json\n{"step": 2'
    )
    (folder / "config.json").write_bytes(b"\xff\xfe not json")
    (folder / "report_card.json").write_text("[" * 100_000)
    page = write_report(folder)
    core = data_in(page, "core")
    assert [(one["file"], one["line"]) for one in core["problems"]] == [
        ("config.json", None),
        ("metrics.jsonl", 2),
        ("metrics.jsonl", 3),
        ("metrics.jsonl", 4),
        ("report_card.json", None),
        *(("rollouts/iteration_000000.jsonl", line) for line in (1, 3, 4, 5)),
    ]
    assert data_in(page, "index")["columns"]["member"] == [0, 1]
    assert core["stages"][0]["metrics"] == {"steps": [0], "columns": {}}


@settings(max_examples=60)
@given(ANY_JSON, st.sampled_from(EPISODE_FIELDS), st.sampled_from(TURN_FIELDS))
def test_no_content_of_a_rollout_file_keeps_the_report_from_being_written(
    tmp_path_factory: pytest.TempPathFactory, value: Any, name: str, turn_name: str
) -> None:
    turn = episode()["turns"][0] | {turn_name: value}
    folder = stage(tmp_path_factory.mktemp("rl"), episode(**{name: value}), episode(turns=[turn]), episode(member=7))
    page = write_report(folder)
    assert data_in(page, "index")["columns"]["member"][-1] == 7
    assert len(data_in(page, "texts-0")) == len(data_in(page, "tokens-0")) == data_in(page, "index")["num_episodes"]


def test_text_of_any_kind_cannot_end_the_element_it_is_in(tmp_path: Path) -> None:
    turn = episode()["turns"][0] | {"response": HOSTILE_TEXT, "token_lengths": None}
    folder = stage(tmp_path / "a<b>&", episode(turns=[turn]))
    page = write_report(folder).read_text(encoding="utf-8")
    assert "alert(" not in page and "<title>a&lt;b&gt;&amp;: run report</title>" in page
    assert page.count("<script") == page.count("</script>") == 1 + len(re.findall('id="data-', page))


def test_token_lengths_are_counted_as_the_browser_counts(tmp_path: Path) -> None:
    """An emoji is one character here and two UTF-16 units there; lengths that do not fit the text are not used."""
    turn = episode()["turns"][0]
    good = turn | {"response": "a😀b", "tokens": [5, 6], "token_lengths": [2, 1]}
    wrong = good | {"token_lengths": [1, 1]}
    old = {key: value for key, value in turn.items() if key not in ("token_lengths", "advantages")}
    page = write_report(stage(tmp_path, episode(turns=[good]), episode(turns=[wrong]), episode(turns=[old], version=1)))
    assert [one[0]["lengths"] for one in data_in(page, "tokens-0")] == [[3, 1], None, None]
    assert data_in(page, "tokens-0")[2][0]["advantages"] is None


def test_a_later_turn_holds_what_the_environment_added(tmp_path: Path) -> None:
    first = episode()["turns"][0]
    second = first | {
        "prompt": "abcd>answer<",
        "response": "e",
        "tokens": [4],
        "token_lengths": [1],
        "logprobs": [-1.0],
    }
    fresh = second | {"prompt": "begun anew"}
    page = write_report(stage(tmp_path, episode(turns=[first, second, fresh])))
    turns = data_in(page, "texts-0")[0]["turns"]
    assert [(turn.get("given"), turn.get("is_fresh")) for turn in turns] == [
        (None, None),
        (">answer<", False),
        ("begun anew", True),
    ]


def test_ratios_to_the_trainer_join_their_episode_and_only_where_they_fit(tmp_path: Path) -> None:
    folder = stage(tmp_path, episode(), episode(member=1), episode(member=2))
    lines = [
        {"group": 0, "member": 0, "trainer_logprobs": [-0.2, None]},
        {"group": 0, "member": 1, "trainer_logprobs": [-1]},
    ]
    (folder / "rollouts" / "trained_000000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [one[0]["log_ratios"] for one in data_in(write_report(folder), "tokens-0")] == [[0.05, None], None, None]


def test_a_run_too_large_for_a_page_keeps_evenly_spaced_steps(tmp_path: Path) -> None:
    for i in range(21):
        stage(tmp_path, episode(), name=f"iteration_{i:06d}")
    size = (tmp_path / "rollouts" / "iteration_000000.jsonl").stat().st_size
    kept = within_budget(rollout_files(tmp_path), 5 * size)
    assert [file.iteration for file in kept] == [0, 5, 10, 15, 20]
    core = data_in(write_report(tmp_path, max_rollout_bytes=5 * size), "core")
    assert core["rollouts"] == {"num_files": 21, "num_shown_files": 5, "num_episodes": 5}


def test_a_report_is_made_where_there_is_none_or_the_run_went_on_and_never_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = stage(tmp_path / "rl")
    bring_up_to_date(folder)
    page = folder / "report.html"
    page.write_text("as it was")
    bring_up_to_date(folder)
    assert page.read_text() == "as it was", "newer than the run: left alone"
    os.utime(page, ns=(0, 0))
    bring_up_to_date(folder)
    assert page.read_text() != "as it was"
    bring_up_to_date(tmp_path / "nowhere")
    assert caplog.records == []
    page.unlink()
    page.mkdir()
    with caplog.at_level(logging.WARNING):
        bring_up_to_date(folder)
    assert "no report of" in caplog.text and "mint report" in caplog.text


def test_a_run_that_an_error_ends_has_a_report(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="gate"), reported(tmp_path):
        stage(tmp_path / "sft")
        raise InvalidRequest("a gate failed")
    assert (tmp_path / "report.html").is_file()


def test_mint_report_writes_it_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mint_command(["report", str(stage(tmp_path))]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'report.html'} (0.1 MB)")


def test_the_page_is_made_of_short_commented_files_and_loads_nothing() -> None:
    names = {path.name for path in PAGE_FOLDER.iterdir()}
    assert names == {"report.html", *SCRIPTS, *STYLES}
    for name in (*SCRIPTS, *STYLES):
        text = (PAGE_FOLDER / name).read_text(encoding="utf-8")
        assert text.startswith(("// ", "/* ")), f"{name}: say what it is"
        assert len(text.splitlines()) <= 400, name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|fetch\(|XMLHttp", text
        ), name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", text), (
            f"{name}: nothing from elsewhere"
        )


def test_functions_of_the_page_stay_short() -> None:
    """Top-level functions begin and end in the first column."""
    for name in SCRIPTS:
        text = (PAGE_FOLDER / name).read_text(encoding="utf-8")
        for match in re.finditer(r"^(?:async )?function (\w+)[^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
            assert match[2].count("\n") <= 80, f"{name}: {match[1]}"
