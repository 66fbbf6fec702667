"""What native code tries in a process behind the outer walls: as if the inner one, WebAssembly, had a hole.

    python -m testbed.escapes.attempts FOLDER PORT

Each attempt runs in a separate child, which gives up what `close_behind` takes away and then tries. FOLDER has a file
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
from testbed.escapes.attacks import CONTROLS, PROCESS

REFUSED: Final = "refused"
DONE: Final = "done"


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
    command = [sys.executable, "-m", "testbed.escapes.attempts", str(folder), str(port)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds)
    attempts, controls = json.loads(done.stdout)
    return attempts, controls


def main() -> None:
    """Make all attempts; print what became of them."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    attempts = {name: attempt(one.code, folder, port) for name, one in PROCESS.items()}
    (folder / "apart").mkdir()
    (folder / "apart" / "canary").write_bytes(b"control")
    controls = {name: attempt(PROCESS[name].code, folder / "apart", port, walls=False) for name in CONTROLS["process"]}
    shutil.rmtree(folder / "apart")
    print(json.dumps([attempts, controls]))


if __name__ == "__main__":
    main()
