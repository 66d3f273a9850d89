"""Attacks, each on every level that claims to withstand it: the attack has no effect, and the verdict is right.

A verdict is a comparison out here with what the calls returned in there; `values` gives those.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from envs.sandbox import IsolationLevel, Limits, ProgramResult, Sandbox
from tests.envs.sandbox.conftest import processes_named

pytestmark = pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="needs Linux")

QUICK = Limits(cpu_seconds=0.3, wall_seconds=10.0)
HONEST = "def double(x):\n    return 2 * x\n"
C_LIBRARY = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def attack(sandbox: Sandbox, program: str, *calls: str, limits: Limits = QUICK) -> ProgramResult:
    """Run a program, and prove that the next one is served by an interpreter that is as it was."""
    result = sandbox.run_blocking(program, calls, limits)
    after = sandbox.run_blocking(HONEST, ["double(21)", "globals().get('left_behind')"], QUICK)
    assert values(after) == [42, None]
    return result


def values(result: ProgramResult) -> list[Any]:
    """What the calls returned; for those that returned nothing, the kind of failure as `<kind>`."""
    return [call.value if call.kind == "value" else f"<{call.kind}>" for call in result.calls]


def needs(sandbox: Sandbox, level: IsolationLevel) -> None:
    """Skip below the level that claims to withstand the attack."""
    if sandbox.isolation.level < level:
        pytest.skip(f"{sandbox.isolation.level.name.lower()} does not claim to withstand this (docs/sandbox.md)")


# --- using too much ---


def test_fork_bomb(sandbox: Sandbox) -> None:
    program = """
import os, time
def spread():
    count = 0
    while True:
        try:
            if os.fork() == 0:
                time.sleep(1000)
        except OSError:
            return count
        count += 1
def bomb():
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""
    limits = Limits(cpu_seconds=0.3, wall_seconds=5.0, processes=6)
    result = attack(sandbox, program, "spread()", "bomb()", "1", limits=limits)
    num_children = limits.processes - 1 if sandbox.isolation.level == IsolationLevel.NAMESPACES else 0
    assert values(result) == [num_children, "<missing>", "<missing>"]
    assert result.end in ("cpu time", "wall time")


def test_memory_bomb(sandbox: Sandbox) -> None:
    program = """
def at_once():
    return len(bytearray(1 << 36))
def bit_by_bit():
    kept = []
    while True:
        kept.append(bytearray(1 << 22))
def honest():
    return len(bytearray(1 << 22))
"""
    result = attack(sandbox, program, "at_once()", "bit_by_bit()", "honest()", limits=Limits(memory_bytes=128 << 20))
    assert values(result) == ["<raised>", "<raised>", 1 << 22]
    assert [call.message for call in result.calls[:2]] == ["MemoryError: ", "MemoryError: "]


def test_endless_loop_costs_the_calls_from_there_on(sandbox: Sandbox) -> None:
    result = attack(sandbox, "def f(n):\n    while n:\n        pass\n    return n", "f(0)", "f(1)", "f(0)")
    assert (values(result), result.end) == ([0, "<missing>", "<missing>"], "cpu time")
    assert 0.3 <= result.cpu_seconds < 1.5


def test_endless_loop_while_loading(sandbox: Sandbox) -> None:
    result = attack(sandbox, "while True:\n    pass\n", "1")
    assert (result.loaded.kind, values(result), result.end) == ("missing", ["<missing>"], "cpu time")


def test_endless_output(sandbox: Sandbox) -> None:
    program = "def f():\n    while True:\n        print('x' * 1000)\n"
    result = attack(sandbox, program, "1", "f()", limits=Limits(output_bytes=1 << 16))
    assert (values(result), result.end) == (["<missing>"] * 2, "output")
    assert 1 << 16 < len(result.output) <= (1 << 16) + (1 << 16)


def test_endless_reports(sandbox: Sandbox) -> None:
    program = "import os\ndef f():\n    while True:\n        os.write(3, b'x' * 1000)\n"
    result = attack(sandbox, program, "f()")
    assert (values(result), result.end) == (["<missing>"], "output")


