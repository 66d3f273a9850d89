"""Expressions that a model wrote: exact values, and nothing but an InvalidRequest for the rest."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.safe_arithmetic import MAX_BITS, evaluate, format_value
from mint.errors import InvalidRequest


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("47 + 85", "132"),
        ("  (2 + 3) * -4 ", "-20"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 3 * 3", "1"),
        ("2 / 3", "0.6666666667"),
        ("-1 / 8", "-0.125"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2 ** 10", "1024"),
        ("2 ** -2", "0.25"),
        ("0 ** 0", "1"),
        ("(-1) ** 999999999999", "-1"),
        ("0 ** 4", "0"),
        ("1_000 + 1e3", "2000"),
        ("0x1f", "31"),
        (".5 + 5.", "5.5"),
        ("1 / 10 ** 20", "0"),
    ],
)
def test_value_by_hand(expression: str, shown: str) -> None:
    assert format_value(evaluate(expression)) == shown


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "is not an arithmetic expression"),
        ("1 +", "is not an arithmetic expression"),
        ("(" * 100, "is not an arithmetic expression"),
        ("1" * 201, "has 201 characters; at most 200"),
        ("__import__('os').system('ls')", "holds more than arithmetic"),
        ("'a' * 9", "holds more than arithmetic"),
        ("[1] * 9", "holds more than arithmetic"),
        ("True + 1", "holds more than arithmetic"),
        ("1j", "holds more than arithmetic"),
        ("1 << 9", "holds more than arithmetic"),
        ("(lambda: 1)()", "holds more than arithmetic"),
        ("1 / 0", "division by zero"),
        ("1 % (2 - 2)", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("2 ** 0.5", "powers must be whole numbers"),
        ("9 ** 9 ** 9 ** 9", "more than 256 bits"),
        ("(1 / 3) ** 9999", "more than 256 bits"),
        ("9" * 100, "more than 256 bits"),
        ("1e999999", "too large or too small"),
    ],
)
def test_what_is_no_bounded_arithmetic_is_refused_at_once(expression: str, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidRequest, match=message):
        evaluate(expression)
    assert time.monotonic() - started < 20  # computed in full, the worst of them would take hours


@given(st.text(alphabet="0123456789+-*/%(). e_xj'a[]:\n", max_size=40))
def test_any_text_gives_a_bounded_number_or_an_error_for_its_writer(expression: str) -> None:
    try:
        value = evaluate(expression)
    except InvalidRequest:
        return
    assert max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS


@given(st.fractions())
def test_shown_value_is_right_to_ten_digits(value: Fraction) -> None:
    assert abs(Fraction(format_value(value)) - value) <= Fraction(1, 2 * 10**10)
