"""The outer walls around a process that holds a stranger's code: system calls, limits, namespaces.

`close_behind` gives up what a loaded process no longer needs: Linux' seccomp with a list of the system calls that are
left, and rlimits. It needs no rights. `in_namespaces` starts a command under bubblewrap, with none of the machine's
network, processes, users or writable files. The callers report which of them are in force, and assume none.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import muster
from muster.errors import UnreachableError

# --- System calls. Numbers and structures: Linux' asm/unistd_64.h, linux/filter.h, linux/seccomp.h, linux/audit.h.

NEEDED: Final[dict[str, tuple[int, int]]] = {
    # name: number on x86_64, on aarch64
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "brk": (12, 214),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "futex": (202, 98),
    "sched_yield": (24, 124),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "clock_gettime": (228, 113),
    "gettid": (186, 178),
    "getrandom": (318, 278),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
"""What a process needs that only computes, reads its requests and writes its answers."""

_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_PROT_EXEC, _MAP_SHARED = 4, 1
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | 1  # EPERM
_MEMORY: Final = {
    # name: its numbers, and which bits of which of its arguments are refused
    "mmap": ((9, 222), ((2, _PROT_EXEC), (3, _MAP_SHARED))),
    "mprotect": ((10, 226), ((2, _PROT_EXEC),)),
}
"""Memory that is not to be executable, for no code comes in after the walls stand, and not shared: RLIMIT_DATA does not
count what is."""

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2

DATA_BYTES: Final = 6 * 1024**3
"""Writable memory of the process: MAX_MEMORY of a call, what it returns, and the component itself, with room."""


def set_limit(which: int, most: int) -> None:
    """Limit this process for good: to `most`, or to less where it is already."""
    hard = resource.getrlimit(which)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


def check_room(size: int) -> None:
    """Map so many bytes and give them back. Raises UnreachableError where this process cannot have them.

    A call that runs out of memory here may not elsewhere: its failure proves nothing.
    """
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError) as error:
        raise UnreachableError(f"this machine gives the process no {size >> 20} MiB of memory: {error}") from error


def close_behind() -> list[str]:
    """Give up what this process no longer needs, for good. Return the names of the walls that stand now."""
    walls = []
    set_limit(resource.RLIMIT_DATA, DATA_BYTES)
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC):
        set_limit(limit, 0)
    walls.append("rlimits")
    if _filter_system_calls():
        walls.append("seccomp")
    if os.environ.get("MUSTER_NAMESPACES") == "1":
        walls.append("namespaces")
    return walls


def seccomp_program(machine: str) -> bytes:
    """Return the filter of `close_behind` as classic BPF: what is not in the lists above is refused with EPERM.

    Another architecture's calls end the process. Raises KeyError for a machine without numbers.
    """
    column, architecture = _ARCHITECTURES[machine]
    # 1. Each instruction is (code, jump if true, jump if false, operand); jumps count instructions.
    program: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the number
    ]
    # 2. One comparison and one return per allowed call.
    for numbers in NEEDED.values():
        program += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ALLOW)]
    # 3. Where bits of an argument's low word are refused. The number is not looked at again after a match.
    for numbers, refused in _MEMORY.values():
        program.append((_EQUAL, 0, 3 * len(refused) + 1, numbers[column]))
        for argument, bits in refused:
            program += [(_LOAD, 0, 0, 16 + 8 * argument), (_ANY_BIT, 0, 1, bits), (_RETURN, 0, 0, _REFUSE)]
        program.append((_RETURN, 0, 0, _ALLOW))
    program.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("<HBBI", *one) for one in program)


def _filter_system_calls() -> bool:
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return False
    program = seccomp_program(platform.machine())
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    pointer = ctypes.create_string_buffer(header, len(header))
    return libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(pointer), 0, 0) == 0


# --- Namespaces


def in_namespaces(command: Sequence[str], readable: Iterable[Path] = ()) -> list[str]:
    """Return the command under bubblewrap, or as it is where bubblewrap is missing or may not make namespaces.

    It sees the system's libraries, this Python, our packages and `readable`, all read-only. Even if started by root it
    runs unprivileged: without its own user namespace it would keep the outer root's identity.
    """
    if not bubblewrap_works():
        return list(command)
    paths = {Path("/usr"), Path(sys.prefix), Path(sys.base_prefix), Path(muster.__path__[0]).parent, *readable}
    binds = [word for path in sorted(paths) for word in ("--ro-bind", str(path), str(path))]
    links = [
        word
        for name in ("bin", "lib", "lib64", "sbin")
        if (path := Path("/") / name).exists()
        for word in (("--symlink", str(path.readlink()), str(path)) if path.is_symlink() else
                     ("--ro-bind", str(path), str(path)))
    ]  # fmt: skip
    return [*_BUBBLEWRAP, *binds, *links, "--setenv", "MUSTER_NAMESPACES", "1", "--", *command]


_BUBBLEWRAP: Final = (
    *("bwrap", "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"),
    *("--disable-userns", "--new-session", "--die-with-parent"),
    *("--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--chdir", "/"),
)
"""Every namespace, no identity, no capability, no other user namespace. It ends with the *thread* that started it."""


@functools.cache
def bubblewrap_works() -> bool:
    """Return whether bubblewrap is installed and this kernel lets it make its namespaces."""
    if shutil.which("bwrap") is None:
        return False
    command = [*_BUBBLEWRAP, "--ro-bind", "/", "/", "--", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
