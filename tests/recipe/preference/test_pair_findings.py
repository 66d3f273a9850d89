"""Repetitions, contradictions and cycles: small files worked by hand, and oracles that look at everything."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.preference.pair_findings import (
    NumberedPair,
    TextNumbers,
    clean_pairs,
    in_both_orders,
    number_pairs,
    on_cycles,
    repeated,
)
from recipe.preference.types import PreferencePair


def _pairs(*texts: str) -> list[NumberedPair]:
    """ "q ab" is reply a over b to prompt q; "q a=b" a tie."""
    found: list[NumberedPair] = []
    for text in texts:
        prompt, replies = text.split()
        found.append(NumberedPair(ord(prompt), ord(replies[0]), ord(replies[-1]), "=" in replies))
    return found


def test_repeated_pairs_are_grouped_and_ties_repeat_in_either_order() -> None:
    pairs = _pairs("q ab", "q ba", "r ab", "q ab", "q a=b", "q b=a", "q ab")
    assert repeated(pairs) == [[0, 3, 6], [4, 5]]


def test_both_orders_are_of_one_prompt_and_no_ties() -> None:
    assert in_both_orders(_pairs("q ab", "r ba", "q b=a")) == []
    assert in_both_orders(_pairs("q ab", "r ba", "q ba", "q cd", "q ab")) == [[0, 2, 4]]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["q ab", "q bc", "q ca"], [[0, 1, 2]]),
        (["q ab", "q bc", "q ac"], []),
        (["q ab", "q bc", "r ca"], []),
        (["q ab", "q bc", "q c=a"], []),
        (["q ab", "q bc", "q ca", "q ad", "q da"], [[0, 1, 2]]),
        (["q ab", "q bc", "q cd", "q da", "q ae"], [[0, 1, 2, 3]]),
        (["q ab", "q bc", "q ca", "q ac", "q ac"], []),
        (["q ab", "q ab", "q bc", "q ca", "q ac", "q ca"], [[0, 1, 2, 3, 5]]),
    ],
    ids=["three", "a ranking", "two prompts", "a tie", "both orders as often", "four", "majority against", "for"],
)
def test_cycles_of_a_prompt(texts: list[str], expected: list[list[int]]) -> None:
    assert on_cycles(_pairs(*texts)) == expected


def test_clean_pairs_say_why_each_of_the_others_goes() -> None:
    texts = ["q ab", "q ab", "q ba", "r ab", "r ba", "s aa", "t ab", "t bc", "t ca", "u a=b", "u ab", "v a=b"]
    clean = clean_pairs(_pairs(*texts))
    assert clean.kept == [0, 10, 11]
    assert clean.dropped == {
        1: "duplicate", 2: "both orders", 3: "both orders", 4: "both orders", 5: "equal replies",
        6: "cycle", 7: "cycle", 8: "cycle", 9: "tie and preference",
    }  # fmt: skip
    assert clean.num_dropped() == {
        "equal replies": 1, "duplicate": 1, "both orders": 3, "tie and preference": 1, "cycle": 3, "near duplicate": 0,
    }  # fmt: skip


def test_near_duplicates_go_only_where_asked() -> None:
    pairs = [NumberedPair(0, 1, 2, False), NumberedPair(3, 4, 5, False)]
    assert clean_pairs(pairs).kept == [0, 1]
    clean = clean_pairs(pairs, near_R=[0, 1, 2, 0, 1, 2])
    assert clean.kept == [0] and clean.dropped == {1: "near duplicate"}


def _message(role: str, content: str, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


def test_texts_are_equal_but_for_case_and_spaces_and_not_across_roles() -> None:
    numbers = TextNumbers()
    first = PreferencePair([_message("user", "Tea?")], _message("assistant", "Yes"), _message("assistant", "No"))  # type: ignore
    system = [_message("system", "Tea?"), _message("user", "Tea?")]
    thinking = _message("assistant", "Yes", thinking="Hm")
    second = PreferencePair(system, thinking, _message("assistant", " no\n"))  # type: ignore
    one, two = number_pairs([first, second], numbers)
    assert one.rejected == two.rejected
    assert len({one.prompt, one.chosen, one.rejected, two.prompt, two.chosen}) == 5


pair_lists = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 3), st.booleans()).map(lambda t: NumberedPair(*t)),
    max_size=14,
)


@given(pair_lists)
def test_what_is_kept_is_clean_and_loses_no_undisputed_pair(pairs: list[NumberedPair]) -> None:
    clean = clean_pairs(pairs)
    kept = [pairs[i] for i in clean.kept]
    assert sorted([*clean.kept, *clean.dropped]) == list(range(len(pairs)))
    assert not repeated(kept) and not in_both_orders(kept) and not on_cycles(kept)
    assert all(pair.chosen != pair.rejected for pair in kept)
    assert clean_pairs(kept).kept == list(range(len(kept)))
    # Nothing goes that no other pair repeats or contradicts: reply pairs with one annotation stay unless on a cycle.
    circular = {i for group in on_cycles(pairs) for i in group}
    for i, pair in enumerate(pairs):
        is_alone = sum(other.replies == pair.replies for other in pairs) == 1
        if is_alone and pair.chosen != pair.rejected and i not in circular:
            assert i in clean.kept


@given(pair_lists)
def test_cycles_are_those_that_walking_every_path_finds(pairs: list[NumberedPair]) -> None:
    pairs = [pair for pair in pairs if pair.chosen != pair.rejected and not pair.is_tie]
    found = {i for group in on_cycles(pairs) for i in group}
    for i, pair in enumerate(pairs):
        assert (i in found) is _lies_on_cycle(pair, pairs)


def _lies_on_cycle(pair: NumberedPair, pairs: list[NumberedPair]) -> bool:
    """Tries every order of the replies as a way back from the worse one to the better one."""

    def beats(better: int, worse: int) -> bool:
        votes = [other.chosen == better for other in pairs if other.replies == (pair.prompt, *sorted((better, worse)))]
        return sum(votes) > len(votes) / 2

    others = {reply for other in pairs for reply in (other.chosen, other.rejected)} - {pair.chosen, pair.rejected}
    ways = [way for length in range(len(others) + 1) for way in permutations(others, length)]
    return beats(pair.chosen, pair.rejected) and any(
        all(beats(*step) for step in zip((pair.rejected, *way), (*way, pair.chosen), strict=True)) for way in ways
    )
