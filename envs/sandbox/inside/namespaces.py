"""A world of its own for one interpreter: no network, and a file system that holds Python and nothing else.

`enter` is called once by the interpreter that stays warm, `enter_for_program` by the supervisor of each program. The
mounts are built on a temporary file system, into which the folders of Python and of the system's libraries are bound
read-only at their own paths; then it becomes the root and everything else is gone. There is no /proc.
"""

from __future__ import annotations

import os
import socket
import sysconfig
from pathlib import Path

from . import libc

# The user and group that programs run as: nobody.
NOBODY = 65534
TEMPORARY_FOLDER = "/tmp"
_SCAFFOLD = "/tmp"
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")


def enter() -> None:
    """Leave the system's namespaces for new ones and become nobody in them. OSError where the system forbids it.

    Afterwards this process holds the capabilities of its new namespaces, which programs must drop.
    """
    readable = _folders_of_python()
    _enter_user_namespace()
    libc.mount("none", "/", None, libc.MS_REC | libc.MS_PRIVATE)
    _build_root(readable)
    libc.keep_capabilities_across_setuid()
    if os.getuid() != NOBODY:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    socket.sethostname("sandbox")


def enter_for_program(temporary_bytes: int) -> None:
    """Namespaces for one program: processes, shared memory, and an empty temporary folder of limited size.

    The next process that this one forks is the first of the new process namespace; when it ends, so do all others.
    """
    libc.unshare(libc.CLONE_NEWPID | libc.CLONE_NEWNS | libc.CLONE_NEWIPC)
    # A page holds a file's data, an inode its name: both count, so that empty files have a limit too.
    options = f"size={temporary_bytes},nr_inodes=1024,mode=700,uid={NOBODY},gid={NOBODY}"
    flags = libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC
    libc.mount("tmpfs", TEMPORARY_FOLDER, "tmpfs", flags, options)


def _enter_user_namespace() -> None:
    """New namespaces of every kind but processes, with this user, or root and nobody for root, mapped into them."""
    flags = libc.CLONE_NEWUSER | libc.CLONE_NEWNS | libc.CLONE_NEWNET | libc.CLONE_NEWIPC | libc.CLONE_NEWUTS
    uid, gid = os.getuid(), os.getgid()
    if uid != 0 or not _is_mapped_from_outside(flags):
        if uid != 0:
            libc.unshare(flags)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {gid} 1")


def _is_mapped_from_outside(flags: int) -> bool:
    """Enter the namespaces while a process outside, still root there, maps root and nobody; whether it could.

    Root may map several users, but only from outside. It is needed until the files that only root can reach are bound.
    """
    target = os.getpid()
    is_entered, has_entered = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(has_entered)
        status = 1
        try:
            if os.read(is_entered, 1):
                for kind in ("uid", "gid"):
                    Path(f"/proc/{target}/{kind}_map").write_text(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
                status = 0
        finally:
            os._exit(status)
    os.close(is_entered)
    try:
        libc.unshare(flags)
        os.write(has_entered, b"x")
    finally:
        os.close(has_entered)
        _, wait_status = os.waitpid(helper, 0)
    return wait_status == 0


def _folders_of_python() -> dict[str, str]:
    """Paths of the standard library and of the system's libraries, which its modules need, and where they lie."""
    paths = sysconfig.get_paths()
    found = {paths[name]: os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib")}
    found |= {folder: folder for folder in _LIBRARY_FOLDERS if os.path.isdir(folder)}
    return {path: source for path, source in found.items() if not any(path.startswith(f"{other}/") for other in found)}


def _build_root(readable: dict[str, str]) -> None:
    # pivot_root needs a mount; a temporary file system over an existing folder is one.
    libc.mount("tmpfs", _SCAFFOLD, "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "size=1m,mode=755")
    os.mkdir(f"{_SCAFFOLD}/old")
    libc.pivot_root(_SCAFFOLD, f"{_SCAFFOLD}/old")
    os.chdir("/")
    for folder, source in readable.items():
        if source == folder and os.path.islink(f"/old{folder}"):
            os.symlink(os.readlink(f"/old{folder}"), folder)
            continue
        os.makedirs(folder)
        libc.mount(f"/old{source}", folder, None, libc.MS_BIND | libc.MS_REC)
        installed = f"{folder}/site-packages"
        if os.path.isdir(installed):
            libc.mount("tmpfs", installed, "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "size=4k,mode=755")
    os.mkdir("/dev")
    for name in _DEVICES:
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY))
        libc.mount(f"/old/dev/{name}", f"/dev/{name}", None, libc.MS_BIND)
    os.mkdir(TEMPORARY_FOLDER)
    libc.unmount("/old")
    os.rmdir("/old")
    libc.make_read_only("/")
