"""What native code tries in a process behind the outer walls: as if the inner one, WebAssembly, had a hole.

    python -m testbed.escapes.native_attempts FOLDER PORT

Each attempt runs in a child of its own, which gives up what `close_behind` takes away and then tries. FOLDER has a file
`canary`; something listens on PORT. Prints one JSON object: what became of each attempt.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from muster.sandbox.walls import close_behind

REFUSED: Final = "refused"
DONE: Final = "done"

ATTEMPTS: Final = {
    # Files
    "open a file": "open(FILE)",
    "open by openat2": "check(libc.syscall(437, -100, FILE.encode(), ctypes.create_string_buffer(24), 24))",
    "create a file": "os.open(FOLDER + '/new', os.O_CREAT | os.O_WRONLY)",
    "write to a file opened before": "os.write(opened, b'x' * 4096)",
    "list a folder": "os.listdir(FOLDER)",
    "list a folder opened before": "os.listdir(folder)",
    "stat": "os.stat(FILE)",
    "read a link": "os.readlink('/proc/self/exe')",
    "delete a file": "os.unlink(FILE)",
    "rename a file": "os.rename(FILE, FILE + '.old')",
    "truncate a file": "os.truncate(FILE, 0)",
    "truncate a file opened before": "os.ftruncate(opened, 0)",
    "change a file's mode": "os.chmod(FILE, 0o777)",
    "make a folder": "os.mkdir(FOLDER + '/new')",
    "make a link": "os.symlink('/', FOLDER + '/link')",
    "make a hard link": "os.link(FILE, FOLDER + '/link')",
    "change the folder": "os.chdir('/')",
    "change the root": "os.chroot('/')",
    "make a device": "os.mknod(FOLDER + '/null', 0o20666, os.makedev(1, 3))",
    "map a file opened before": "mmap.mmap(opened, 4096)",
    "watch a file": "check(libc.inotify_init1(0))",
    "a file in memory": "os.memfd_create('x')",
    "duplicate a descriptor": "os.dup2(opened, 1)",
    "control a descriptor": "import fcntl; fcntl.ioctl(0, 0x5412, b'x')",
    "mount": "check(libc.mount(b'/', b'/mnt', None, 4096, None))",
    "unmount": "check(libc.umount2(b'/mnt', 0))",
    # Network
    "make a socket": "socket.socket()",
    "make a local socket": "socket.socket(socket.AF_UNIX)",
    "make a netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "make a pair of sockets": "socket.socketpair()",
    "connect a socket opened before": "unconnected.connect(('127.0.0.1', PORT))",
    "listen on a socket opened before": "unconnected.listen()",
    "send on a socket opened before": "connected.send(b'x')",
    "make a pipe": "os.pipe()",
    # Processes and threads
    "fork": "os.fork()",
    "vfork and start a program": "subprocess.run(['true'])",
    "spawn a program": "os.posix_spawn('/bin/true', ['true'], {})",
    "become another program": "os.execv('/bin/true', ['true'])",
    "execveat": "check(libc.syscall(322, -100, b'/bin/true', 0, 0, 0))",
    "start a thread": "threading.Thread(target=print).start()",
    "clone3": "check(libc.syscall(435, ctypes.create_string_buffer(88), 88))",
    "new namespace": "check(libc.unshare(0x10000000))",
    "another's namespace": "check(libc.setns(opened, 0))",
    "signal another process": "os.kill(os.getppid(), 0)",
    "kill the parent": "os.kill(os.getppid(), signal.SIGKILL)",
    "a descriptor of another process": "os.pidfd_open(os.getppid())",
    "trace": "check(libc.ptrace(0, 0, 0, 0))",
    "trace another process": "check(libc.ptrace(16, PARENT, 0, 0))",
    "read another's memory": "check(libc.process_vm_readv(PARENT, 0, 0, 0, 0, 0))",
    "write another's memory": "check(libc.process_vm_writev(PARENT, 0, 0, 0, 0, 0))",
    "set a timer": "signal.setitimer(signal.ITIMER_REAL, 100)",
    "raise its own limits": "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))",
    "raise its priority": "os.nice(-5)",
    "other processors": "os.sched_setaffinity(0, {0})",
    "become another user": "os.setuid(65534)",
    "set capabilities": "check(libc.capset(ctypes.create_string_buffer(8), ctypes.create_string_buffer(24)))",
    "change its personality": "check(libc.personality(0x0400000))",
    "lift the filter": "check(libc.prctl(22, 0, 0, 0, 0))",
    "another filter": "check(libc.syscall(317, 1, 0, 0))",
    # Code and memory
    "map executable memory": "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)",
    "make memory executable": "check(libc.mprotect(page, ctypes.c_size_t(4096), 7))",
    "make memory executable by a key": "check(libc.syscall(329, page, 4096, 7, -1))",
    "more memory than it may have": "mmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)",
    "shared memory that no limit counts": "mmap.mmap(-1, 8 << 30)",
    "shared memory of System V": "check(libc.shmget(0, 4096, 0o1600))",
    "userfaultfd": "check(libc.syscall(323, 0))",
    # The kernel
    "io_uring": "check(libc.syscall(425, 8, 0))",
    "bpf": "check(libc.syscall(321, 0, 0, 0))",
    "performance counters": "check(libc.syscall(298, ctypes.create_string_buffer(120), 0, -1, -1, 0))",
    "keyctl": "check(libc.syscall(250, 0, 0, 0))",
    "add a key": "check(libc.syscall(248, b'user', b'x', b'y', 1, -2))",
    "load a module": "check(libc.syscall(175, 0, 0, b''))",
    "load a kernel": "check(libc.syscall(246, 0, 0, 0, 0))",
    "change the time": "check(libc.clock_settime(0, ctypes.create_string_buffer(16)))",
    "change the host's name": "socket.sethostname('x')",
    "the other numbers of system calls": "check(libc.syscall(0x40000002, FILE.encode(), 0))",
    "message queue": "check(libc.msgget(0, 0o1600))",
    "uname": "os.uname()",
}
"""Each is a line of Python that raises when it is refused. Where a machine numbers a call otherwise, it is refused too:
what is allowed is a list."""


CONTROLS: Final = (
    *("open a file", "create a file", "list a folder", "list a folder opened before", "stat", "a file in memory"),
    *("make a socket", "make a pair of sockets", "make a pipe", "start a thread", "signal another process", "uname"),
    *("map executable memory", "make memory executable", "shared memory that no limit counts", "spawn a program"),
)
"""Attempts that are harmless and succeed without the walls: what shows that refusing them is the walls' doing."""


