"""One call into an environment: what it returned, or what kind of fault it had.

An error of the engine (of a scorer's request, say) is no fault of the environment and keeps its class. What is no
Exception (cancellation, Ctrl-C) passes through.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from mint.errors import MintError, NonFiniteError
from recipe.rl.env_faults import EnvironmentFailed
from recipe.rl.types import FaultKind, WrongType

T = TypeVar("T")

# An error that passed through one of these was the answer to a request.
_ENGINE = (
    "mint.futures",
    "mint.backend",
    "mint.engine",
    "mint.service_client",
    "mint.training_client",
    "mint.sampling_client",
    "mint.rest_client",
)
# Frames between the loop and the code that a user wrote.
_BETWEEN = ("recipe.rl", "envs.message_env", "asyncio")
# Characters of a traceback that are kept: its end, which names the line.
_MAX_TRACEBACK = 8000


class EnvCallFailed(Exception):
    """A call failed by the environment's own fault. It holds text, no frames, so that it may be kept."""

    def __init__(self, kind: FaultKind, where: str, error: str, traceback_text: str) -> None:
        super().__init__(f"{where}: {error}")
        self.kind: FaultKind = kind
        self.where = where
        self.error = error
        self.traceback_text = traceback_text

    def as_stop(self) -> EnvironmentFailed:
        """The error that ends a run."""
        verb = " raised " if self.kind == "raised" else ": "
        return EnvironmentFailed(f"{self.where}{verb}{self.error}\n{self.traceback_text}".rstrip())


async def call_env(
    method: Callable[[], Any],
    check: Callable[[Any], T],
    where: str,
    *,
    deadline_s: float | None = None,
    written_in: Callable[..., Any] | None = None,
) -> T:
    """What `check` makes of the result of the async `method`.

    check: raises WrongType or NonFiniteError for a result that breaks the protocol. where: names the call in messages.
    deadline_s: the call is cancelled after so many seconds; code that does not await cannot be. written_in: the user's
    function, named with its file and line where a result is wrong.
    Raises EnvCallFailed, or the engine's own error with `where` before its message.
    """
    timeout = asyncio.timeout(deadline_s)
    try:
        async with timeout:
            pending = method()
            if not inspect.isawaitable(pending):
                raise WrongType(f"returned {shown(pending)} at once; it must be an `async def`")
            result = await pending
        if timeout.expired():
            raise TimeoutError("the call took no notice of its cancellation")
        return check(result)
    except Exception as error:
        if is_engine_error(error):
            raise _engine_error(error, where, deadline_s if timeout.expired() else None) from error
        kind: FaultKind = "hung" if timeout.expired() else _kind_of(error)
        line = f"did not return within {deadline_s:g} s" if timeout.expired() else _in_one_line(error)
        raise EnvCallFailed(kind, where, _printable(line), _printable(_traceback(error, line, written_in))) from error


def call_env_now(method: Callable[[], Any], check: Callable[[Any], T], where: str) -> T:
    """`call_env` for a method that is no coroutine."""
    try:
        return check(method())
    except Exception as error:
        line = _in_one_line(error)
        text = _printable(_traceback(error, line, method))
        raise EnvCallFailed(_kind_of(error), where, _printable(line), text) from error


def is_engine_error(error: BaseException) -> bool:
    """Whether the error, or one that led to it, came as the answer to a request."""
    return any(
        _is_in(_module(entry), _ENGINE) for linked in _linked_errors(error) for entry in _entries(linked.__traceback__)
    )


def shown(value: Any) -> str:
    """A value and its type, for messages."""
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def _engine_error(error: Exception, where: str, deadline_s: float | None) -> Exception:
    if deadline_s is not None:
        return EnvironmentFailed(
            f"{where} was waiting for the engine when its {deadline_s:g} s were over, which is no fault of the"
            " environment: raise env_faults.deadline_s"
        )
    if isinstance(error, MintError):
        return type(error)(f"{where}: {error}")
    return EnvironmentFailed(f"{where}: the engine failed with {_in_one_line(error)}")


def _kind_of(error: Exception) -> FaultKind:
    if isinstance(error, WrongType):
        return "wrong_type"
    return "non_finite" if isinstance(error, NonFiniteError) else "raised"


def _in_one_line(error: Exception) -> str:
    """The class and message of an error; of our own findings the message alone."""
    if isinstance(error, WrongType | NonFiniteError):
        return str(error)
    return " ".join("".join(traceback.format_exception_only(error)).split())


def _traceback(error: Exception, line: str, written_in: Callable[..., Any] | None) -> str:
    """From the user's first frame on; the function that was called where no code of the user's is on the stack."""
    # A call that was cut off: where it stood is in the cancellation that its TimeoutError came from.
    is_cut_off = isinstance(error, TimeoutError) and isinstance(error.__cause__, asyncio.CancelledError)
    stack = _users_part((error.__cause__ if is_cut_off and error.__cause__ else error).__traceback__)
    if stack is not None and is_cut_off:
        text = "".join(traceback.format_tb(stack)) + line
    elif stack is not None:
        text = "".join(traceback.format_exception(type(error), error, stack))
    else:
        text = f"{_place_of(written_in)}{line}"
    text = text.rstrip()
    return text if len(text) <= _MAX_TRACEBACK else "[...]" + text[-_MAX_TRACEBACK:]


def _users_part(stack: TracebackType | None) -> TracebackType | None:
    while stack is not None and _is_in(_module(stack), _BETWEEN):
        stack = stack.tb_next
    return stack


def _place_of(function: Callable[..., Any] | None) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    return f'  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_qualname}\n' if code else ""


def _linked_errors(error: BaseException) -> Iterator[BaseException]:
    """The error, those it was raised from or while handling, and the members of groups, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        linked = waiting.pop()
        if linked is None or id(linked) in seen:
            continue
        seen.add(id(linked))
        yield linked
        members = linked.exceptions if isinstance(linked, BaseExceptionGroup) else ()
        waiting += [linked.__cause__, linked.__context__, *members]


def _entries(stack: TracebackType | None) -> Iterator[TracebackType]:
    while stack is not None:
        yield stack
        stack = stack.tb_next


def _module(entry: TracebackType) -> str:
    return entry.tb_frame.f_globals.get("__name__", "")


def _is_in(module: str, names: tuple[str, ...]) -> bool:
    """Whether the module is one of these, or inside one of these packages."""
    return any(module == name or module.startswith(name + ".") for name in names)


def _printable(text: str) -> str:
    """Text that can be written as UTF-8 whatever an error's message holds."""
    return text.encode("utf-8", "backslashreplace").decode()
