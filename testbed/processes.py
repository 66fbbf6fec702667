"""A process of ours that a test or a benchmark kills or stops."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.waiting import BOUND


class Stoppable:
    """Has a `process`, once it was launched. What that says goes to a file: a pipe that nobody reads would stop it."""

    process: subprocess.Popen[bytes] | None = None
    said: Path
    """The newest launch's stdout and stderr."""

    def launch(
        self, command: Sequence[str], said: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own, without waiting for anything."""
        self.said = said
        with said.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=environment
            )
        return self.process

    def kill(self) -> None:
        """End it as if the power had failed."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(BOUND)

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM; return the exit code and what it said."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Wait until it ends by itself; return the exit code and what it said."""
        assert self.process is not None
        return self.process.wait(BOUND), self.said.read_text(errors="replace")