def test_huge_result(sandbox: Sandbox) -> None:
    result = attack(sandbox, "def f():\n    return 'x' * (1 << 22)", "f()")
    assert (values(result), result.end) == (["<missing>"], "output")


def test_sleeping_ends_by_the_clock(sandbox: Sandbox) -> None:
    limits = Limits(cpu_seconds=0.1, wall_seconds=0.4)
    result = attack(sandbox, "import time\ndef f():\n    time.sleep(1000)", "f()", limits=limits)
    assert (values(result), result.end) == (["<missing>"], "wall time")


def test_huge_integers(sandbox: Sandbox) -> None:
    program = "def power(n):\n    return 10**n\ndef forever():\n    return 7**(10**10) % 10\n"
    result = attack(sandbox, program, "power(5000)", "str(power(5000))", "forever()", "power(1)")
    assert values(result)[:2] == [10**5000, "<raised>"]
    assert "4300 digits" in result.calls[1].message
    assert values(result)[2] in ("<missing>", "<raised>")  # out of time or out of memory


def test_deep_recursion(sandbox: Sandbox) -> None:
    program = """
import sys
def down(n):
    return down(n + 1)
def far_down():
    sys.setrecursionlimit(10**9)
    return down(0)
def nest():
    value = []
    for _ in range(10**5):
        value = [value]
    return value
"""
    result = attack(
        sandbox, program, "down(0)", "nest()", "far_down()", limits=Limits(cpu_seconds=0.5, memory_bytes=128 << 20)
    )
    assert values(result)[:2] == ["<raised>", "<not plain>"]
    assert values(result)[2] in ("<raised>", "<missing>")  # out of memory, or of stack
    assert result.calls[0].message.startswith("RecursionError")


def test_large_files_and_limits_that_cannot_be_raised(sandbox: Sandbox) -> None:
    program = """
import resource
def grow():
    with open('big', 'wb') as file:
        file.write(bytes(1 << 20))
        file.write(bytes(1 << 30))
def lift():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
    result = attack(sandbox, program, "grow()", "lift()", limits=Limits(file_bytes=1 << 20))
    assert values(result) == ["<raised>", "<raised>"]


def test_the_temporary_folder_is_small_and_forgotten(sandbox: Sandbox) -> None:
    needs(sandbox, IsolationLevel.NAMESPACES)
    program = """
import os
def fill():
    written = 0
    try:
        for i in range(10**6):
            with open(f'{i}', 'wb') as file:
                file.write(bytes(4096))
            written += 4096
    except OSError:
        return written
def count():
    return len(os.listdir('.'))
"""
    limits = Limits(temporary_bytes=1 << 20)
    result = attack(sandbox, program, "count()", "fill()", "count() > 100", limits=limits)
    assert values(result)[0] == 0 and 1 << 19 < values(result)[1] <= 1 << 20 and values(result)[2] is True
    assert values(attack(sandbox, program, "count()", limits=limits)) == [0]


# --- looking and reaching outside ---


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> None:
    monkeypatch.setenv("MINT_API_KEY", "swordfish")
    program = "import os, sys\nargv = sys.orig_argv\ndef f():\n    return sorted(os.environ), 'swordfish' in str(argv)"
    assert values(attack(sandbox, program, "f()")) == [(["HOME", "LANG", "TMPDIR"], False)]


def test_other_processes_are_out_of_sight(monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> None:
    needs(sandbox, IsolationLevel.NAMESPACES)
    program = f"""
import os
def look():
    return os.path.exists('/proc'), os.getppid()
def environment_of(pid):
    return open(f'/proc/{{pid}}/environ', 'rb').read()
def signal_reaches(pid):
    os.kill(pid, 0)
    return True
