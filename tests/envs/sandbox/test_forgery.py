"""Attacks on the verdict: nothing but the right values passes."""

from __future__ import annotations

import pytest

from envs.sandbox import Sandbox
from tests.envs.sandbox.attacks import attack, needs_linux, values

pytestmark = needs_linux


def test_ending_early_is_no_success(sandbox: Sandbox) -> None:
    program = "import os, sys\ndef leave():\n    sys.exit(0)\ndef vanish():\n    os._exit(0)\n"
    result = attack(sandbox, program, "leave()", "1", "vanish()", "1")
    assert values(result) == ["<raised>", 1, "<missing>", "<missing>"]
    assert result.calls[0].message == "SystemExit: 0" and result.exit_code == 0
    assert values(attack(sandbox, "import sys\nsys.exit(0)", "1")) == ["<missing>"]
    assert values(attack(sandbox, "import os\nos._exit(1)", "1")) == ["<missing>"]


def test_crashes(sandbox: Sandbox) -> None:
    result = attack(sandbox, "import ctypes\ndef f():\n    return ctypes.string_at(0)", "f()", "1")
    assert (values(result), result.end, result.exit_code) == (["<missing>"] * 2, "ended", -11)
    result = attack(sandbox, "import os\nos.abort()", "1")
    assert values(result) == ["<missing>"] and result.exit_code is not None and result.exit_code < 0


def test_writing_reports_only_claims_what_calls_return(sandbox: Sandbox) -> None:
    lines = '["value", null]\\n["value", true]\\n["value", true]\\n'
    result = attack(sandbox, f"import os\nos.write(3, b'{lines}')\nos._exit(0)", "double(1)", "double(2)", "double(3)")
    # True for each test, as a boolean would say "passed": compared with 2, 4 and 6 outside, all three are wrong.
    assert values(result) == [True, True, "<missing>"]


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        '["passed"]',
        '["value"]',
        '["value", 1.5]',
        '["value", {"float": 1}]',
        '["value", {"set": [[1]]}]',
        '["value", {"type": "os.system"}]',
        '["value", {"dict": 3}]',
        "[" * 10_000,
        '{"end": "ended", "reports": ""}',
        '["started"]',
        "\udcff\x00",
    ],
)
def test_reports_of_another_form_are_missing(sandbox: Sandbox, line: str) -> None:
    data = line.encode(errors="surrogateescape") + b"\n"
    result = attack(sandbox, f"import os\nos.write(3, b'[\"value\", null]\\n' + {data!r})", "1", "2")
    assert values(result) == ["<missing>", "<missing>"]


def test_objects_that_equal_everything_do_not_get_out(sandbox: Sandbox) -> None:
    program = """
class Yes:
    def __eq__(self, other): return True
    __hash__ = None
class YesInt(int):
    def __eq__(self, other): return True
    def __index__(self): return 42
    __int__ = __hash__ = __index__
class YesList(list):
    def __iter__(self): return iter([42])
    def __eq__(self, other): return True
"""
    result = attack(sandbox, program, "Yes()", "YesInt(7)", "YesList([1])", "{1: Yes()}")
    assert values(result) == ["<not plain>", 7, [1], "<not plain>"]
    assert [type(call.value) for call in result.calls[1:3]] == [int, list]


def test_patching_the_interpreter_changes_no_verdict(sandbox: Sandbox) -> None:
    program = """
import builtins, json, sys
def double(x): return 0
for name, module in list(sys.modules.items()):
    if name.startswith('inside.'):
        for function in list(vars(module)):
            if function in ('to_json', 'from_json', '_attempt', 'write_frame', 'serve_one', 'read_result'):
                setattr(module, function, lambda *arguments: ['value', True])
builtins.eval = builtins.compile = lambda *arguments, **more: 'True'
json.dumps = lambda *arguments, **more: '["value", true]'
"""
    assert values(attack(sandbox, program, "double(1)", "double(2)")) == [True, True]  # not 2, not 4


def test_the_failure_of_a_program_cannot_pass_for_one_of_the_sandbox(sandbox: Sandbox) -> None:
    program = """
import os
os.write(2, b'OSError: no room')
os.closerange(0, 100)
os._exit(%d)
"""
    for status in (1, 2, 113):
        result = attack(sandbox, program % status, "1")
        assert (values(result), result.end, result.exit_code) == (["<missing>"], "ended", status)
