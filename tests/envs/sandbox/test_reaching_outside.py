"""Attacks on what is outside: files, processes, network, kernel. Each level withstands what it claims to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from envs.sandbox import IsolationLevel, Sandbox
from tests.envs.sandbox.attacks import C_LIBRARY, attack, needs, needs_linux, values

pytestmark = needs_linux


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
