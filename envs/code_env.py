"""Functions to write: a reply is graded by running its code, in the sandbox, against tests.

Two forms: one block of code between ```python and ``` ("block"), or code and nothing else ("plain"). A reply in another
form is run too, and costs `format_coef`.
"""

from __future__ import annotations

import ast
import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import chz

from envs.code_tests import CodeTest, TestReport, names_defined_by, parse_test, run_tests
from envs.data_rows import read_rows
from envs.group_dataset import GroupDataset, check_group_size
from envs.message_env import MessageEnvGroupBuilder, MessageStepResult
from envs.problem_env import ProblemEnv
from envs.sandbox import Limits, SandboxConfig, shared_sandbox
from envs.types import Metrics, RLDatasetBuilder
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from renderers import Message, Renderer, get_renderer, get_text

Credit = Literal["share", "all"]
CodeForm = Literal["block", "plain"]

REQUEST = "Reply with the code only, between ```python and ```."
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_IN_FORM = re.compile(r"\s*```python\n.*\n```\s*", re.DOTALL)


@dataclass(frozen=True)
class CodeProblem:
    """A function to write, the tests of it, and a solution. setup: imports and definitions that the tests need."""

    question: str
    tests: tuple[CodeTest, ...]
    solution: str
    setup: str = ""


@chz.chz(typecheck=True)
class CodeGrading:
    """How code is run and what it earns."""

    # "share": the share of tests passed; "all": 1 if all are passed, else 0.
    credit: Credit = "share"
    # The form asked for: one block between ```python and ```, or code and nothing else.
    form: CodeForm = "block"
    # What a reply in another form costs.
    format_coef: float = 0.1
    # What one program may use, all tests together.
    limits: Limits = chz.field(default_factory=Limits)
    # Where programs run.
    sandbox: SandboxConfig = chz.field(default_factory=SandboxConfig)

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if self.format_coef < 0:
            raise InvalidRequest(f"format_coef={self.format_coef}: must not be negative")


def extract_code(reply: str) -> str:
    """The last block between fences, or all of a reply that has none."""
    blocks = _BLOCK.findall(reply)
    return blocks[-1] if blocks else reply


def written_reply(code: str, form: CodeForm) -> str:
    """Code in the form asked for."""
    return code.strip() if form == "plain" else f"```python\n{code.strip()}\n```"


