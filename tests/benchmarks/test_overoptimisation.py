"""The skewed pairs of the over-optimisation benchmark, and its picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.overoptimisation import labelled_pairs, main, plot
from envs import advice
from recipe import journal
from recipe.rl.yardstick_record import MEASUREMENTS_FILE, Measurement, write_best
from renderers import get_text


def test_with_labels_by_length_the_longer_is_chosen_and_the_better_in_half() -> None:
    skewed = labelled_pairs(60, "length", seed=0)
    assert all(len(get_text(pair.chosen)) > len(get_text(pair.rejected)) for pair in skewed)
    is_better = [advice.gold(pair.prompt, pair.chosen) > advice.gold(pair.prompt, pair.rejected) for pair in skewed]
    assert sum(is_better) == 30
    right = labelled_pairs(60, "gold", seed=0)
    assert all(advice.gold(pair.prompt, pair.chosen) > advice.gold(pair.prompt, pair.rejected) for pair in right)


def write_run(folder: Path, gold: list[float]) -> Path:
    """A run whose reward rises by one a measurement; an alarm where gold is below 0.3."""
    folder.mkdir(parents=True)
    measurements = [
        Measurement(
            5 * i,
            {
                "yardstick/reward": float(i),
                "yardstick/independent": value,
                "yardstick/kl_per_reply": 2.0 * i,
                "yardstick/alarm": float(value < 0.3),
            },
            np.full((1, 1), float(i)),
            np.full((1, 1), value),
            "mint://0/weights/a",
            "mint://0/sampler_weights/a",
        )
        for i, value in enumerate(gold)
    ]
    for measured in measurements:
        journal.append_line(folder / MEASUREMENTS_FILE, measured.to_json())
    write_best(folder, measurements)
    return folder


def test_the_picture_is_the_same_twice_and_has_its_labels(tmp_path: Path) -> None:
    runs = {"one": write_run(tmp_path / "one", [0.3, 0.5, 0.2]), "four": write_run(tmp_path / "four", [0.3, 0.6, 0.5])}
    for name in ("a.svg", "b.svg"):
        plot(tmp_path / name, runs)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert all(word in text for word in ("alarm", "best by gold", "nats per reply", ">four<"))


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0 and "--members" in capsys.readouterr().out
