"""Tests are taken apart as written, judged outside the program, and cannot be talked round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.code_tests import CodeTest, names_defined_by, parse_test, run_tests
from envs.sandbox import Sandbox, SandboxConfig
from mint.errors import InvalidRequest

F = frozenset({"f", "Pair", "TABLE"})


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """The strongest sandbox of this machine."""
    made = Sandbox(SandboxConfig(minimum_isolation="none", num_workers=2))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("source", "calls", "condition", "literal"),
    [
        ("assert f(1, [2]) == (3, {'a'})", ("f(1, [2])",), "returned_0 == (3, {'a'})", (3, {"a"})),
        ("assert 4 == f(2), 'message'", ("f(2)",), "4 == returned_0", 4),
        ("assert f(Pair(1, 2)) == -1", ("f(Pair(1, 2))",), "returned_0 == -1", -1),
        ("assert (f(1) == 2)", ("f(1)",), "returned_0 == 2", 2),
    ],
)
def test_a_comparison_with_a_literal(source: str, calls: tuple[str, ...], condition: str, literal: Any) -> None:
    assert parse_test(source, F) == CodeTest(source, calls, condition, True, literal)


@pytest.mark.parametrize(
    ("source", "calls", "condition"),
    [
        ("assert f(1)", ("f(1)",), "returned_0"),
        ("assert not f(1)", ("f(1)",), "not returned_0"),
        ("assert f(1) is None", ("f(1)",), "returned_0 is None"),
        ("assert f(1) == f(2)", ("f(1)", "f(2)"), "returned_0 == returned_1"),
        ("assert set(f((1, 2))) == set([1])", ("f((1, 2))",), "set(returned_0) == set([1])"),
        ("assert math.isclose(f(1), 0.5)", ("f(1)",), "math.isclose(returned_0, 0.5)"),
        ("assert Pair(1, 2).swap().x == TABLE[0]", ("Pair(1, 2).swap().x", "TABLE[0]"), "returned_0 == returned_1"),
        ("assert all(abs(a - b) < 1 for a, b in zip(f(1), [1]))", ("f(1)",), None),
        ("assert f(1) == float('nan')", ("f(1)",), "returned_0 == float('nan')"),
    ],
)
def test_any_other_condition(source: str, calls: tuple[str, ...], condition: str | None) -> None:
    test = parse_test(source, F)
    assert (test.calls, test.has_literal) == (calls, False)
    assert condition is None or test.condition == condition


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("assert", "is not valid Python"),
        ("print(f(1))", "must be one statement, `assert <condition>`"),
        ("assert f(1) == 1; assert f(2) == 2", "must be one statement"),
        ("assert g(1) == 1", "uses nothing that the reference solution defines"),
        ("assert all(f(x) == x for x in (1, 2))", "write it as one assert for each call"),
        ("assert list(map(lambda x: f(x), [1])) == [1]", "write it as one assert for each call"),
    ],
)
def test_what_cannot_be_judged_outside_is_refused(source: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_test(source, F)


def test_names_at_the_top_level_of_a_program() -> None:
    program = "import math\nA, B = 1, 2\nC: int = 3\ndef f():\n    x = 1\nclass K:\n    def m(self): pass\n"
    assert names_defined_by(program) == {"A", "B", "C", "f", "K"}
    with pytest.raises(InvalidRequest, match="the reference solution is not valid Python"):
        names_defined_by("def f(:")


async def verdicts(sandbox: Sandbox, program: str, *sources: str, setup: str = "") -> tuple[bool, ...]:
    tests = [parse_test(source, F) for source in sources]
    return (await run_tests(sandbox, program, tests, setup)).is_passed


async def test_verdicts_are_those_of_the_asserts(sandbox: Sandbox) -> None:
    """Each test as Python itself judges it, beside how it is judged outside."""
    program = "def f(x, y=0):\n    return (x, [y, 1.0], {x: None}, {y})\n"
    sources = [
        "assert f(1) == (1, [0, 1.0], {1: None}, {0})",
        "assert f(1) == [1, [0, 1.0], {1: None}, {0}]",
        "assert f(1, 2) == (1, [2, 1], {1: None}, {2})",
        "assert f(1)[0] == 1",
        "assert f(1)[1] == [0, 2]",
        "assert f(1)",
        "assert not f(1)",
        "assert f(1) is None",
        "assert len(f('a')) == 4",
        "assert math.isclose(f(2)[0], 2.0)",
        "assert f(float('inf'))[0] == float('inf')",
        "assert f(float('nan'))[0] == float('nan')",
        "assert f(1) == f(1.0)",
        "assert f([]) == 1",
    ]
    namespace: dict[str, Any] = {}
    exec(f"import math\n{program}", namespace)
    expected: list[bool] = []
    for source in sources:
        try:
            exec(source, namespace)
            expected.append(True)
        except (AssertionError, TypeError):
            expected.append(False)
    assert True in expected and False in expected
    assert await verdicts(sandbox, program, *sources, setup="import math") == tuple(expected)


CHEATS = {
    "returns_what_equals_everything": "class Yes:\n    def __eq__(self, other): return True\ndef f(x): return Yes()",
    "claims_success": "import os\nos.write(3, b'[\"value\", true]\\n' * 9)\nos._exit(0)",
    "leaves": "import sys\nsys.exit(0)",
    "patches_the_comparison": "import math, builtins\nmath.isclose = lambda *a, **k: True\n"
    "builtins.bool = builtins.set = lambda x: True\ndef f(x): return 0",
    "patches_assert": "AssertionError = builtins = None\ndef f(x): return None",
    "is_true_in_every_way": "class T(tuple):\n    def __eq__(self, o): return True\ndef f(x): return T()",
    "returns_code": "def f(x): return '__import__(\"os\")._exit(0) or 1) == 1 or (1'",
    "nothing": "",
}


@pytest.mark.parametrize("cheat", CHEATS)
async def test_cheating_passes_no_test(sandbox: Sandbox, cheat: str) -> None:
    sources = [
        "assert f(2) == 4",
        "assert math.isclose(f(2), 4.0)",
        "assert set([f(2)]) == set([4])",
        "assert f(2) == f(3) + 1",
    ]
    assert await verdicts(sandbox, CHEATS[cheat], *sources, setup="import math") == (False,) * 4


async def test_a_crash_costs_the_tests_from_there_on(sandbox: Sandbox) -> None:
    program = "import os\ndef f(x):\n    if x == 2:\n        os._exit(0)\n    return x\n"
    assert await verdicts(sandbox, program, "assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3") == (
        True,
        False,
        False,
    )


async def test_an_integer_too_long_to_write_is_judged_as_a_literal_only(sandbox: Sandbox) -> None:
    program = "def f(x): return 10**5000"
    assert await verdicts(sandbox, program, "assert f(1) == 1", "assert f(1) > 1") == (False, False)


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
        lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.integers(), inner),
        max_leaves=5,
    )
)
def test_a_literal_is_read_as_it_is_written(value: Any) -> None:
    source = repr(value)
    if "inf" in source or "nan" in source:
        return
    test = parse_test(f"assert f() == {source}", F)
    assert test.has_literal and test.literal == value
