"""Tests of programs as data sets write them, `assert f(2) == 4`, judged where the program has no say.

A test is taken apart: what calls the program (`f(2)`) is evaluated with the program, in the sandbox; the rest
(`... == 4`) is judged on the plain values that come back. Where the other side of a comparison is a literal, that is
done here; any other rest (`math.isclose(..., 0.5)`, `set(...) == set([1, 2])`) is evaluated in a second process, which
holds the data set's own imports and never the program.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.sandbox import Limits, ProgramResult, Sandbox
from mint.errors import InvalidRequest

_VALUE_NAME = "returned_{}"


@dataclass(frozen=True)
class CodeTest:
    """One assert. `calls` go to the program; `condition` is the rest, with returned_0, returned_1, ... for them.

    has_literal: the condition is `returned_0 == literal`, which is then `literal`.
    """

    source: str
    calls: tuple[str, ...]
    condition: str
    has_literal: bool
    literal: Any = None


@dataclass(frozen=True)
class TestReport:
    """What became of the tests, one verdict each, and of the program itself."""

    __test__ = False  # not for pytest

    is_passed: tuple[bool, ...]
    result: ProgramResult

    @property
    def share_passed(self) -> float:
        """Share of tests passed."""
        return sum(self.is_passed) / len(self.is_passed)


def names_defined_by(program: str) -> frozenset[str]:
    """The functions, classes and variables at the top level of a program. InvalidRequest where it cannot be parsed."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError) as error:
        raise InvalidRequest(f"the reference solution is not valid Python: {error}") from error
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return frozenset(names)


def parse_test(source: str, program_names: frozenset[str]) -> CodeTest:
    """Take a test apart. program_names: what the program defines, see `names_defined_by`.

    InvalidRequest for anything that is not one assert, or whose calls of the program cannot be told from the rest.
    """
    try:
        statements = ast.parse(source.strip()).body
    except (SyntaxError, ValueError) as error:
        raise InvalidRequest(f"test {source!r} is not valid Python: {error}") from error
    if len(statements) != 1 or not isinstance(statements[0], ast.Assert):
        raise InvalidRequest(f"test {source!r}: must be one statement, `assert <condition>`")
    splitter = _Splitter(program_names)
    condition = splitter.visit(statements[0].test)
    if not splitter.calls:
        raise InvalidRequest(f"test {source!r} uses nothing that the reference solution defines")
    if splitter.is_entangled:
        raise InvalidRequest(
            f"test {source!r} calls the program inside a comprehension or lambda, with its variables; write it as one "
            "assert for each call"
        )
    has_literal, literal = _literal_compared_with(condition, len(splitter.calls))
    text = ast.unparse(ast.fix_missing_locations(condition))
    return CodeTest(source.strip(), tuple(splitter.calls), text, has_literal, literal)


async def run_tests(
    sandbox: Sandbox, program: str, tests: Sequence[CodeTest], setup: str = "", limits: Limits | None = None
) -> TestReport:
    """Run a program against tests. setup: the data set's own imports and definitions, for the program and the rest.

    A program that fails, in whatever way, fails the tests that it leaves unanswered.
    """
    calls = [call for test in tests for call in test.calls]
    result = await sandbox.run(f"{program}\n{setup}", calls, limits)
    answers = iter(result.calls)
    given = [[next(answers) for _ in test.calls] for test in tests]
    is_passed = [False] * len(tests)
    conditions: dict[int, str] = {}
    for i, (test, answers_to_test) in enumerate(zip(tests, given, strict=True)):
        if any(answer.kind != "value" for answer in answers_to_test):
            continue
        values = [answer.value for answer in answers_to_test]
        if test.has_literal:
            is_passed[i] = bool(values[0] == test.literal)
        elif (arguments := _as_source(values)) is not None:
            names = ", ".join(_VALUE_NAME.format(k) for k in range(len(values)))
            conditions[i] = f"bool((lambda {names}: {test.condition})({arguments}))"
    if conditions:
        verdicts = await sandbox.run(
            f"inf, nan = float('inf'), float('nan')\n{setup}", list(conditions.values()), limits
        )
        for i, verdict in zip(conditions, verdicts.calls, strict=True):
            is_passed[i] = verdict.kind == "value" and verdict.value is True
    return TestReport(tuple(is_passed), result)


def _as_source(values: list[Any]) -> str | None:
    """Plain values as the arguments of a call; None where an integer has too many digits to be written."""
    try:
        return ", ".join(map(repr, values))
    except ValueError:
        return None


def _literal_compared_with(condition: ast.expr, num_calls: int) -> tuple[bool, Any]:
    """(True, literal) of `returned_0 == literal` or `literal == returned_0`; otherwise (False, None)."""
    if num_calls != 1 or not isinstance(condition, ast.Compare) or len(condition.ops) != 1:
        return False, None
    sides = [condition.left, condition.comparators[0]]
    is_value = [isinstance(side, ast.Name) and side.id == _VALUE_NAME.format(0) for side in sides]
    if not isinstance(condition.ops[0], ast.Eq) or sum(is_value) != 1:
        return False, None
    try:
        literal = ast.literal_eval(sides[is_value.index(False)])
    except (ValueError, TypeError, SyntaxError):
        return False, None
    return not (isinstance(literal, float) and math.isnan(literal)), literal


def _names_in(node: ast.AST) -> list[ast.Name]:
    return [name for name in ast.walk(node) if isinstance(name, ast.Name)]


class _Splitter(ast.NodeTransformer):
    """Puts returned_0, returned_1, ... for what uses the program: f(...), Class(...).method(...), TABLE[1]."""

    def __init__(self, program_names: frozenset[str]) -> None:
        self._program_names = program_names
        self.calls: list[str] = []
        # A call uses a variable of a comprehension or lambda around it, so it has no value of its own.
        self.is_entangled = False
        self._bound_names: list[str] = []

    def visit(self, node: ast.AST) -> Any:
        """Replace the node, if it is rooted in a name of the program, or look below it."""
        if isinstance(node, ast.expr) and self._is_rooted_in_program(node):
            self.is_entangled |= any(name.id in self._bound_names for name in _names_in(node))
            self.calls.append(ast.unparse(node))
            return ast.Name(id=_VALUE_NAME.format(len(self.calls) - 1), ctx=ast.Load())
        bound_before = len(self._bound_names)
        if isinstance(node, ast.Lambda):
            self._bound_names += [argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)]
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            targets = [name for part in node.generators for name in _names_in(part.target)]
            self._bound_names += [name.id for name in targets]
        replaced = self.generic_visit(node)
        del self._bound_names[bound_before:]
        return replaced

    def _is_rooted_in_program(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        return isinstance(node, ast.Name) and node.id in self._program_names
