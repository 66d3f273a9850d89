"""Arithmetic that is too hard for the head: the model may call a calculator, and has to read its answer."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import partial

import chz

from envs.generated_dataset import GeneratedDatasetBuilder
from envs.message_env import MessageEnvGroupBuilder
from envs.safe_arithmetic import evaluate, format_value
from envs.tool_env import ToolEnv, ToolLimits
from envs.tools import Tool
from envs.types import Metrics
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from renderers import FunctionCall, Message, Renderer, ToolSpec, get_text

# Left operand, operator, right operand.
Problem = tuple[int, str, int]
_OPERATORS = "+-*"

# One in this many problems is kept for testing.
_TEST_SHARE = 5
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


async def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression"""
    return format_value(evaluate(expression))


CALCULATOR = Tool(calculator, timeout_seconds=1.0)


class CalculatorEnv(ToolEnv):
    """One operation on two numbers. Right is an answer whose last number is the result; it earns 1."""

    max_reward = 1.0

    def __init__(self, problem: Problem, limits: ToolLimits | None = None) -> None:
        super().__init__([CALCULATOR], limits or ToolLimits(max_turns=3, max_calls=3))
        self.problem = problem

    def first_messages(self) -> list[Message]:
        """See ToolEnv."""
        return [{"role": "user", "content": f"What is {expression_of(self.problem)}?"}]

    async def rate_answer(self, answer: Message) -> tuple[float, Metrics]:
        """See ToolEnv."""
        numbers = _NUMBER.findall(get_text(answer))
        is_correct = float(bool(numbers) and Fraction(numbers[-1]) == result_of(self.problem))
        return is_correct, {"correct": is_correct}

    def gold_replies(self) -> list[Message]:
        """See MessageEnv."""
        function: FunctionCall = {"name": CALCULATOR.name, "arguments": {"expression": expression_of(self.problem)}}
        return [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "assistant", "content": f"The answer is {result_of(self.problem)}."},
        ]

    def no_answer(self) -> tuple[float, Metrics]:
        """See ToolEnv."""
        return 0.0, {"correct": 0.0}


def expression_of(problem: Problem) -> str:
    """The problem as it is written, for the model as for the calculator."""
    left, operator, right = problem
    return f"{left} {operator} {right}"


def result_of(problem: Problem) -> int:
    """The right answer."""
    return int(evaluate(expression_of(problem)))


def is_test_problem(problem: Problem) -> bool:
    """Whether this problem belongs to the test problems; the same for every seed and run."""
    return derive_seed("calculator split", *problem) % _TEST_SHARE == 0


def draw_problems(
    num_problems: int, max_operand: int, seed: int, *, is_test: bool, operators: str = _OPERATORS
) -> list[Problem]:
    """Problems of one split, with operands in [10, max_operand]; the same for the same seed."""
    rng = random.Random(derive_seed("calculator", seed, int(is_test)))
    problems: list[Problem] = []
    while len(problems) < num_problems:
        problem = (rng.randint(10, max_operand), rng.choice(operators), rng.randint(10, max_operand))
        if is_test_problem(problem) == is_test:
            problems.append(problem)
    return problems


def demonstration(problems: Sequence[Problem], num_from_head: int = 0) -> tuple[list[Message], list[ToolSpec]]:
    """A conversation that solves the problems one after another, and the tools it has; data for a supervised start.

    The first `num_from_head` problems are answered at once, the others with a call each.
    """
    messages: list[Message] = []
    for i_problem, problem in enumerate(problems):
        env = CalculatorEnv(problem)
        call, answer = env.gold_replies()
        result: Message = {"role": "tool", "name": CALCULATOR.name, "content": str(result_of(problem))}
        messages += [*env.first_messages(), *([] if i_problem < num_from_head else [call, result]), answer]
    return messages, [CALCULATOR.spec]


@chz.chz(typecheck=True)
class CalculatorDatasetBuilder(GeneratedDatasetBuilder):
    """Groups of problems; the renderer must have a form for tools."""

    # Largest operand; the smallest is 10.
    max_operand: int = 99
    # Operators to draw from.
    operators: str = _OPERATORS
    # Replies in one episode at most, and calls in all of them.
    max_turns: int = 3
    max_calls: int = 3
    # Tokens of a prompt and the reply to it at most; None: no limit.
    max_trajectory_tokens: int | None = None

    @chz.validate
    def _check_problems(self) -> None:
        ToolLimits(self.max_turns, self.max_calls)
        if not self.operators or set(self.operators) - set(_OPERATORS):
            raise InvalidRequest(f"operators={self.operators!r}: must be one or more of {_OPERATORS}")
        self.check_least(max_operand=19)

    def make_groups(
        self, num_problems: int, renderer: Renderer, group_size: int, *, is_test: bool
    ) -> list[MessageEnvGroupBuilder]:
        """See GeneratedDatasetBuilder."""
        limits = ToolLimits(self.max_turns, self.max_calls)
        return [
            MessageEnvGroupBuilder(
                partial(CalculatorEnv, problem, limits),
                renderer,
                group_size=group_size,
                tags=("calculator",),
                failed_parse_reward=-0.1,
                max_trajectory_tokens=self.max_trajectory_tokens,
                terminate_on_parse_error=False,
            )
            for problem in draw_problems(
                num_problems, self.max_operand, self.seed, is_test=is_test, operators=self.operators
            )
        ]
