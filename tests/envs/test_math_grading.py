"""Answers graded as text, as numbers and as expressions; and answers that mean harm."""

from __future__ import annotations

import asyncio
import threading
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.math_grading import (
    Grading,
    WorkerPool,
    as_number,
    boxed_answer,
    check_grading,
    final_answer,
    grade,
    hashes_answer,
)
from mint.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{42}.", "42"),
        ("\\boxed{1}, no: \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("never closed \\boxed{4", None),
        ("\\boxed{}", ""),
        ("none", None),
    ],
)
def test_the_last_box(text: str, answer: str | None) -> None:
    assert boxed_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [("2+2=4\n#### 4", "4"), ("#### 1\n#### 2\nmore", "2"), ("####", None), ("#### \n", None), ("# 4", None)],
)
def test_after_the_last_hashes(text: str, answer: str | None) -> None:
    assert hashes_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{1}\n#### 2", "1"),
        ("3 and 4\n#### five", "five"),
        ("3 apples and 1,204 pears.", "1,204"),
        ("It is 7.", "7"),
        ("5-3", "3"),
        ("it is -2.50", "-2.50"),
        ("nothing", None),
    ],
)
def test_the_answer_that_a_reply_comes_to(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("1,234,567", 1234567),
        ("$1,200.50", Fraction(2401, 2)),
        ("\\$18", 18),
        ("18 dollars", 18),
        ("12\\text{ cm}", 12),
        ("15\\%", 15),
        ("-3/4", Fraction(-3, 4)),
        ("-\\frac{3}{4}", Fraction(-3, 4)),
        ("\\dfrac{3}{4}", Fraction(3, 4)),
        (".5", Fraction(1, 2)),
        ("007.", 7),
        ("$x$", None),
        ("3 or 4", None),
        ("1,2", None),
        ("1/0", None),
        ("", None),
        ("9" * 100_000, None),
        ("1e999999999", None),
    ],
)
def test_numbers_by_hand(text: str, number: Fraction | None) -> None:
    assert as_number(text) == number


@given(st.fractions(max_denominator=10**6).filter(lambda value: abs(value) < 10**50))
def test_a_fraction_is_read_back(value: Fraction) -> None:
    assert as_number(f"{value.numerator}/{value.denominator}") == value
    assert as_number(f"\\frac{{{value.numerator}}}{{{value.denominator}}}") == value


@given(st.integers(-(10**40), 10**40), st.sampled_from(["{:,}", "{}", "{}.00", "${:,}$", "{} dollars", "{}%"]))
def test_a_whole_number_is_read_back_in_any_dress(value: int, form: str) -> None:
    assert as_number(form.format(value)) == value


@given(st.text(max_size=80))
def test_reading_never_fails(text: str) -> None:
    assert as_number(text) is None or isinstance(as_number(text), Fraction)
    answer = final_answer(text)
    assert answer is None or isinstance(answer, str)


@pytest.mark.parametrize(
    ("answer", "reference", "gradings"),
    [
        ("4 2", "4  2.", {"exact", "numeric", "symbolic"}),
        ("42.0", "42", {"numeric", "symbolic"}),
        ("0.5", "\\frac12", {"symbolic"}),
        ("x^2+2x+1", "(x+1)^2", {"symbolic"}),
        ("2\\sqrt{2}", "\\sqrt{8}", {"symbolic"}),
        ("\\{2,1\\}", "\\{1,2\\}", {"symbolic"}),
        ("x^2+2x+2", "(x+1)^2", set()),
        ("43", "42", set()),
        ("", "42", set()),
        ("{{{{", "42", set()),
    ],
)
async def test_what_each_grading_takes_for_right(answer: str, reference: str, gradings: set[Grading]) -> None:
    kinds: tuple[Grading, ...] = ("exact", "numeric", "symbolic")
    verdicts = {kind: await grade(answer, reference, kind) for kind in kinds}
    assert verdicts == {kind: "right" if kind in gradings else "wrong" for kind in kinds}


async def test_an_answer_is_never_run_as_a_program(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for answer in (f"__import__('os').mkdir('{trace}')", f"\\text{{__import__('os').mkdir('{trace}')}}"):
        assert await grade(answer, "x+1", "symbolic") == "wrong"
    assert not trace.exists()


def test_grading_works_outside_the_main_thread_and_in_any_event_loop() -> None:
    verdicts: list[str] = []

    def work() -> None:
        verdicts.append(asyncio.run(grade("(a+b)^2", "a^2+2ab+b^2", "symbolic")))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == ["right"] * 3


async def test_an_endless_comparison_is_ended_and_the_next_one_works() -> None:
    pool = WorkerPool(num_workers=1, cpu_seconds=1)
    try:
        started = time.monotonic()
        assert await pool.compare("9^{9^{9^{9}}}", "3") == "failed"
        assert time.monotonic() - started < 60
        assert await pool.compare("x+x", "2x") == "right"
        assert await pool.compare("x+x", "3x") == "wrong"
    finally:
        pool.close()


async def test_a_stuck_process_is_ended_by_the_clock() -> None:
    pool = WorkerPool(num_workers=1, wall_seconds=0.0)
    try:
        assert await pool.compare("x+x", "2x") == "failed"
    finally:
        pool.close()


def test_an_unknown_grading_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match="grading='symbolical': must be one of exact, numeric, symbolic. Did you mean"
    ):
        check_grading("symbolical")
