"""What an attack must not read, write, reach or leave behind: canaries of the host, and how they are looked at."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from muster.sandbox.scorer import Outcome

VARIABLE: Final = "MUSTER_CANARY"


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


@contextmanager
def canaries() -> Iterator[Canaries]:
    """Put canaries into a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="muster-canary-") as folder:
        found = Canaries(Path(folder))
        try:
            yield found
        finally:
            found.close()


def state_of(folder: Path) -> list[tuple[str, int, int, int, bytes]]:
    """Return what shows a change of a folder's files."""
    return [
        (str(path), at.st_mode, at.st_size, at.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
        for at in (path.lstat(),)
    ]
