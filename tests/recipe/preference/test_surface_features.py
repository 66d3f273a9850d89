"""What can be counted in a reply, and correlations."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.preference.surface_features import FEATURES, pearson, ranks, spearman, surface_features
from renderers import Message

NUMBERS = st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=2, max_size=40)


def features(text: str, prompt: str = "How do I bake bread?") -> dict[str, float]:
    return surface_features([Message(role="user", content=prompt)], Message(role="assistant", content=text))


def test_worked_features() -> None:
    found = features("Bake it at 220 degrees. Bake bread for 35 minutes!\n- Check it.\n2) Eat it")
    assert found == {
        "characters": 72.0,
        "sentences": 4.0,
        "list_markers": 2.0,
        "digits": 6.0,
        # bake it at 220 degrees bread for 35 minutes check 2 eat: bake and bread are in the prompt.
        "prompt_overlap": pytest.approx(2 / 12),
        "type_token_ratio": pytest.approx(12 / 15),
    }
    assert tuple(found) == FEATURES


@pytest.mark.parametrize(
    ("text", "feature", "value"),
    [
        ("", "sentences", 0),
        ("", "prompt_overlap", 0),
        ("", "type_token_ratio", 0),
        ("...", "type_token_ratio", 0),
        ("...", "sentences", 0),
        ("No end", "sentences", 1),
        ("Pi is 3.14 or so.", "sentences", 1),
        ("One!\n\nTwo", "sentences", 2),
        ("* a\n  • b\n10. c\n-d\n- ", "list_markers", 3),
        ("A sum: 1 - 2", "list_markers", 0),
        ("٣ and 4", "digits", 2),
        ("BREAD", "prompt_overlap", 1),
        ("don't don’t", "type_token_ratio", 1),
        ("a a a a", "type_token_ratio", 0.25),
    ],
)
def test_edges(text: str, feature: str, value: float) -> None:
    assert features(text)[feature] == value


def test_a_reply_without_text_has_features_too() -> None:
    call = Message(role="assistant", content=None, tool_calls=[{"name": "add", "arguments": {}}])  # pyright: ignore
    assert surface_features([Message(role="user", content="hi")], call)["characters"] == 0


def test_worked_correlations() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]
    # Deviations (-1.5, -0.5, 0.5, 1.5) and (-1.5, 0.5, -0.5, 1.5): 4 of 5.
    assert pearson(x, y) == pytest.approx(0.8)
    assert spearman(x, [math.exp(v) for v in y]) == pytest.approx(0.8)
    assert pearson(x, [math.exp(v) for v in y]) == pytest.approx(statistics.correlation(x, [math.exp(v) for v in y]))
    assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]


@pytest.mark.parametrize("x", [[], [1.0], [2.0, 2.0, 2.0]])
def test_an_undefined_correlation_is_none(x: list[float]) -> None:
    y = [float(i) for i in range(len(x))]
    assert pearson(x, y) is None and spearman(x, y) is None and spearman(y, x) is None


def slow_ranks(values: list[float]) -> list[float]:
    """How many are smaller, and half of those that are equal."""
    return [sum(b < a for b in values) + (1 + sum(b == a for b in values)) / 2 for a in values]


@given(pairs=NUMBERS, seed=st.integers(0, 9))
def test_correlations_agree_with_the_standard_library(pairs: list[tuple[int, int]], seed: int) -> None:
    x, y = ([float(pair[i]) for pair in pairs] for i in (0, 1))
    if min(x) == max(x) or min(y) == max(y):
        assert pearson(x, y) is None and spearman(x, y) is None
        return
    assert pearson(x, y) == pytest.approx(statistics.correlation(x, y), abs=1e-9)
    assert ranks(x) == slow_ranks(x)
    assert spearman(x, y) == pytest.approx(statistics.correlation(slow_ranks(x), slow_ranks(y)), abs=1e-9)
    assert spearman([10 * a + 3 for a in x], y) == spearman(x, y)
    assert pearson(x, [-b for b in y]) == pytest.approx(-(pearson(x, y) or 0.0))
    random.Random(seed).shuffle(pairs)
    assert pearson(*[[float(pair[i]) for pair in pairs] for i in (0, 1)]) == pearson(x, y)
