"""The speed rows: what they count, and that our side runs through every kind of row on a model made from a config."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.speed import ours, workloads
from benchmarks.speed.__main__ import ratios, summary
from benchmarks.speed.machine import Bench, concurrency, roofline, scaling
from benchmarks.speed.measure import Measured, Meter
from benchmarks.speed.models import make_model
from benchmarks.speed.workloads import Sizes

SIZES = Sizes(conversations=3, pairs=2, problems=2, group_size=2, new_tokens=5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest model of the rows."""
    return make_model("tiny", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both files of the rows, with a few lines each."""
    folder = tmp_path_factory.mktemp("data")
    problems = [{"question": f"What is {i} and {i + 1}?", "answer": f"It is {2 * i + 1}."} for i in range(120)]
    pairs = [{"prompt": f"Say {i}.", "chosen": f"{i}", "rejected": f"I will not say {i}."} for i in range(20)]
    for name, rows in (("gsm8k_train", problems), ("preference_pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_models_are_the_same_bytes_every_time(model: Path, tmp_path: Path) -> None:
    again = make_model("tiny", tmp_path)
    assert (again / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", ["sft", "preference", "dpo", "grpo", "grpo_prefix"])
def test_our_side_of_every_kind(kind: str, model: Path, data: Path) -> None:
    measured = ours.run(kind, model, data, "float32", SIZES, steps=2, warmup=1)
    assert len(measured.step_seconds) == 2 and measured.tokens > 0
    assert measured.pairs == (4 if kind in ("preference", "dpo") else 0)
    assert measured.sampled_tokens == (2 * 2 * 2 * 5 if kind.startswith("grpo") else 0)
    assert 0.5 < sum(measured.phases.values()) / sum(measured.step_seconds) <= 1.01


def test_tokens_are_those_of_the_conversations_without_the_last(model: Path, data: Path) -> None:
    measured = ours.run("sft", model, data, "float32", SIZES, steps=1, warmup=1)
    examples = workloads.conversations(data / "gsm8k_train.jsonl", workloads.load_tokenizer(model), 6)[3:]
    assert measured.tokens == sum(len(example.tokens_T) - 1 for example in examples)


def test_prompts_share_the_prefix_that_is_asked_for(model: Path, data: Path) -> None:
    tokenizer = workloads.load_tokenizer(model)
    texts = workloads.prompts(data / "gsm8k_train.jsonl", tokenizer, 2, shared_prefix=100)
    first, second = (tokenizer(text).input_ids for text in texts)
    common = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert 95 <= common <= 115 and first != second


def test_a_meter_drops_what_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step of 9 seconds, and steps of 2 and 3 with phases of 1 and 2, read from a clock; the first phase ends
    without reading it."""
    read = iter([0.0, 1.0, 9.0, 20.0, 20.5, 21.5, 22.0, 30.0, 30.5, 32.5, 33.0])
    monkeypatch.setattr("benchmarks.speed.measure.time", SimpleNamespace(perf_counter=lambda: next(read)))
    meter = Meter(num_warmup=1)
    for _ in range(3):
        with meter.step(), meter.phase("train"):
            pass
    measured = meter.measured()
    assert (measured.step_seconds, measured.phases) == ([2.0, 3.0], {"train": 3.0})
    assert measured.memory_mib >= measured.above_model_mib


def test_figures_of_a_row() -> None:
    """Two steps of 1 and 3 seconds with 800 tokens; the peer needs twice the time and half the memory."""
    mine = Measured([1.0, 3.0], tokens=800, phases={"forward": 2.0}, memory_mib=400, above_model_mib=200)
    theirs = Measured([2.0, 6.0], tokens=800, memory_mib=200, above_model_mib=100)
    figures = summary(mine, "tokens")
    assert (figures["step_seconds"], figures["tokens_per_second"], figures["phases"]) == (2.0, 200.0, {"forward": 0.5})
    assert ratios(figures, summary(theirs, "tokens"), "tokens") == {
        "tokens": 2.0,
        "memory": 2.0,
        "memory_above_model": 2.0,
    }


def test_rows_of_the_machine(model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(workloads.SIZES, "tiny", SIZES)
    bench = Bench("tiny", model, data, "float32", str(tmp_path))
    found = roofline(bench)
    assert found["training_gflops"] > 0 and found["decoded_rows"] == 4
    assert len(scaling(bench, counts=[4, 8])["seconds_per_1000_trained_tokens"]) == 2
    assert concurrency(bench, num_requests=4, max_tokens=3)["ratio"] > 0
