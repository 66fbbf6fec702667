"""A terminal that a test types in: what a command asks, and what it draws."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from testbed.processes import Muster
from testbed.suite.forks import take_terminal
from testbed.waiting import wait_until

ROWS, COLUMNS = 40, 140
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(Muster):
    """`muster WORDS` on a separate terminal, in a folder."""

    def __init__(self, words: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

        def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
            try:
                return subprocess.Popen(command, **{**options, **streams}, preexec_fn=take_terminal)
            finally:
                os.close(theirs)

        environment = {"TERM": "xterm-256color", "NO_COLOR": "", **environment}
        super().__init__(words, Path(os.devnull), folder=folder, environment=environment, popen=start)
        self._shown = ""
        self._waited_for = 0

    @property
    def said(self) -> str:
        """Return all that was drawn, without colours and moves of the cursor."""
        self._draw()
        return self._shown

    def _draw(self) -> None:
        while select.select([self._ours], [], [], 0)[0]:
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:  # it has ended
                break
            self._shown += ESCAPES.sub("", data.decode(errors="replace"))

    def reads(self, text: str) -> None:
        """Wait until it has drawn a text after the last one that was waited for."""
        self.wait_until(lambda: text in self.said[self._waited_for :], repr(text))
        self._waited_for = len(self._shown)

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def presses_control_c(self) -> None:
        """Press Ctrl-C once the command sleeps: Python does not see a signal that comes just before it reads."""
        wait_until(lambda: psutil.Process(self.pid).status() == psutil.STATUS_SLEEPING, "the command waits")
        self.types("\x03")

    def ends(self) -> int:
        """Wait for its end, reading on; the exit code."""

        def ended() -> bool:
            self._draw()
            return not self.is_running

        wait_until(ended, lambda: self.said)
        return self.process.returncode

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()
        os.close(self._ours)