def attempt(code: str, folder: Path, port: int, *, walls: bool = True) -> str:
    """Return what becomes of one attempt, made in a child, behind the walls or without them."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, _try(code, folder, port, walls).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    return said or f"ended by signal {os.waitstatus_to_exitcode(status)}"


def _try(code: str, folder: Path, port: int, walls: bool) -> str:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result == -1:
            raise OSError(ctypes.get_errno(), "refused")

    memory = ctypes.c_char.from_buffer(mmap.mmap(-1, 4096))
    names: dict[str, Any] = {
        "memory": memory,
        **{module.__name__: module for module in (ctypes, mmap, os, resource, shutil, signal, socket, subprocess)},
        "threading": threading,
        "libc": libc,
        "check": check,
        "FILE": str(folder / "canary"),
        "FOLDER": str(folder),
        "PORT": port,
        "PARENT": os.getppid(),
        "opened": os.open(folder / "canary", os.O_RDWR),
        "folder": os.open(folder, os.O_RDONLY),
        "unconnected": socket.socket(),
        "connected": socket.socketpair()[0],
        "page": ctypes.c_void_p(ctypes.addressof(memory)),
    }
    if walls and "seccomp" not in close_behind():
        return "no seccomp here"
    try:
        exec(code, names)
    except (OSError, RuntimeError, MemoryError, ValueError) as error:
        return REFUSED if not isinstance(error, ValueError) or "limit" in str(error) else f"{type(error).__name__}"
    return DONE


def run_in_process(folder: Path, port: int, seconds: float = 120) -> tuple[dict[str, str], dict[str, str]]:
    """Return what becomes of every attempt, and of the controls without walls; made by a process without threads."""
    command = [sys.executable, "-m", "testbed.escapes.native_attempts", str(folder), str(port)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds)
    attempts, controls = json.loads(done.stdout)
    return attempts, controls


def main() -> None:
    """Make all attempts; print what became of them."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    attempts = {name: attempt(code, folder, port) for name, code in ATTEMPTS.items()}
    (folder / "apart").mkdir()
    (folder / "apart" / "canary").write_bytes(b"control")
    controls = {name: attempt(ATTEMPTS[name], folder / "apart", port, walls=False) for name in CONTROLS}
    shutil.rmtree(folder / "apart")
    print(json.dumps([attempts, controls]))


if __name__ == "__main__":
    main()
