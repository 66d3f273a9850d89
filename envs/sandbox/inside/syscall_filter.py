"""The system calls that a program may not make, as a BPF program for seccomp.

Two strengths. In namespaces the filter is a second wall: it refuses what reaches deep into the kernel (other
namespaces, mounts, tracing, io_uring, ...) and sockets. Without namespaces it is the only wall: it also refuses
signals, changing files, and settings of other processes. Refused calls fail with EPERM; calls newer than this table and
clone3, whose flags a filter cannot read, with ENOSYS, which the C library answers by falling back on older ones.

Numbers: the kernel's asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64). Instructions: linux/bpf_common.h,
linux/seccomp.h.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from functools import cache

from . import libc

# Name, number on x86_64, number on aarch64; - where there is none.
_ALWAYS_REFUSED = """
acct 163 89|add_key 248 217|adjtimex 159 171|bpf 321 280|chroot 161 51|clock_adjtime 305 266|clock_settime 227 112
delete_module 176 106|fanotify_init 300 262|finit_module 313 273|fsconfig 431 431|fsmount 432 432|fsopen 430 430
fspick 433 433|init_module 175 105|io_uring_enter 426 426|io_uring_register 427 427|io_uring_setup 425 425
kcmp 312 272|kexec_file_load 320 294|kexec_load 246 104|keyctl 250 219|memfd_create 319 279|memfd_secret 447 447
migrate_pages 256 238|mount 165 40|mount_setattr 442 442|move_mount 429 429|move_pages 279 239|mq_open 240 180
msgget 68 186|name_to_handle_at 303 264|open_by_handle_at 304 265|open_tree 428 428|perf_event_open 298 241
pidfd_getfd 438 438|pivot_root 155 41|process_madvise 440 440|process_vm_readv 310 270|process_vm_writev 311 271
ptrace 101 117|quotactl 179 60|quotactl_fd 443 443|reboot 169 142|request_key 249 218|semget 64 190
setdomainname 171 162|sethostname 170 161|setns 308 268|settimeofday 164 170|shmget 29 194|socket 41 198
swapoff 168 225|swapon 167 224
syslog 103 116|umount2 166 39|unshare 272 97|userfaultfd 323 282|vhangup 153 58
"""
_REFUSED_WITHOUT_NAMESPACES = """
kill 62 129|tkill 200 130|tgkill 234 131|rt_sigqueueinfo 129 138|rt_tgsigqueueinfo 297 240|pidfd_open 434 434
pidfd_send_signal 424 424|ioprio_set 251 30|prlimit64 302 261|sched_setaffinity 203 122|sched_setattr 314 274
sched_setparam 142 118|sched_setscheduler 144 119|setpriority 141 140|setpgid 109 154|openat2 437 437|creat 85 -
unlink 87 -|unlinkat 263 35|rename 82 -|renameat 264 38|renameat2 316 276|mkdir 83 -|mkdirat 258 34|rmdir 84 -|link 86 -
linkat 265 37|symlink 88 -|symlinkat 266 36|chmod 90 -|fchmod 91 52|fchmodat 268 53|chown 92 -|fchown 93 55|lchown 94 -
fchownat 260 54|truncate 76 45|utime 132 -|utimes 235 -|futimesat 261 -|utimensat 280 88|setxattr 188 5|lsetxattr 189 6
fsetxattr 190 7|removexattr 197 14|lremovexattr 198 15|fremovexattr 199 16|mknod 133 -|mknodat 259 33
"""
_CLONE3 = 435
_NEWEST = 451
_X32_BIT = 0x40000000
# Machine: AUDIT_ARCH_*, place of the numbers in the table, clone, prctl, and the opens with the place of their flags.
_MACHINES = {
    "x86_64": (0xC000003E, 1, 56, 157, ((2, 1), (257, 2))),
    "aarch64": (0xC00000B7, 2, 220, 167, ((56, 2),)),
}
_PR_SET_PDEATHSIG = 1

_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_OFFSET, _MACHINE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_NEW_NAMESPACES = (
    libc.CLONE_NEWNS
    | libc.CLONE_NEWCGROUP
    | libc.CLONE_NEWUTS
    | libc.CLONE_NEWIPC
    | libc.CLONE_NEWUSER
    | libc.CLONE_NEWPID
    | libc.CLONE_NEWNET
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@cache
def build_filter(machine: str, has_namespaces: bool) -> bytes:
    """The BPF program for a machine (platform.machine()). OSError for one without a table."""
    if machine not in _MACHINES:
        raise OSError(f"no table of system calls for {machine}; there is one for {', '.join(_MACHINES)}")
    audit_machine, column, clone, prctl, opens = _MACHINES[machine]
    refused = _numbers(_ALWAYS_REFUSED, column)
    if not has_namespaces:
        refused += _numbers(_REFUSED_WITHOUT_NAMESPACES, column)
    program = [
        _instruction(_LOAD, _MACHINE_OFFSET),
        _instruction(_EQUAL, audit_machine, 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD, _NUMBER_OFFSET),
        # x32 calls are the same calls under other numbers.
        _instruction(_GREATER_EQUAL, _X32_BIT, 0, 1),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_GREATER_EQUAL, _NEWEST + 1, 0, 1),
        _instruction(_RETURN, _ERROR | errno.ENOSYS),
        _instruction(_EQUAL, _CLONE3, 0, 1),
        _instruction(_RETURN, _ERROR | errno.ENOSYS),
    ]
    for number in refused:
        program += [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, _ERROR | errno.EPERM)]
    program += _refuse_if(_ANY_BIT, clone, 0, _NEW_NAMESPACES)
    # A program outlives its supervisor only by forgetting it.
    program += _refuse_if(_EQUAL, prctl, 0, _PR_SET_PDEATHSIG)
    if not has_namespaces:
        for number, i_flags in opens:
            program += _refuse_if(_ANY_BIT, number, i_flags, _WRITES)
    return b"".join([*program, _instruction(_RETURN, _ALLOW)])


def install(has_namespaces: bool) -> None:
    """Filter this process and its children. OSError where the system has no seccomp or the machine no table."""
    libc.install_syscall_filter(build_filter(platform.machine(), has_namespaces))


def _refuse_if(test: int, number: int, i_argument: int, value: int) -> list[bytes]:
    """EPERM for a call whose argument (its low 32 bits) passes the test; otherwise the number is loaded again."""
    return [
        _instruction(_EQUAL, number, 0, 4),
        _instruction(_LOAD, _ARGUMENTS_OFFSET + 8 * i_argument),
        _instruction(test, value, 0, 1),
        _instruction(_RETURN, _ERROR | errno.EPERM),
        _instruction(_LOAD, _NUMBER_OFFSET),
    ]


def _instruction(code: int, value: int, skip_if_true: int = 0, skip_if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, skip_if_true, skip_if_false, value)


def _numbers(table: str, column: int) -> list[int]:
    entries = [entry.split() for entry in table.replace("\n", "|").split("|") if entry.strip()]
    return [int(entry[column]) for entry in entries if entry[column] != "-"]
