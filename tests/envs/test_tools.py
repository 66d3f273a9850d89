"""Tools: what is declared, what is checked, and that no call can raise, block the others or outlast its time."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from envs.tools import Tool, ToolBox, ToolStatus
from mint.errors import InvalidRequest


async def add(left: int, right: Annotated[int, Field(description="what to add")] = 1) -> str:
    """Add two
    numbers.

    Not for the model.
    """
    return str(left + right)


def where() -> dict[str, Any]:
    return {"thread": threading.current_thread().name}


def choose(title: Literal["a", "b"], weights: list[float]) -> None:
    return None


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


async def hang() -> str:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(60)
    return "never"


def divide(left: int) -> float:
    return left / 0


def leave() -> None:
    raise SystemExit(3)


def stop() -> None:
    raise StopIteration


async def give_up() -> None:
    raise TimeoutError("the server is asleep")


def test_declaration_is_made_from_the_signature() -> None:
    assert Tool(add).spec == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "left": {"type": "integer"},
                    "right": {"type": "integer", "default": 1, "description": "what to add"},
                },
                "required": ["left"],
            },
        },
    }
    # A parameter may be called as the key that is left out.
    properties = Tool(choose).spec["function"]["parameters"]["properties"]
    assert properties == {
        "title": {"enum": ["a", "b"], "type": "string"},
        "weights": {"items": {"type": "number"}, "type": "array"},
    }


@pytest.mark.parametrize(
    ("function", "arguments", "status", "text"),
    [
        (add, {"left": 2, "right": 3}, "ok", "5"),
        (add, '{"left": 2}', "ok", "3"),
        (choose, {"title": "a", "weights": [1, 2.5]}, "ok", "null"),
        (add, {"left": "2"}, "bad_arguments", "Error: bad arguments for add: left: Input should be a valid integer"),
        (add, {}, "bad_arguments", "Error: bad arguments for add: left: Field required"),
        (
            add,
            {"left": 1, "up": 2},
            "bad_arguments",
            "Error: bad arguments for add: up: Extra inputs are not",
        ),
        (add, '{"left": 2', "bad_arguments", "Error: bad arguments for add: arguments: Invalid JSON"),
        (add, "[1]", "bad_arguments", "Error: bad arguments for add: arguments: Input should be an object"),
        (divide, {"left": 1}, "failed", "Error: divide: division by zero"),
        (leave, {}, "failed", "Error: leave: SystemExit: 3"),
        (stop, {}, "failed", "Error: stop: StopIteration: "),
        (give_up, {}, "failed", "Error: give_up: the server is asleep"),
        (sleep, {"seconds": 5}, "timed_out", "Error: sleep took longer than 0.2 seconds"),
        (hang, {}, "timed_out", "Error: hang took longer than 0.2 seconds"),
    ],
)
async def test_every_call_is_answered(function: Any, arguments: Any, status: str, text: str) -> None:
    started = time.monotonic()
    result = await Tool(function, timeout_seconds=0.2).call(arguments)
    assert (result.status, result.text[: len(text)]) == (ToolStatus(status), text)
    assert time.monotonic() - started < 2


async def test_ordinary_functions_run_beside_each_other_in_threads() -> None:
    box = ToolBox([Tool(sleep), Tool(where)])
    started = time.monotonic()
    results = await asyncio.gather(*(box.call({"name": "sleep", "arguments": {"seconds": 0.3}}) for _ in range(40)))
    assert [result.text for result in results] == ["slept"] * 40
    assert time.monotonic() - started < 3
    assert (await box.call({"name": "where", "arguments": {}})).text == '{"thread": "tool where"}'


async def test_unknown_tool_is_answered_with_the_names_of_the_known() -> None:
    result = await ToolBox([Tool(add), Tool(sleep)]).call({"name": "sub", "arguments": {}})
    assert (result.status, result.text) == ("unknown", "Error: there is no tool 'sub'; the tools are: add, sleep")


def test_a_hung_tool_does_not_keep_the_process() -> None:
    code = (
        "import asyncio, time\nfrom envs.tools import Tool\n"
        "def hang() -> None:\n    time.sleep(600)\n"
        "print(asyncio.run(Tool(hang, 0.1).call({})).text)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "Error: hang took longer than 0.1 seconds\n")


async def test_tool_survives_pickling() -> None:
    tool = pickle.loads(pickle.dumps(Tool(add, timeout_seconds=3.0)))
    assert (tool.timeout_seconds, tool.spec) == (3.0, Tool(add).spec)
    assert (await tool.call({"left": 1})).text == "2"


def test_bad_tools_are_refused() -> None:
    def untyped(left) -> None:  # type: ignore[no-untyped-def]
        return None

    with pytest.raises(InvalidRequest, match="tool 'untyped': parameter 'left' must be an ordinary one with a type"):
        Tool(untyped)
    with pytest.raises(InvalidRequest, match="timeout_seconds=0 must be above 0"):
        Tool(add, timeout_seconds=0)
    with pytest.raises(InvalidRequest, match="each needs a name of its own"):
        ToolBox([Tool(add), Tool(add)])
