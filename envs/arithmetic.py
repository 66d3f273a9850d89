"""Additions to learn: generated, checked exactly, with test problems that training never sees."""

from __future__ import annotations

import random
import re
from functools import partial

import chz

from envs.generated_dataset import GeneratedDatasetBuilder
from envs.message_env import MessageEnvGroupBuilder
from envs.problem_env import ProblemEnv
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from renderers import Message, Renderer

QUESTION = "What is {left} + {right}? Reply with the number only."
# One in this many additions is kept for testing.
_TEST_SHARE = 5


class AdditionEnv(ProblemEnv):
    """The sum of two numbers. Right is a reply whose last number is the sum; in form, one that is a number alone."""

    def __init__(self, left: int, right: int, question: str = QUESTION) -> None:
        """question: what is asked, with {left} and {right} where the numbers belong."""
        self.left = left
        self.right = right
        self.question = question

    def get_question(self) -> str:
        """See ProblemEnv."""
        return self.question.format(left=self.left, right=self.right)

    def check_answer(self, reply: str) -> bool:
        """See ProblemEnv."""
        numbers = re.findall(r"\d+", reply)
        return bool(numbers) and numbers[-1] == self.get_reference_answer()

    def check_format(self, reply: str) -> bool:
        """See ProblemEnv."""
        return re.fullmatch(r"\d+", reply.strip()) is not None

    def get_reference_answer(self) -> str:
        """See ProblemEnv."""
        return str(self.left + self.right)


def check_question(question: str) -> None:
    """InvalidRequest unless the numbers can be put into the question."""
    try:
        is_complete = len({question.format(left=a, right=b) for a, b in ((1, 2), (1, 3), (4, 2))}) == 3
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise InvalidRequest(
            f"question={question!r}: {error}; write {{left}} and {{right}}, and no other field"
        ) from error
    if not is_complete:
        raise InvalidRequest(f"question={question!r}: must have {{left}} and {{right}} in it")


def is_test_addition(left: int, right: int) -> bool:
    """Whether this addition belongs to the test problems; the same for every seed and run."""
    return derive_seed("addition split", left, right) % _TEST_SHARE == 0


def draw_additions(num_problems: int, max_operand: int, seed: int, *, is_test: bool) -> list[tuple[int, int]]:
    """Pairs of operands in [0, max_operand] of one split; the same for the same seed."""
    rng = random.Random(derive_seed("additions", seed, int(is_test)))
    additions: list[tuple[int, int]] = []
    while len(additions) < num_problems:
        left, right = rng.randint(0, max_operand), rng.randint(0, max_operand)
        if is_test_addition(left, right) == is_test:
            additions.append((left, right))
    return additions


def addition_conversations(
    num_problems: int, max_operand: int, seed: int, question: str = QUESTION
) -> list[list[Message]]:
    """Questions of the training split, each with its right answer: supervised data for a warm start."""
    additions = draw_additions(num_problems, max_operand, seed, is_test=False)
    envs = [AdditionEnv(left, right, question) for left, right in additions]
    return [[{"role": "user", "content": env.get_question()}, *env.gold_replies()] for env in envs]


@chz.chz(typecheck=True)
class AdditionDatasetBuilder(GeneratedDatasetBuilder):
    """Groups of additions."""

    # Largest number to add.
    max_operand: int = 99
    # How to ask, with {left} and {right} where the numbers belong.
    question: str = QUESTION

    @chz.validate
    def _check_problems(self) -> None:
        check_question(self.question)
        self.check_least(max_operand=9)  # below that the test split may be empty

    def make_env(self, left: int, right: int) -> AdditionEnv:
        """The environment of one addition; a subclass may make another."""
        return AdditionEnv(left, right, self.question)

    def make_groups(
        self, num_problems: int, renderer: Renderer, group_size: int, *, is_test: bool
    ) -> list[MessageEnvGroupBuilder]:
        """See GeneratedDatasetBuilder."""
        return [
            MessageEnvGroupBuilder(
                partial(self.make_env, left, right), renderer, group_size=group_size, tags=("addition",)
            )
            for left, right in draw_additions(num_problems, self.max_operand, self.seed, is_test=is_test)
        ]