mine = {os.getpid()}
"""
    result = attack(sandbox, program, "look()", "environment_of(mine)", "environment_of(1)", "signal_reaches(mine)")
    assert values(result) == [(False, 0), "<raised>", "<raised>", "<raised>"]


def test_files_of_the_system_and_the_user_are_out_of_sight(tmp_path: Path, sandbox: Sandbox) -> None:
    needs(sandbox, IsolationLevel.NAMESPACES)
    (tmp_path / "secret").write_text("swordfish")
    paths = [
        str(tmp_path / "secret"),
        "/etc/passwd",
        "/root/.bashrc",
        "/home",
        "/work",
        __file__,
        "/dev/sda",
        "/dev/mem",
    ]
    program = f"""
import os
def visible(): return [path for path in {paths!r} if os.path.exists(path)]
def climb(): return os.path.realpath('../../../..'), sorted(set(os.listdir('/')) - {{'root', 'opt'}})
def devices(): return sorted(os.listdir('/dev'))
"""
    found = values(attack(sandbox, program, "visible()", "climb()", "devices()"))
    assert found[0] == []
    assert found[1][0] == "/" and {"tmp", "dev"} <= set(found[1][1]) <= {"tmp", "dev", "lib", "lib64", "usr"}
    assert found[2] == ["full", "null", "random", "urandom", "zero"]


def test_nothing_outside_can_be_written(tmp_path: Path, sandbox: Sandbox) -> None:
    needs(sandbox, IsolationLevel.FILTERED)
    tmp_path.chmod(0o777)
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    victim.chmod(0o666)
    targets = [
        "/escape",
        "/usr/lib/escape",
        "/dev/escape",
        f"{os.path.dirname(os.__file__)}/escape",
        f"{tmp_path}/escape",
    ]
    program = f"""
import os
def create(): return [path for path in {targets!r} if attempt(lambda: open(path, 'w').close())]
ACTIONS = (
    os.remove, lambda path: os.truncate(path, 0), lambda path: os.chmod(path, 0),
    lambda path: os.rename(path, path + '2'), lambda path: open(path, 'a').close(),
    lambda path: os.link(path, path + '3'), lambda path: os.utime(path))
def harm(): return [attempt(lambda: action({str(victim)!r})) for action in ACTIONS]
def attempt(action):
    try:
        action()
        return True
    except OSError:
        return False
"""
    assert values(attack(sandbox, program, "create()", "harm()")) == [[], [False] * 7]
    assert (victim.read_text(), sorted(os.listdir(tmp_path))) == ("as it was", ["victim"])
    assert not any(os.path.exists(path) for path in targets)


def test_network(sandbox: Sandbox) -> None:
    needs(sandbox, IsolationLevel.FILTERED)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(("127.0.0.1", 0))
        server.setblocking(False)
        datagrams.setblocking(False)
        program = f"""
import socket
def connect(): return socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), timeout=2).send(b'x')
def send():
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {datagrams.getsockname()[1]}))
def resolve(): return socket.getaddrinfo('localhost.example', 80)
"""
        result = attack(sandbox, program, "connect()", "send()", "resolve()", "1")
        assert values(result) == ["<raised>", "<raised>", "<raised>", 1]
        with pytest.raises(BlockingIOError):
            server.accept()
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)


def test_killing_the_parent_and_everybody(sandbox: Sandbox) -> None:
    needs(sandbox, IsolationLevel.FILTERED)
    program = f"""
import os, signal
def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        return type(error).__name__
def kill_all(): return [kill(pid) for pid in (os.getppid() or {os.getpid()}, {os.getpid()}, -1)]
"""
    result = attack(sandbox, program, "kill_all()", "1")
    assert all(answer in ("ProcessLookupError", "PermissionError") for answer in values(result)[0])
    assert values(result)[1] == 1


def test_tracing_and_reading_the_memory_of_others(sandbox: Sandbox) -> None:
    needs(sandbox, IsolationLevel.FILTERED)
    program = f"""{C_LIBRARY}
import os
PTRACE_ATTACH, PROCESS_VM_READV = 16, 310 if os.uname().machine == 'x86_64' else 270
def trace(): return [libc.ptrace(PTRACE_ATTACH, pid, 0, 0) for pid in (os.getppid(), {os.getpid()})]
def read():
    here = ctypes.create_string_buffer(8)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(here), 8)
    return libc.syscall(PROCESS_VM_READV, {os.getpid()}, vector, 1, vector, 1, 0)
