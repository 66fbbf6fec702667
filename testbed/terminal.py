"""A terminal that a test types in: what a command asks, and what it draws."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.suite.fork_server import take_terminal
from testbed.waiting import BOUND, wait_until

ROWS, COLUMNS = 40, 140
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`muster WORDS` on a terminal of its own, in a folder. Use as a context manager."""

    def __init__(self, words: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "NO_COLOR"))}
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "muster", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=kept | {"TERM": "xterm-256color", **environment},
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(theirs)
        self.shown = ""
        """All that was drawn, without colours and moves of the cursor."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._ours)

    def reads(self, text: str) -> None:
        """Wait until it has drawn a text after the last one that was waited for."""
        deadline, seen = time.monotonic() + BOUND, ""
        while text not in seen:
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.shown[-3000:]}{seen[-3000:]}"
            if not select.select([self._ours], [], [], 0.5)[0]:
                continue
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:  # it has ended
                data = b""
            assert data, f"it ended without {text!r}:\n{self.shown[-3000:]}{seen[-3000:]}"
            seen += ESCAPES.sub("", data.decode(errors="replace"))
        self.shown += seen

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def presses_control_c(self) -> None:
        """Press Ctrl-C once the command sleeps: Python does not see a signal that comes just before it reads."""
        state = Path(f"/proc/{self._process.pid}/stat")
        wait_until(lambda: state.read_text().rpartition(") ")[2].startswith("S"), "the command waits")
        self.types("\x03")

    def receives(self, number: signal.Signals) -> None:
        """Send the command a signal."""
        self._process.send_signal(number)

    def ends(self) -> int:
        """Wait for its end, reading on; the exit code."""
        deadline = time.monotonic() + BOUND
        while self._process.poll() is None:
            assert time.monotonic() < deadline, self.shown[-3000:]
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.shown += ESCAPES.sub("", os.read(self._ours, 1 << 16).decode(errors="replace"))
                except OSError:
                    continue
        return self._process.returncode
