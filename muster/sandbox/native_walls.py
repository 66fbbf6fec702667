"""The walls around one native program: bubblewrap's namespaces, a list of system calls, limits.

Native code has no inner wall, so all of these must stand, or nothing is run: `missing_walls` says what does not. The
program finds an image, read-only, and its own text. There is no other file, no folder that it can write to, no device,
no `/proc`, no network and no process but its own, which may make neither another one nor a thread.
"""

from __future__ import annotations

import fcntl
import os
import platform
import resource
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from muster.errors import ConfigError
from muster.sandbox.scorer import NativeManifest
from muster.sandbox.walls import (
    ALLOW_VALUES,
    ISOLATED,
    NEEDED,
    REFUSE_BITS,
    Condition,
    Numbers,
    assemble,
    bubblewrap_works,
)

WORK: Final = "/task"
"""The program's folder in the sandbox."""

MAX_WRITTEN_BYTES: Final = 1 << 20
"""Of a program's output. No right answer is longer."""
MAX_BUILT_BYTES: Final = 32 << 20
"""Of what one step of building writes."""
STACK_BYTES: Final = 64 << 20
OPEN_FILES: Final = 64

_ALLOWED: Final[dict[str, Numbers]] = {
    # name: number on x86_64, on aarch64. Linux' asm/unistd_64.h.
    **NEEDED,
    # The program's input, output and the image's files
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "lseek": (8, 62),
    "open": (2, None),
    "openat": (257, 56),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "umask": (95, 166),
    # Memory
    "mprotect": (10, 226),
    # Itself
    "execve": (59, 221),
    "sched_getaffinity": (204, 123),
    "set_tid_address": (218, 96),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "getpid": (39, 172),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getrusage": (98, 165),
    "getrlimit": (97, 163),
    "uname": (63, 160),
    # Time
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
}
"""What an interpreter and a compiled program need that compute and read, beside what any process that computes needs.
execve starts the program. Neither fork, vfork, clone nor clone3: no process and no thread is ever made."""

_TERMINAL_SIZE, _TCGETS, _FIOCLEX = 0x5413, 0x5401, 0x5451
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_DUPFD_CLOEXEC = 0, 1, 2, 3, 1030
_ARCH_SET_FS, _MAP_SHARED = 0x1002, 1

_CONDITIONAL: Final[dict[str, Condition]] = {
    "mmap": ((9, 222), REFUSE_BITS, [(3, _MAP_SHARED)]),
    "ioctl": ((16, 29), ALLOW_VALUES, [(1, one) for one in (_TCGETS, _TERMINAL_SIZE, _FIOCLEX)]),
    "fcntl": (
        (72, 25),
        ALLOW_VALUES,
        [(1, one) for one in (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_DUPFD_CLOEXEC)],
    ),
    "arch_prctl": ((158, None), ALLOW_VALUES, [(0, _ARCH_SET_FS)]),
    "prlimit64": ((302, 261), ALLOW_VALUES, [(2, 0)]),  # reading a limit, not setting one
}


def native_filter() -> bytes:
    """Return this machine's list of system calls as classic BPF. Raises KeyError for a machine without numbers."""
    return assemble(platform.machine(), _ALLOWED.values(), _CONDITIONAL.values())


def missing_walls() -> str:
    """Return why native programs cannot be run on this machine; an empty text when all walls stand."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return f"native programs run on Linux on x86_64 or aarch64, not on {sys.platform} on {platform.machine()}"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (Debian's package bubblewrap)"
    if not bubblewrap_works():
        return "bubblewrap may not make its namespaces here (user namespaces are off, or this is a container)"
    return ""


def require_walls() -> None:
    """Raise ConfigError unless all walls stand: native code has no other."""
    if missing := missing_walls():
        raise ConfigError(
            f"this run scores by native programs, which are not run without their walls: {missing}",
            hint="apt-get install bubblewrap, on a machine that allows user namespaces; muster doctor shows it",
        )


def native_command(
    root: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    files: Mapping[str, int],
    output: Path | None,
    descriptors: Mapping[str, int],
) -> list[str]:
    """Return what runs `arguments` behind the walls.

    root: an unpacked image, seen at `/`. files: name in `WORK` and the descriptor that its content is read from.
    output: one file of the host's that the program may write, as `WORK`/out. descriptors: bubblewrap's own, by option.
    """
    # It is the first process of its namespace, so there is no other: one of bubblewrap's would be the second.
    command = [*ISOLATED, "--as-pid-1", "--clearenv", "--hostname", "sandbox"]
    for name, value in environment.items():
        command += ["--setenv", name, value]
    for path in sorted(root.iterdir()):
        if path.is_symlink():
            command += ["--symlink", str(path.readlink()), f"/{path.name}"]
        else:
            command += ["--ro-bind", str(path), f"/{path.name}"]
    for name, descriptor in files.items():
        command += ["--perms", "0555", "--ro-bind-data", str(descriptor), f"{WORK}/{name}"]
    if output is not None:
        command += ["--bind", str(output), f"{WORK}/out"]
    command += ["--remount-ro", "/", "--chdir", WORK]
    for option, descriptor in descriptors.items():
        command += [option, str(descriptor)]
    return [*command, "--", *arguments]


def limit(pid: int, manifest: NativeManifest, written: int) -> None:
    """Limit bubblewrap's process, and so the program that it will become. Raises OSError when it is gone."""
    limits = {
        "AS": manifest.memory,
        "CPU": manifest.seconds,
        "FSIZE": written,
        "NOFILE": OPEN_FILES,
        "STACK": STACK_BYTES,
        "CORE": 0,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
    }
    for name, most in limits.items():
        what = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.prlimit(pid, what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(pid, what, (most, most))


def sealed(data: bytes) -> int:
    """Return a descriptor of a sealed memory file with these bytes, at their beginning."""
    descriptor = os.memfd_create("muster", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