"""
    assert values(attack(sandbox, program, "trace()", "read()")) == [[-1, -1], -1]


def test_new_namespaces_mounts_and_kernel_doors(sandbox: Sandbox) -> None:
    if not sandbox.isolation.has_syscall_filter:
        pytest.skip("the filter is what keeps these out")
    program = f"""{C_LIBRARY}
import errno, os
def call(function, *arguments):
    ctypes.set_errno(0)
    result = function(*arguments)
    return result, errno.errorcode.get(ctypes.get_errno())
def doors(): return [
    call(libc.unshare, 0x10000000), call(libc.mount, b'x', b'/tmp', b'tmpfs', 0, None), call(libc.chroot, b'/tmp'),
    call(libc.memfd_create, b'x', 0), call(libc.shmget, 0, 4096, 0o1600), call(libc.prctl, 1, 0),
    call(libc.syscall, 56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0),
    call(libc.syscall, 425, 1, None), call(libc.syscall, 435, None, 0)]
"""
    assert values(attack(sandbox, program, "doors()")) == [[(-1, "EPERM")] * 8 + [(-1, "ENOSYS")]]


def test_open_files_are_the_programs_own(sandbox: Sandbox) -> None:
    program = """
import os, sys
def open_files():
    found = []
    for fd in range(1024):
        try:
            os.fstat(fd)
            found.append(fd)
        except OSError:
            pass
    return found
def read(fd): return os.read(fd, 1)
def ask(): return input()
def close_all(): os.closerange(0, 1024)
"""
    result = attack(sandbox, program, "open_files()", "read(0)", "read(3)", "ask()", "close_all()", "1")
    assert values(result) == [[0, 1, 2, 3], b"", "<raised>", "<raised>", "<missing>", "<missing>"]


# --- forging the verdict ---


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


# --- staying alive ---

NAME_ITSELF = C_LIBRARY + "libc.prctl(15, b'sandbox-escape')\n"


def test_threads_end_with_the_program(sandbox: Sandbox) -> None:
    needs(sandbox, IsolationLevel.NAMESPACES)
    program = NAME_ITSELF + "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
    started = time.monotonic()
    result = attack(sandbox, program, "threading.active_count()")
    assert (values(result), result.end) == ([2], "ended")
    assert time.monotonic() - started < 8
    assert processes_named("sandbox-escape") == []


def test_daemons_end_with_the_program(sandbox: Sandbox) -> None:
    program = f"""{NAME_ITSELF}
import os, time
def daemonise():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 100)
            time.sleep(1000)
        os._exit(0)
    os.wait()
    return 'away'
"""
    has_processes = sandbox.isolation.level == IsolationLevel.NAMESPACES
    assert values(attack(sandbox, program, "daemonise()")) == ["away" if has_processes else "<raised>"]
    assert processes_named("sandbox-escape") == []


def test_masking_signals_does_not_help(sandbox: Sandbox) -> None:
    program = f"""{NAME_ITSELF}
import signal
def resist():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True:
        pass
"""
    result = attack(sandbox, program, "resist()")
    assert (values(result), result.end) == (["<missing>"], "cpu time")
    assert processes_named("sandbox-escape") == []


def test_a_program_leaves_nothing_to_the_next(sandbox: Sandbox) -> None:
    program = """
import builtins, json, os
left_behind = builtins.left_behind = json.left_behind = True
os.environ['left_behind'] = 'yes'
try:
    open('left_behind', 'w').close()
except OSError:
    pass
"""
    attack(sandbox, program)
    look = "import builtins, json, os\n"
    calls = ["hasattr(builtins, 'left_behind')", "hasattr(json, 'left_behind')", "'left_behind' in os.environ"]
    result = attack(sandbox, look, *calls, "os.listdir('.')")
    assert values(result) == [False, False, False, []]
