"""A process of ours that a test or a benchmark kills or stops."""

from __future__ import annotations

import signal
import subprocess


class Stoppable:
    """Has a `process` with its stderr in a pipe, once it was started."""

    process: subprocess.Popen[str] | None = None

    def kill(self) -> None:
        """End it as if the power had failed."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=10)

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM; return the exit code and what it said on stderr."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors
