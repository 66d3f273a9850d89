"""What docs/losses.md says can be set can be set."""

from __future__ import annotations

import re
from pathlib import Path

import chz
import pytest

from recipe.preference.dpo.losses import PREFERENCE_LOSSES
from recipe.rl.advantages import ADVANTAGES
from recipe.rl.gspo import GSPO_DEFAULTS
from recipe.rl.train import Config
from recipe.rl.types import RLDataset, RLDatasetBuilder

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")


@chz.chz(typecheck=True)
class NoData(RLDatasetBuilder):
    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        raise AssertionError("not built in these tests")


def combinations() -> dict[str, str]:
    """The table of published combinations: paper -> settings."""
    table = TEXT.split("**Published combinations**")[1].split("\n\n")[1]
    return dict(re.findall(r"^\| ([^|]+) \| `([^`]+)` \|$", table, re.MULTILINE))


def test_the_table_was_found() -> None:
    assert set(combinations()) == {"GRPO", "Dr. GRPO", "RLOO", "DAPO", "GSPO"}


@pytest.mark.parametrize("paper", combinations())
def test_a_published_combination_is_a_config(paper: str) -> None:
    argv = ["model_name=m", "log_path=p", "learning_rate=1e-5", "max_tokens=8", *combinations()[paper].split()]
    config = chz.Blueprint(Config).apply({"dataset_builder": NoData()}).make_from_argv(argv)
    assert config != Config(
        model_name="m", log_path="p", learning_rate=1e-5, max_tokens=8, dataset_builder=config.dataset_builder
    )


def test_every_advantage_has_a_row() -> None:
    section = TEXT.split("## Advantages")[1].split("**Length**")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) - {"advantage"} == set(ADVANTAGES)


def test_the_clip_of_gspo_is_the_one_in_the_text() -> None:
    for name, value in GSPO_DEFAULTS.items():
        assert f"`{name}` {value}" in TEXT


def test_every_preference_loss_has_a_row_with_its_settings_and_their_defaults() -> None:
    section = TEXT.split("## DPO and its family")[1].split("**Gradients**")[0]
    rows = dict(re.findall(r"^\| `(\w+)`[^|]*\|(.*)$", section, re.MULTILINE))
    assert set(rows) - {"loss.name"} == set(PREFERENCE_LOSSES)
    for name, loss in PREFERENCE_LOSSES.items():
        settings = rows[name].split(" | ")[2]
        found = {setting: float(value) for setting, value in re.findall(r"`(\w+)`[^,]*? ([\d.]+)(?:,|$)", settings)}
        assert found == loss.defaults
