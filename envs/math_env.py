r"""Mathematical word problems from files and the hub, such as GSM8K: a reply is graded by the answer it comes to.

The form asked for is "#### 42" on the last line, as in GSM8K's own solutions, or \boxed{42}. A right answer in another
form is right too and costs `format_coef`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import chz

from envs.data_rows import read_rows
from envs.group_dataset import GroupDataset, check_group_size
from envs.math_grading import (
    Grading,
    as_number,
    boxed_answer,
    check_grading,
    final_answer,
    grade,
    hashes_answer,
)
from envs.message_env import MessageEnvGroupBuilder, MessageStepResult
from envs.problem_env import ProblemEnv
from envs.types import Metrics, RLDatasetBuilder
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from renderers import Message, Renderer, get_renderer

AnswerForm = Literal["hashes", "boxed"]

_REQUESTS: dict[AnswerForm, str] = {
    "hashes": 'Reason step by step, then give the final answer on a last line of its own after "####".',
    "boxed": "Reason step by step, then give the final answer within \\boxed{}.",
}
# GSM8K marks each sum in its solutions for a calculator: 2+3=<<2+3=5>>5.
_CALCULATOR_MARK = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True)
class MathProblem:
    """A question, its final answer, and the way there where it is known."""

    question: str
    answer: str
    solution: str = ""

    def written_solution(self, form: AnswerForm) -> str:
        """The way there, if known, and the answer in the form asked for."""
        answer = f"#### {self.answer}" if form == "hashes" else f"\\boxed{{{self.answer}}}"
        return f"{self.solution}\n{answer}" if self.solution else answer


def problem_from_row(question: str, answer: str) -> MathProblem:
    r"""The problem of a row. Its answer is a solution that ends with "#### 42" or \boxed{42}, or the answer alone."""
    hashes = hashes_answer(answer)
    final = hashes if hashes is not None else boxed_answer(answer)
    if final is None:
        return MathProblem(question.strip(), answer.strip())
    solution = answer.rpartition("####")[0] if hashes is not None else answer
    return MathProblem(question.strip(), final, _CALCULATOR_MARK.sub("", solution).strip())


class MathEnv(ProblemEnv):
    """One problem. `examples` are solved before it, as turns of the conversation, the same for the whole group."""

    def __init__(
        self,
        problem: MathProblem,
        form: AnswerForm = "hashes",
        grading: Grading = "numeric",
        examples: Sequence[MathProblem] = (),
        format_coef: float = 0.1,
    ) -> None:
        self.problem = problem
        self.form: AnswerForm = form
        self.grading: Grading = grading
        self.examples = examples
        self.format_coef = format_coef
        self._is_grading_failed = False

    async def initial_observation(self) -> list[Message]:
        """See MessageEnv."""
        messages: list[Message] = []
        for example in self.examples:
            messages.append({"role": "user", "content": self._asked(example)})
            messages.append({"role": "assistant", "content": example.written_solution(self.form)})
        return [*messages, {"role": "user", "content": self.get_question()}]

    def get_question(self) -> str:
        """See ProblemEnv."""
        return self._asked(self.problem)

    async def check_answer(self, reply: str) -> bool:
        """See ProblemEnv."""
        answer = final_answer(reply)
        verdict = "wrong" if answer is None else await grade(answer, self.problem.answer, self.grading)
        self._is_grading_failed = verdict == "failed"
        return verdict == "right"

    def check_format(self, reply: str) -> bool:
        """See ProblemEnv. One answer in the form asked for; after "####" nothing but the answer."""
        if self.form == "boxed":
            return reply.count("\\boxed{") == 1 and bool(boxed_answer(reply))
        lines = reply.strip().splitlines()
        return reply.count("####") == 1 and lines[-1].startswith("####") and hashes_answer(lines[-1]) is not None

    def get_reference_answer(self) -> str:
        """See ProblemEnv."""
        return self.problem.written_solution(self.form)

    async def step(self, message: Message) -> MessageStepResult:
        """See ProblemEnv. The metric grading_failed is 1.0 for a reply that could not be compared within the limits."""
        result = await super().step(message)
        result.metrics["grading_failed"] = float(self._is_grading_failed)
        return result

    def unread_reply_metrics(self) -> Metrics:
        """See MessageEnv."""
        return {**super().unread_reply_metrics(), "grading_failed": 0.0}

    def _asked(self, problem: MathProblem) -> str:
        return f"{problem.question}\n{_REQUESTS[self.form]}"


@chz.chz(typecheck=True)
class MathDatasetBuilder(RLDatasetBuilder):
    """Problems of a file or hub dataset, a question and an answer in each row."""

    # Whose tokenizer to render with.
    model_name: str
    # One of renderers.get_renderer's names.
    renderer_name: str
    # Replies per problem.
    group_size: int
    # Problems per batch.
    groups_per_batch: int
    # A .jsonl or .parquet file, or the name of a hub dataset such as openai/gsm8k.
    path: str
    # Problems to test on: a file, or the same hub dataset by its test_split; None: `num_test` of those in `path`.
    test_path: str | None = None
    # Of hub datasets.
    subset: str | None = None
    split: str = "train"
    test_split: str = "test"
    # Columns of the question and of the answer: a solution that ends with "#### 42" or \boxed{42}, or the answer alone.
    question: str = "question"
    answer: str = "answer"
    # Read only the first rows; None: all.
    max_rows: int | None = None
    # Problems to test on, one reply each, drawn with `seed`; 0: none.
    num_test: int = 100
    # How often to go through the problems, each time in another order.
    num_epochs: int = 1
    # What counts as right: the same text, the same number, or an equal expression (needs the extra "math").
    grading: Grading = "numeric"
    # The form asked for: "#### 42" on the last line, or \boxed{42}.
    form: AnswerForm = "hashes"
    # What a reply in another form costs.
    format_coef: float = 0.1
    # Worked problems that every prompt begins with; they are drawn with `seed` and not trained on.
    num_examples: int = 0
    # Of the order, the examples and the problems to test on.
    seed: int = 0

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        check_group_size(self.group_size)
        check_grading(self.grading)
        for name in ("num_test", "num_examples", "format_coef"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name}={getattr(self, name)}: must not be negative")

    async def __call__(self) -> tuple[GroupDataset, GroupDataset | None]:
        """See RLDatasetBuilder. InvalidRequest names the line of the first bad row."""
        from mint.tokenizer import load_tokenizer

        renderer = get_renderer(self.renderer_name, load_tokenizer(self.model_name))
        examples, train, test = self._split()
        make_group = partial(self._group, renderer=renderer, examples=tuple(examples))
        groups = [make_group(problem, group_size=self.group_size) for problem in train]
        dataset = GroupDataset(groups, self.groups_per_batch, self.num_epochs, shuffle_seed=self.seed)
        if not test:
            return dataset, None
        return dataset, GroupDataset([make_group(problem, group_size=1) for problem in test], self.groups_per_batch)

    def _split(self) -> tuple[list[MathProblem], list[MathProblem], list[MathProblem]]:
        """Examples, problems to train on, problems to test on; in the order of a shuffle."""
        problems = self._read(self.path, self.split)
        rng = random.Random(derive_seed("math problems", self.seed))
        rng.shuffle(problems)
        test = []
        if self.num_test and self.test_path is not None:
            test = self._read(self.test_path, self.test_split)
            rng.shuffle(test)
            test = test[: self.num_test]
        num_held_out = self.num_examples + (self.num_test if self.test_path is None else 0)
        if num_held_out >= len(problems):
            raise InvalidRequest(
                f"{self.path}: num_test={self.num_test} and num_examples={self.num_examples} of {len(problems)} "
                "problems leave none to train on; hold out fewer"
            )
        examples, rest = problems[: self.num_examples], problems[num_held_out:]
        return examples, rest, test or problems[self.num_examples : num_held_out]

    def _group(
        self, problem: MathProblem, *, renderer: Renderer, examples: tuple[MathProblem, ...], group_size: int
    ) -> MessageEnvGroupBuilder:
        make_env = partial(MathEnv, problem, self.form, self.grading, examples, self.format_coef)
        return MessageEnvGroupBuilder(make_env, renderer, group_size, tags=("math",))

    def _read(self, path: str, split: str) -> list[MathProblem]:
        rows = read_rows(path, split=split, subset=self.subset, max_rows=self.max_rows)
        problems = [self._problem(f"{path}, line {line}", row) for line, row in rows]
        return list(dict.fromkeys(problems))

    def _problem(self, where: str, row: dict[str, Any]) -> MathProblem:
        for column in (self.question, self.answer):
            if not isinstance(row.get(column), str):
                raise InvalidRequest(
                    f"{where}: column {column!r} must hold text; the row's columns are {', '.join(map(repr, row))}. "
                    "Name yours with question=... answer=..."
                )
        problem = problem_from_row(row[self.question], row[self.answer])
        if self.grading == "numeric" and as_number(problem.answer) is None:
            raise InvalidRequest(
                f"{where}: the answer {problem.answer!r} is not a number; repair it, or set grading=exact or symbolic"
            )
        return problem
