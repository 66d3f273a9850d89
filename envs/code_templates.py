"""Small functions to write, generated: arithmetic on one number. Even a very small model can learn it.

    Write a function f(x) that returns x + 3, then * 2.

Each function is one operation or two in a row. The question does not say which form of reply is asked for: a warm start
shows it. The tests compare with what the words say, worked out here. One function in five is kept for testing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import chz

from envs.code_env import CodeGrading, CodeProblem, code_groups
from envs.code_tests import parse_test
from envs.generated_dataset import GeneratedDatasetBuilder
from envs.types import EnvGroupBuilder
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from renderers import Message, Renderer

_TEST_SHARE = 5
_NUMBERS = range(1, 21)
# On both sides of the numbers, so that no two functions of one operation agree on all of them but x * 1 and x itself.
_ARGUMENTS = (-9, -2, 4, 25, 40)


@dataclass(frozen=True)
class _Operation:
    words: str
    code: str
    binds_tightly: bool
    compute: Callable[[int, int], int]


_OPERATIONS = (
    _Operation(" + {n}", "{x} + {n}", False, lambda x, n: x + n),
    _Operation(" - {n}", "{x} - {n}", False, lambda x, n: x - n),
    _Operation(" * {n}", "{x} * {n}", True, lambda x, n: x * n),
    _Operation(", but at least {n}", "max({x}, {n})", True, max),
    _Operation(", but at most {n}", "min({x}, {n})", True, min),
)
# An operation and its number, one or two of them.
Recipe = tuple[tuple[int, int], ...]


def all_recipes() -> list[Recipe]:
    """Every function of this kind: one operation, or two different ones in a row."""
    steps = [(i, n) for i in range(len(_OPERATIONS)) for n in _NUMBERS]
    return [(step,) for step in steps] + [
        (first, second) for first in steps for second in steps if first[0] != second[0]
    ]


def is_test_recipe(recipe: Recipe) -> bool:
    """Whether this function belongs to the test problems; the same for every seed and run."""
    return derive_seed("code template split", *(part for step in recipe for part in step)) % _TEST_SHARE == 0


def template_problem(recipe: Recipe) -> CodeProblem:
    """The question, the tests and the solution of a function."""
    words, code, is_tight = "x", "x", True
    for k, (i, n) in enumerate(recipe):
        operation = _OPERATIONS[i]
        words += (", then" if k and operation.words[0] == " " else "") + operation.words.format(n=n)
        needs_brackets = not is_tight and operation.code.startswith("{x} *")
        code = operation.code.format(x=f"({code})" if needs_brackets else code, n=n)
        is_tight = operation.binds_tightly
    question = f"Write a function f(x) that returns {words}."
    sources = [f"assert f({x}) == {_compute(recipe, x)}" for x in _ARGUMENTS]
    tests = tuple(parse_test(source, frozenset({"f"})) for source in sources)
    return CodeProblem(question, tests, f"def f(x): return {code}")


def draw_recipes(num_problems: int, seed: int, *, is_test: bool, max_operations: int) -> list[Recipe]:
    """Functions of one split; the same for the same seed. Functions of one operation are a third of them."""
    rng = random.Random(derive_seed("code templates", seed, int(is_test)))
    recipes = [recipe for recipe in all_recipes() if is_test_recipe(recipe) == is_test]
    by_length = {length: [recipe for recipe in recipes if len(recipe) == length] for length in (1, 2)}
    lengths = [1 if max_operations == 1 or rng.random() < 1 / 3 else 2 for _ in range(num_problems)]
    return [rng.choice(by_length[length]) for length in lengths]


def template_conversations(num_problems: int, seed: int, max_operations: int) -> list[list[Message]]:
    """Questions of the training split with their solutions in the form "plain"; the same for the same seed."""
    recipes = draw_recipes(num_problems, seed, is_test=False, max_operations=max_operations)
    problems = [template_problem(recipe) for recipe in recipes]
    return [
        [{"role": "user", "content": problem.question}, {"role": "assistant", "content": problem.solution}]
        for problem in problems
    ]


def plain_grading() -> CodeGrading:
    """Code and nothing else: a very small model has enough to learn without the fences of a block."""
    return CodeGrading(form="plain")


@chz.chz(typecheck=True)
class CodeTemplateDatasetBuilder(GeneratedDatasetBuilder):
    """Groups of generated functions to write."""

    # 1: only functions of one operation; 2: of two as well.
    max_operations: int = 1
    grading: CodeGrading = chz.field(default_factory=plain_grading)

    @chz.validate
    def _check_problems(self) -> None:
        if self.max_operations not in (1, 2):
            raise InvalidRequest(f"max_operations={self.max_operations}: must be 1 or 2")

    def make_groups(
        self, num_problems: int, renderer: Renderer, group_size: int, *, is_test: bool
    ) -> Sequence[EnvGroupBuilder]:
        """See GeneratedDatasetBuilder."""
        recipes = draw_recipes(num_problems, self.seed, is_test=is_test, max_operations=self.max_operations)
        return code_groups([template_problem(recipe) for recipe in recipes], renderer, group_size, self.grading)


def _compute(recipe: Recipe, x: int) -> int:
    for i, n in recipe:
        x = _OPERATIONS[i].compute(x, n)
    return x
