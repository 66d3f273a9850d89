"""Plain values survive the journey exactly; nothing else makes it."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, namedtuple
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.sandbox.inside.plain_values import NotPlainError, from_json, to_json

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner), max_leaves=5)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.lists(inner) | st.tuples(inner) | st.sets(HASHABLE) | st.dictionaries(HASHABLE, inner),
    max_leaves=10,
)


def journey(value: Any) -> Any:
    return from_json(json.loads(json.dumps(to_json(value))))


def types_in(value: Any) -> list[type]:
    """The types of a value and of what it holds; those of sets in no order."""
    children: list[Any] = []
    if isinstance(value, dict):
        children = [part for item in value.items() for part in item]
    elif isinstance(value, list | tuple):
        children = list(value)
    return [type(value), *(found for child in children for found in types_in(child))]


@settings(max_examples=50)
@given(VALUES)
def test_a_plain_value_arrives_as_it_left(value: Any) -> None:
    arrived = journey(value)
    assert arrived == value
    assert types_in(arrived) == types_in(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e-320, -0.0, 0.1, 2**62, -(2**62), "\ud800", True])
def test_edges(value: Any) -> None:
    assert repr(journey(value)) == repr(value)


def test_an_integer_of_any_size_arrives() -> None:
    assert journey(-(10**10_000)) == -(10**10_000)


def test_not_a_number_arrives() -> None:
    assert math.isnan(journey(math.nan))


class Colour(IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Colour.RED, 1),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Point(1, 2), (1, 2)),
        (bytearray(b"x"), b"x"),
    ],
)
def test_subclasses_arrive_as_their_built_in_type(value: Any, plain: Any) -> None:
    assert journey(value) == plain
    assert type(journey(value)) is type(plain)


@pytest.mark.parametrize("value", [object(), len, range(3), iter([]), {"a": [object()]}, int, (x for x in ())])
def test_other_objects_stay(value: Any) -> None:
    with pytest.raises(NotPlainError, match="is no plain value"):
        to_json(value)


def test_depth_has_a_limit_on_both_sides() -> None:
    value: Any = []
    for _ in range(100):
        value = [value]
    assert journey(value) == value
    with pytest.raises(NotPlainError, match="nested deeper than 100"):
        to_json([value])
    with pytest.raises(NotPlainError, match="nested deeper than 100"):
        from_json([value])
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotPlainError):
        to_json(loop)


@pytest.mark.parametrize(
    "data",
    [
        1.5,
        {},
        {"int": "ff", "float": "0x1p0"},
        {"int": 5},
        {"int": "xyz"},
        {"float": "nine"},
        {"float": "0x1p99999"},
        {"complex": ["0x1p0"]},
        {"complex": 3},
        {"bytes": "0"},
        {"dict": [[1]]},
        {"dict": [[[], 1]]},
        {"set": [[]]},
        {"set": "abc"},
        {"tuple": {"set": []}},
        {"object": []},
    ],
)
def test_json_of_another_form_is_refused(data: Any) -> None:
    with pytest.raises(NotPlainError):
        from_json(data)
