"""The Linux calls of the sandbox that Python does not offer, by way of the C library."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_LINUX_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


@cache
def _libc() -> ctypes.CDLL:
    if not sys.platform.startswith("linux"):
        raise OSError(f"the platform is {sys.platform}, not Linux")
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    _check(_libc().prctl(ctypes.c_int(option), *padded), f"prctl({option})")


def load() -> None:
    """Open the C library now; later, its file may be out of reach. OSError on other systems than Linux."""
    _libc()


def unshare(flags: int) -> None:
    """Move into new namespaces."""
    _check(_libc().unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount, bind or change a mount."""
    result = _libc().mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind is not None else None,
        ctypes.c_ulong(flags),
        options.encode() if options is not None else None,
    )
    _check(result, f"mount {source} on {target}")


def unmount(target: str) -> None:
    """Take a mount away, at once for lookups and in full when nothing uses it any more."""
    _check(_libc().umount2(target.encode(), ctypes.c_int(MNT_DETACH)), f"unmount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """Make a mount the root; the old root is moved under it."""
    _check(_libc().pivot_root(new_root.encode(), put_old.encode()), f"pivot_root to {new_root}")


def make_read_only(path: str) -> None:
    """Make the mount at `path` and all mounts below it read-only and deaf to setuid bits. Needs Linux 5.12."""
    attributes = _MountAttributes(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    result = _libc().syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        path.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(result, f"make {path} read-only")


def die_with_parent(signal_number: int) -> None:
    """Receive this signal when the parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def keep_capabilities_across_setuid() -> None:
    """Changing the user id leaves the capabilities as they are."""
    _prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP)


def forget_capabilities() -> None:
    """No file that this process or its children run brings capabilities; those that they hold stay."""
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the last one that this kernel knows, or without the right to, which is to have none


def drop_capabilities() -> None:
    """Give up every capability."""
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    _check(_libc().capset(header, (ctypes.c_uint32 * 6)()), "capset")


def forbid_new_privileges() -> None:
    """No file that is run from now on brings privileges."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install_syscall_filter(instructions: bytes) -> None:
    """Judge every later system call of this process and its children by a BPF program. Needs forbid_new_privileges."""
    program = _FilterProgram(len(instructions) // 8, instructions)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))
