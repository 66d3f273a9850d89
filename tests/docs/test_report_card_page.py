"""The page on report cards names everything that a card holds, and says what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

from envs.types import ConversationScorer
from recipe.preference.clustered_share import MIN_PROMPTS_TO_MEASURE_CLUSTERING
from recipe.preference.examined_scorer import ExaminedScorer
from recipe.preference.length_balance import MAX_LENGTH_RATIO
from recipe.preference.probes import PROBES
from recipe.preference.report_card import Card, ReportCardConfig, examine
from recipe.preference.report_card_text import card_text
from recipe.preference.surface_features import FEATURES
from recipe.preference.types import PreferencePair
from recipe.terminal import Palette
from renderers import Message, get_text

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "report_card.md").read_text(encoding="utf-8")


class ByLength:
    """A scorer for which longer is better."""

    async def score(self, conversation: list[Message]) -> float:
        return float(len(get_text(conversation[-1])))


async def card() -> Card:
    pairs = [
        PreferencePair(
            [Message(role="user", content=f"Question {i}?")],
            Message(role="assistant", content="a good reply " * (1 + i % 3)),
            Message(role="assistant", content=f"another reply {i}"),
            source="web",
        )
        for i in range(12)
    ]
    scorer: ConversationScorer = ByLength()
    return await examine(ExaminedScorer(scorer), pairs)


async def test_every_key_and_probe_and_feature_is_on_the_page() -> None:
    names = set(re.findall(r"`([\w.]+)`", PAGE))
    # What they count is plain from the text around them.
    plain = {"num_prompts"}
    assert set(await card()) - names - plain == set()
    assert set(PROBES) | set(FEATURES) <= names
    settings = set(re.findall(r"`report_card\.(\w+)(?:=\w+)?`", PAGE)) - {"json"}
    assert settings == set(ReportCardConfig.__annotations__)


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    assert f"within a factor of {MAX_LENGTH_RATIO}" in PAGE
    assert f"with fewer than {MIN_PROMPTS_TO_MEASURE_CLUSTERING} prompts" in PAGE
    assert f"of up to {ReportCardConfig().max_probe_prompts} held-out prompts" in PAGE


async def test_the_example_has_the_form_that_the_command_prints() -> None:
    (example,) = re.findall(r"^\$ mint report-card .*?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    printed = card_text(await card(), "Report card", Palette(is_coloured=False))

    def labels(text: str) -> list[str]:
        """What stands before the first number of each line, but for bins, sources, wordings and findings."""
        head = text.split("What stands out")[0].split("Nothing stands out")[0].split("\n\n", 1)[1]
        found = [re.split(r"[\d(]|  -|   +[+-]", line, maxsplit=1)[0].strip() for line in head.splitlines()]
        return [
            label.removeprefix("FAIL").removeprefix("ok").strip() for label in found if label and label != "from web"
        ]

    assert labels(example) == labels(printed)
