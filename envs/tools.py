"""Tools that a model may call: functions with a declaration made from their signature, run with a time limit.

An async function runs on the event loop, any other in a thread of its own, which cannot be stopped: when it takes too
long the model is told so, and the thread is left to end by itself. A tool that only computes for a moment is best
written as an async function without an `await`: its result is there at once, and the run stays reproducible to the
last bit (results from threads arrive when they arrive, and change which requests share a batch).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from mint.errors import InvalidRequest
from renderers import FunctionCall, ToolSpec


class ToolStatus(StrEnum):
    """How a call went; each failure is counted under its own name."""

    OK = "ok"
    # No tool has this name.
    UNKNOWN = "unknown"
    # The arguments are not those that the tool declares.
    BAD_ARGUMENTS = "bad_arguments"
    # The tool raised.
    FAILED = "failed"
    # It took too long.
    TIMED_OUT = "timed_out"
    # Not run: the episode's limit of calls was reached.
    REFUSED = "refused"


@dataclass(frozen=True)
class ToolResult:
    """What the model reads in answer to a call."""

    text: str
    status: ToolStatus = ToolStatus.OK


@dataclass(frozen=True)
class Tool:
    """A function that a model may call, under its own name. Picklable where the function is.

    function: its parameters have type hints, which become the declaration and are checked at each call; the first
        paragraph of its docstring is the description. What it returns is shown to the model, as JSON unless it is a
        string; what it raises is shown as an error.
    timeout_seconds: how long one call may take.
    """

    function: Callable[..., Any]
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.timeout_seconds <= 0:
            raise InvalidRequest(f"tool {self.name!r}: timeout_seconds={self.timeout_seconds} must be above 0")
        _ = self.spec

    @property
    def name(self) -> str:
        """The name it is called by."""
        return self.function.__name__

    @cached_property
    def spec(self) -> ToolSpec:
        """The declaration that the prompt shows."""
        description = " ".join((inspect.getdoc(self.function) or "").split("\n\n")[0].split())
        schema = _without_titles(self._arguments_model.model_json_schema())
        parameters = {"type": "object", "properties": schema.pop("properties", {}), **schema}
        # Said in every declaration, it would tell the model nothing; the check at the call is strict all the same.
        del parameters["additionalProperties"]
        return {
            "type": "function",
            "function": {"name": self.name, "description": description, "parameters": parameters},
        }

    @cached_property
    def _arguments_model(self) -> type[BaseModel]:
        hints = get_type_hints(self.function, include_extras=True)
        fields: dict[str, Any] = {}
        for name, parameter in inspect.signature(self.function).parameters.items():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) or name not in hints:
                raise InvalidRequest(
                    f"tool {self.name!r}: parameter {name!r} must be an ordinary one with a type hint, from which the "
                    "declaration is made"
                )
            fields[name] = (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        return create_model(self.name, __config__=ConfigDict(extra="forbid", strict=True), **fields)

    async def call(self, arguments: dict[str, Any] | str) -> ToolResult:
        """Run it. Never raises for what the model wrote or the function does."""
        try:
            # From JSON, so that strict types mean those of JSON: a list may be a tuple, 1 may be a float.
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            checked = self._arguments_model.model_validate_json(written)
        except ValidationError as error:
            return _error(ToolStatus.BAD_ARGUMENTS, f"bad arguments for {self.name}: {_problems(error)}")
        keywords = {name: getattr(checked, name) for name in self._arguments_model.model_fields}
        is_async = inspect.iscoroutinefunction(self.function)
        task = asyncio.ensure_future(self.function(**keywords) if is_async else _in_thread(self.function, keywords))
        try:
            # Unlike wait_for, this does not wait for a task that takes its cancellation badly.
            done, _ = await asyncio.wait([task], timeout=self.timeout_seconds)
        finally:
            task.cancel()
        if not done:
            return _error(ToolStatus.TIMED_OUT, f"{self.name} took longer than {self.timeout_seconds:g} seconds")
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            what = str(error) or type(error).__name__ if error is not None else "it was cancelled"
            return _error(ToolStatus.FAILED, f"{self.name}: {what}")
        value = task.result()
        return ToolResult(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))

    def __reduce__(self) -> tuple[Any, ...]:
        return Tool, (self.function, self.timeout_seconds)


class ToolBox:
    """The tools of an environment, by name."""

    def __init__(self, tools: list[Tool]) -> None:
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise InvalidRequest(f"tools named {', '.join(names)}: each needs a name of its own")
        self._tools = dict(zip(names, tools, strict=True))
        self.specs = [tool.spec for tool in tools]

    async def call(self, call: FunctionCall) -> ToolResult:
        """Run one call."""
        tool = self._tools.get(call["name"])
        if tool is None:
            known = ", ".join(self._tools)
            return _error(ToolStatus.UNKNOWN, f"there is no tool {call['name']!r}; the tools are: {known}")
        return await tool.call(call["arguments"])


def _error(status: ToolStatus, text: str) -> ToolResult:
    return ToolResult(f"Error: {text}", status)


def _problems(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}" for problem in error.errors()[:5]
    )


def _without_titles(schema: Any, *, is_names: bool = False) -> Any:
    """The schema without the titles that pydantic makes from the names; under `properties`, keys are names."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value, is_names=key in ("properties", "$defs") and not is_names)
        for key, value in schema.items()
        if is_names or key != "title"
    }


async def _in_thread(function: Callable[..., Any], keywords: dict[str, Any]) -> Any:
    """Run `function` in a daemon thread: one that hangs keeps neither others nor the interpreter's end waiting."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def finish(value: Any, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = function(**keywords)
        except BaseException as raised:
            # A future takes no StopIteration, and a SystemExit here would end the thread and leave the caller waiting.
            if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
                error = raised
            else:
                error = RuntimeError(f"{type(raised).__name__}: {raised}")
        with suppress(RuntimeError):  # the loop is closed: nobody waits for this result any more
            loop.call_soon_threadsafe(finish, value, error)

    threading.Thread(target=run, name=f"tool {function.__name__}", daemon=True).start()
    return await future
