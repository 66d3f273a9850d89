"""A pipeline that is killed or interrupted, and started again with the same command, ends like one left alone."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.recipes.killing import ELSEWHERE, SEALED, STAGES, WRITING, Kill, Pipeline, differences, random_kills

SMALL = [
    "sft.dataset_builder.num_train=48",
    "sft.dataset_builder.num_test=8",
    "sft.dataset_builder.examples.batch_size=8",
    "preference.dataset_builder.num_train=48",
    "preference.dataset_builder.num_test=80",
    "rl.dataset_builder.num_test=4",
    "rl.dataset_builder.group_size=4",
    "rl.dataset_builder.groups_per_batch=4",
    "rl.max_tokens=24",
    "comparison.replies_per_prompt=1",
]
TWO_STEPS = [f"{stage}.{name}" for stage in STAGES for name in ("max_steps=2", "save_every=1")]
# Some checkpoints have steps between them, which are done again; two epochs, evaluations and two updates an iteration.
FIVE_STEPS = [
    "sft.max_steps=8",
    "sft.num_epochs=2",
    "sft.eval_every=3",
    "sft.save_every=2",
    "preference.max_steps=5",
    "preference.save_every=1",
    "rl.max_steps=5",
    "rl.num_substeps=2",
    "rl.eval_every=2",
    "rl.save_every=2",
]


def assert_same(found: Pipeline, expected: Pipeline) -> None:
    differing = differences(found.outcome(), expected.outcome())
    assert not differing, f"{len(differing)} files differ: {differing[:20]}"


def test_killed_once_in_each_stage_the_pipeline_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole = Pipeline(tmp_path / "whole", tmp_path / "home", [*SMALL, *TWO_STEPS])
    parts = Pipeline(tmp_path / "parts", tmp_path / "parts home", whole.arguments)
    process = whole.start()
    kills = (Kill(1, WRITING, num_calls=3), Kill(4, SEALED), Kill(7, seconds=0.1))
    landed = [parts.run_killed(kill) for kill in kills]
    parts.finish()
    whole.finish(process)
    assert landed[:2] == [f"sft: {WRITING}", f"preference: {SEALED}"]
    assert landed[2] is not None and landed[2].startswith("rl: ")
    assert_same(parts, whole)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_within_an_ensemble_the_pipeline_ends_with_the_same_bytes(tmp_path: Path) -> None:
    arguments = [*SMALL, *TWO_STEPS, "preference.ensemble.num_members=2", "preference.ensemble.differ_by=folds"]
    whole = Pipeline(tmp_path / "whole", tmp_path / "home", arguments)
    parts = Pipeline(tmp_path / "parts", tmp_path / "parts home", arguments)
    whole.finish()
    begun: list[int] = []
    for num_calls in range(40, 200, 20):
        if parts.run_killed(Kill(3, ELSEWHERE, num_calls)) is None or parts.stage() == "rl":
            break
        begun.append(len(list(parts.folder.glob("preference/members/*"))))
    print(f"members begun at each kill: {begun}")
    assert set(begun) >= {1, 2}, "a kill landed in each member"
    parts.finish()
    assert_same(parts, whole)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    root = tmp_path_factory.mktemp("undisturbed")
    pipeline = Pipeline(root / "run", root / "home", [*SMALL, *FIVE_STEPS])
    pipeline.finish()
    return pipeline


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0])
def test_twenty_random_kills_leave_no_trace(undisturbed: Pipeline, tmp_path: Path, seed: int) -> None:
    parts = Pipeline(tmp_path / "run", tmp_path / "home", undisturbed.arguments)
    landed: list[str | None] = []
    kills = random_kills(seed, 20, undisturbed.num_lines())
    for kill in kills:
        landed.append(parts.run_killed(kill))
        print(f"seed {seed}: {kill}: {landed[-1]}; {parts.num_lines()} lines", flush=True)
    parts.finish()
    where = Counter(landed)
    print(f"{sum(where.values()) - where[None]} kills, {len(kills) + 1} starts:", dict(where))
    assert None not in where, "the run came to its end before all kills"
    assert {place.partition(":")[0] for place in landed if place} >= set(STAGES)
    assert {place.partition(": ")[2] for place in landed if place} >= {WRITING, SEALED}
    assert_same(parts, undisturbed)
    print(f"{len(parts.outcome())} files compared")


@pytest.mark.slow
def test_other_folders_hash_seed_and_load_change_no_byte(undisturbed: Pipeline, tmp_path: Path) -> None:
    """Two at once, so that threads and processes take turns differently from the undisturbed run."""
    pipelines = [
        Pipeline(tmp_path / name / "run", tmp_path / name / "home", undisturbed.arguments, {"PYTHONHASHSEED": seed})
        for name, seed in (("a", "1"), ("a longer name", "4242"))
    ]
    processes = [pipeline.start() for pipeline in pipelines]
    for pipeline, process in zip(pipelines, processes, strict=True):
        pipeline.finish(process)
        assert_same(pipeline, undisturbed)


@pytest.mark.slow
def test_the_same_command_after_the_end_computes_nothing_again(undisturbed: Pipeline) -> None:
    files, outcome = undisturbed.finished_files(), undisturbed.outcome()
    undisturbed.finish()
    assert undisturbed.finished_files() == files
    assert undisturbed.outcome() == outcome


def test_ctrl_c_during_a_long_batch_ends_within_seconds(tmp_path: Path) -> None:
    long_batch = ["sft.dataset_builder.num_train=2048", "sft.dataset_builder.examples.batch_size=2048"]
    pipeline = Pipeline(tmp_path / "run", tmp_path / "home", [*SMALL, *long_batch])
    process = pipeline.start()
    while not list(pipeline.home.glob("runs/*/run.json")):  # the training run is there: its first batch comes next
        time.sleep(0.05)
    time.sleep(1.5)
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == -signal.SIGINT
    assert time.monotonic() - started < 6
    assert pipeline.printed.read_text().count("interrupted; ") == 1
    assert "Traceback" not in pipeline.printed.read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_interrupted_at_any_moment_the_pipeline_ends_with_the_same_bytes(undisturbed: Pipeline, tmp_path: Path) -> None:
    parts = Pipeline(tmp_path / "run", tmp_path / "home", undisturbed.arguments)
    interruptions = [
        Kill(0, seconds=1.0, number=signal.SIGINT),
        Kill(1, seconds=0.05, number=signal.SIGINT),
        Kill(2, WRITING, num_calls=2, number=signal.SIGINT),
        Kill(9, SEALED, number=signal.SIGTERM),
        Kill(11, seconds=0.2, number=signal.SIGINT),
        Kill(15, seconds=0.2, number=signal.SIGTERM),
        Kill(16, seconds=0.6, number=signal.SIGINT),
    ]
    for interruption in interruptions:
        started = time.monotonic()
        assert parts.run_killed(interruption) is not None, interruption
        print(interruption, parts.stage(), f"{time.monotonic() - started:.1f} s", flush=True)
    parts.finish()
    printed = parts.printed.read_text()
    assert "Traceback" not in printed
    # None while the imports run.
    assert printed.count("interrupted; ") + printed.count("terminated; ") == len(interruptions) - 1
    assert_same(parts, undisturbed)
