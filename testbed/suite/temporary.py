"""One temporary folder for a whole run of pytest, its processes included, which goes when the run ends.

What others leave where they are ended at once goes with it: vLLM's sockets, torchrun's logs, a browser's files. Ours
must leave nothing: what begins with OURS and is still there when all processes have ended fails the run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest

from testbed.waiting import wait_until

PREFIX: Final = "tests-"
OURS: Final = "muster-"
PYTEST: Final = "pytest"
"""What `tmp_path` lies in. The whole path is short: sockets lie in it, whose paths have 107 bytes at most."""


class TemporaryFolder:
    """The folder of one run. Its environment points there, and so does that of what it starts."""

    def __init__(self, config: pytest.Config) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.path.chmod(0o711)  # where root runs the tests, PostgreSQL runs as another user
        self.keeps = False
        """Whether `tmp_path` of failed tests stays."""
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.path)
        config.option.basetemp = config.option.basetemp or self.path / PYTEST
        config.add_cleanup(self._remove)

    @property
    def left(self) -> list[str]:
        """Return the files of ours that are there."""
        return sorted(path.name for path in self.path.iterdir() if path.name.startswith(OURS))

    def finish(self, session: pytest.Session) -> None:
        """Fail a run of several processes, which have ended, if something of ours is left. It is kept then."""
        if session.config.getoption("numprocesses", None):
            try:
                wait_until(lambda: not self.left, lambda: f"the temporary folder is clear of {self.left}")
            except AssertionError as error:
                print(f"\n{error}")
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self.keeps = bool(session.testsfailed or self.left)

    def _remove(self) -> None:
        for path in self.path.iterdir():
            if path.is_dir() and not (self.keeps and path.name.startswith((PYTEST, OURS))):
                shutil.rmtree(path, ignore_errors=True)
            elif not path.is_dir():
                path.unlink(missing_ok=True)
        if self.keeps:
            print(f"\nfiles of the tests that failed, and what they left: {self.path}")
        else:
            shutil.rmtree(self.path, ignore_errors=True)
