"""Which texts count as equal and as nearly equal, against a slow oracle that compares all of them."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.preference.text_clusters import near_duplicate_leaders, normalised, similarity

WORDS = ["tea", "coffee", "milk", "water", "bread", "salt", "soup", "rice", "pepper", "apple", "kettle", "spoon"]


def _text(seed: int, num_words: int = 120) -> str:
    rng = random.Random(seed)
    return " ".join(f"{rng.choice(WORDS)}{rng.randrange(50)}" for _ in range(num_words))


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        ("Tea,  please\n", "tea, please", True),
        ("ﬁne １２", "fine 12", True),
        ("STRASSE", "straße", True),
        ("x + 1", "x - 1", False),
        ("Yes", "Yes.", False),
    ],
)
def test_case_spaces_and_letter_forms_do_not_tell_texts_apart(first: str, second: str, is_equal: bool) -> None:
    assert (normalised(first) == normalised(second)) is is_equal


def test_a_small_change_in_a_long_text_is_near_and_another_text_is_not() -> None:
    text = _text(0)
    changed = text.replace(text.split()[60], "sugar")
    assert near_duplicate_leaders([text, changed, _text(1), text + " and more"]) == [0, 0, 2, 0]


def test_short_texts_that_differ_are_not_near() -> None:
    texts = ["yes", "no", "yes.", "2 + 2 = 4", "2 - 2 = 4", "", "x"]
    assert near_duplicate_leaders(texts) == list(range(len(texts)))


@pytest.mark.parametrize("alphabet", ["abcdefgh", "茶请你我他喝水早晚好"], ids=["no spaces", "Chinese"])
def test_text_without_spaces_is_compared_over_its_whole_length(alphabet: str) -> None:
    rng = random.Random(0)
    text = "".join(rng.choice(alphabet) for _ in range(2000))
    same_start = text[:100] + "".join(rng.choice(alphabet) for _ in range(1900))
    assert near_duplicate_leaders([text, same_start, text[:1990] + "b"]) == [0, 1, 0]


def test_similarity_is_one_for_equal_texts_and_falls_with_each_change() -> None:
    text = _text(3)
    words = text.split()
    values = [similarity(text, " ".join(["other"] * n + words[n:])) for n in (0, 10, 40, 120)]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True) and values[-1] < 0.05


@given(edits=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30), st.integers(0, 10**6)), min_size=1, max_size=12))
def test_leaders_are_those_that_comparing_everything_gives(edits: list[tuple[int, int, int]]) -> None:
    """A text differs from its base in the first words; the similarity on each side of 0.8 is found rightly."""
    texts: list[str] = []
    for base, num_changed, seed in edits:
        words = _text(base).split()
        rng = random.Random(seed)
        texts.append(" ".join([f"other{rng.randrange(10**6)}" for _ in range(num_changed)] + words[num_changed:]))
    expected: list[int] = []
    for i, text in enumerate(texts):
        leaders = [j for j in range(i) if expected[j] == j and similarity(text, texts[j]) >= 0.8]
        expected.append(leaders[0] if leaders else i)
    found = near_duplicate_leaders(texts)
    for i, (leader, wanted) in enumerate(zip(found, expected, strict=True)):
        # Where two leaders are near enough, either may be missed once in a thousand; here the first is wanted.
        assert leader == wanted or abs(similarity(texts[i], texts[wanted]) - 0.8) < 0.02


def test_many_texts_of_one_template_stay_cheap() -> None:
    template = _text(0, 40)
    texts = [f"{template} {_text(seed, 25)}" for seed in range(3000)]
    started = time.process_time()
    leaders = near_duplicate_leaders(texts)
    assert time.process_time() - started < 20
    assert leaders == list(range(len(texts)))
