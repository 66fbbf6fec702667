"""What an attack must not read, write, reach or leave behind: canaries of the host, and how they are looked at."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from muster.sandbox.scorer import Outcome

VARIABLE: Final = "MUSTER_CANARY"
VICTIM: Final = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
kept = ctypes.create_string_buffer(sys.argv[1].encode())
print(ctypes.addressof(kept), flush=True)
time.sleep(3600)
"""


class Canaries:
    """A file and a folder, a variable of the environment, an open descriptor, and a service that listens."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "canary"
        self.secret, self.variable = secrets.token_hex(16), secrets.token_hex(16)
        self.file.write_text(self.secret)
        (folder / "canary.py").write_text(f"SECRET = {self.secret!r}\n")
        os.environ[VARIABLE] = self.variable
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.descriptor = os.open(self.file, os.O_RDWR)
        os.set_inheritable(self.descriptor, True)
        self.secrets = {
            "the canary file": self.secret,
            "the environment": self.variable,
            "the host's folder": str(Path.cwd()),
            "the host's Python": sys.prefix,
        }
        self._before = state_of(folder)

    def names(self) -> dict[str, Any]:
        """Return what stands for the canaries in an attack."""
        return {"FILE": self.file, "FOLDER": self.folder, "PORT": self.port}

    def close(self) -> None:
        os.environ.pop(VARIABLE, None)
        os.close(self.descriptor)
        self.listener.close()

    def told_by(self, outcome: Outcome) -> list[str]:
        """Return which of the host's secrets an outcome holds."""
        text = json.dumps(outcome.value) + outcome.stopped
        return [f"it read {name}" for name, secret in self.secrets.items() if secret in text]

    def touched(self) -> list[str]:
        """Return what was done to the canaries since the last look."""
        found = []
        try:
            self.listener.accept()[0].close()
            found.append("it connected to the listener")
        except BlockingIOError:
            pass
        if (state := state_of(self.folder)) != self._before:
            found.append("it changed a file")
            self._before = state
        return found


class NativeCanaries(Canaries):
    """What a native program could reach besides: sockets, shared memory, and a process with a secret that must live."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.token = secrets.token_hex(6)
        self.local = folder / "socket"
        self.sockets = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
        self.sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.sockets[2].bind(("127.0.0.1", self.port))
        for one, name in zip(self.sockets, (str(self.local), f"\0muster-{self.token}"), strict=False):
            one.bind(name)
            one.listen()
        for one in self.sockets:
            one.setblocking(False)
        hidden = secrets.token_hex(16)
        self.secrets["another's memory"] = hidden
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        self.segment = libc.shmget(0, 4096, 0o1666)
        ctypes.memmove(libc.shmat(self.segment, 0, 0), hidden.encode(), 32)
        libc.shmctl(self.segment, 0, None)  # gone with this process
        self._start_victim()
        super().touched()

    def _start_victim(self) -> None:
        command = [sys.executable, "-c", VICTIM, self.secrets["another's memory"]]
        self.victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.victim.stdout is not None
        self.wanted = int(self.victim.stdout.readline())

    def names(self) -> dict[str, Any]:
        more = {"LOCAL": self.local, "ABSTRACT": f"muster-{self.token}", "TOKEN": self.token}
        process = {"VICTIM": self.victim.pid, "WANTED": self.wanted, "SEGMENT": self.segment}
        return super().names() | more | process

    def touched(self) -> list[str]:
        found = super().touched()
        for one in self.sockets:
            try:
                one.recv(1) if one.type == socket.SOCK_DGRAM else one.accept()[0].close()
                found.append("it reached a socket")
            except BlockingIOError:
                pass
        for folder in ("/dev/shm", "/var/tmp", "/tmp", Path.home()):
            for path in Path(folder).glob("left*"):
                path.unlink()
                found.append(f"it left {path}")
        if self.victim.poll() is not None:
            found.append("it killed another process")
            self._start_victim()
        return found

    def close(self) -> None:
        super().close()
        self.victim.kill()
        self.victim.communicate()
        for one in self.sockets:
            one.close()


@contextmanager
def canaries(kind: type[Canaries] = Canaries) -> Iterator[Any]:
    """Put canaries into a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="muster-canary-") as folder:
        found = kind(Path(folder))
        try:
            yield found
        finally:
            found.close()


def state_of(folder: Path, *, contents: bool = True) -> list[tuple[str, int, int, int, bytes]]:
    """Return what shows a change of a folder's files; without `contents`, by their sizes and times."""
    return [
        (str(path), at.st_mode, at.st_size, at.st_mtime_ns, path.read_bytes() if contents and path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
        for at in (path.lstat(),)
    ]