def is_in_form(reply: str, form: CodeForm) -> bool:
    """Whether a reply is one block, or some Python and nothing else."""
    if form == "block":
        return _IN_FORM.fullmatch(reply) is not None and reply.count("```") == 2
    try:
        return bool(ast.parse(reply).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


class CodeEnv(ProblemEnv):
    """One function to write."""

    def __init__(self, problem: CodeProblem, grading: CodeGrading) -> None:
        self.problem = problem
        self.grading = grading
        self.format_coef = grading.format_coef

    def get_question(self) -> str:
        """See ProblemEnv."""
        return self.problem.question

    async def check_answer(self, reply: str) -> bool:
        """See ProblemEnv: whether all tests are passed."""
        return all((await self._test(reply)).is_passed)

    def check_format(self, reply: str) -> bool:
        """See ProblemEnv."""
        return is_in_form(reply, self.grading.form)

    def get_reference_answer(self) -> str:
        """See ProblemEnv."""
        return written_reply(self.problem.solution, self.grading.form)

    async def step(self, message: Message) -> MessageStepResult:
        """See MessageEnv. SandboxUnavailable where there is no sandbox of the level asked for."""
        reply = get_text(message)
        report = await self._test(reply)
        is_correct, has_form = float(all(report.is_passed)), float(self.check_format(reply))
        earned = is_correct if self.grading.credit == "all" else report.share_passed
        return MessageStepResult(
            reward=earned + self.format_coef * (has_form - 1.0),
            episode_done=True,
            next_messages=[*await self.initial_observation(), message],
            metrics={
                "correct": is_correct,
                "tests_passed": report.share_passed,
                "format": has_form,
                "over_limit": float(report.result.end != "ended"),
            },
            logs={"reference_answer": self.get_reference_answer(), "first_failure": _first_failure(report)},
        )

    def unread_reply_metrics(self) -> Metrics:
        """See MessageEnv."""
        return {"correct": 0.0, "tests_passed": 0.0, "format": 0.0, "over_limit": 0.0}

    async def _test(self, reply: str) -> TestReport:
        # The first call starts an interpreter, which takes a moment.
        sandbox = await asyncio.to_thread(shared_sandbox, self.grading.sandbox)
        problem = self.problem
        return await run_tests(sandbox, extract_code(reply), problem.tests, problem.setup, self.grading.limits)


def _first_failure(report: TestReport) -> str:
    """What the program's own messages say of the first thing that went wrong; empty where nothing did."""
    if report.result.loaded.kind != "value":
        return report.result.loaded.message
    failures = [call.message for call in report.result.calls if call.kind != "value"]
    return failures[0] if failures else "" if all(report.is_passed) else "a wrong value"


def problem_from_row(row: dict[str, Any], num_shown_tests: int) -> CodeProblem:
    """The problem of a row with MBPP's columns; the question ends with the first tests, which name the function.

    MBPP (arXiv:2108.07732): `text` (or `prompt`), `code`, `test_list`, and `test_setup_code` or `test_imports`.
    """
    text = row.get("text", row.get("prompt"))
    code, tests = row.get("code"), row.get("test_list")
    if not isinstance(text, str) or not isinstance(code, str):
        raise InvalidRequest(
            f"needs text in 'text' (or 'prompt') and in 'code'; the columns are {', '.join(map(repr, row))}"
        )
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise InvalidRequest("'test_list' must be a list of at least one test, each an assert")
    setup = "\n".join([row.get("test_setup_code", ""), *row.get("test_imports", [])]).strip()
    names = names_defined_by(code.replace("\r\n", "\n"))
    shown = "\n".join(tests[:num_shown_tests])
    question = "\n".join([text.strip(), *(["It must pass this:", shown] if shown else []), REQUEST])
    solution = code.replace("\r\n", "\n").expandtabs(4).strip()
    return CodeProblem(question, tuple(parse_test(test, names) for test in tests), solution, setup)


@chz.chz(typecheck=True)
class CodeDatasetBuilder(RLDatasetBuilder):
    """Problems of a file or hub dataset with MBPP's columns."""

    # Whose tokenizer to render with.
    model_name: str
    # One of renderers.get_renderer's names.
    renderer_name: str
    # Replies per problem.
    group_size: int
    # Problems per batch.
    groups_per_batch: int
    # A .jsonl or .parquet file, or the name of a hub dataset such as google-research-datasets/mbpp.
    path: str
    # Of hub datasets.
    subset: str | None = None
    split: str = "train"
    # Read only the first rows; None: all.
    max_rows: int | None = None
    # Problems to test on, one reply each, drawn with `seed`; 0: none.
    num_test: int = 50
    # How often to go through the problems, each time in another order.
    num_epochs: int = 1
    # How many of a problem's tests its question shows; the others are a surprise.
    num_shown_tests: int = 1
    # Leave out rows whose tests cannot be judged outside the program, instead of refusing the file.
    drop_unusable: bool = False
    grading: CodeGrading = chz.field(default_factory=CodeGrading)
    # Of the order and of the problems to test on.
    seed: int = 0

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        check_group_size(self.group_size)
        for name in ("num_test", "num_shown_tests"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name}={getattr(self, name)}: must not be negative")

    async def __call__(self) -> tuple[GroupDataset, GroupDataset | None]:
        """See RLDatasetBuilder. InvalidRequest names the line of the first bad row."""
        from mint.tokenizer import load_tokenizer

        renderer = get_renderer(self.renderer_name, load_tokenizer(self.model_name))
        problems = self.read_problems()
        random.Random(derive_seed("code problems", self.seed)).shuffle(problems)
        if self.num_test >= len(problems):
            raise InvalidRequest(
                f"num_test={self.num_test}: {self.path} has {len(problems)} problems, which leaves none to train on"
            )
        test, train = problems[: self.num_test], problems[self.num_test :]
        groups = code_groups(train, renderer, self.group_size, self.grading)
        dataset = GroupDataset(groups, self.groups_per_batch, self.num_epochs, shuffle_seed=self.seed)
        if not test:
            return dataset, None
        return dataset, GroupDataset(code_groups(test, renderer, 1, self.grading), self.groups_per_batch)

    def read_problems(self) -> list[CodeProblem]:
        """The problems in the order of the rows."""
        problems: list[CodeProblem] = []
        for line, row in read_rows(self.path, split=self.split, subset=self.subset, max_rows=self.max_rows):
            try:
                problems.append(problem_from_row(row, self.num_shown_tests))
            except InvalidRequest as error:
                if not self.drop_unusable:
                    raise InvalidRequest(
                        f"{self.path}, line {line}: {error}; repair the row, or leave such rows out with"
                        " drop_unusable=True"
                    ) from error
        return problems


def code_groups(
    problems: Sequence[CodeProblem],
    renderer: Renderer,
    group_size: int,
    grading: CodeGrading,
    tags: tuple[str, ...] = ("code",),
) -> list[MessageEnvGroupBuilder]:
    """A group for each problem."""
    return [MessageEnvGroupBuilder(partial(CodeEnv, p, grading), renderer, group_size, tags=tags) for p in problems]
