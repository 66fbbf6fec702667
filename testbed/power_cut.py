"""Cut the power of a process: what is left of its folder is what the fsync calls that it made had covered.

A killed process loses nothing: the system still writes what it was given. So a shim (`power_cut.c`) is loaded into the
process. After each fsync it keeps a copy of the file, or the names in the folder, that was synced. A file is left if it
was synced, under the name that it had when its folder was synced, if the folder's own name is left too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from muster.proofs.native import compiler
from testbed.waiting import BOUND

SOURCE = Path(__file__).with_suffix(".c")
NAMES = ".names"
"""Behind the key of a folder."""
_SYNC_ALL = """
import os, sys
for folder, _, files in os.walk(sys.argv[1]):
    for path in (folder, *(os.path.join(folder, name) for name in files)):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
"""


class Power:
    """The power of a process that writes below a folder. Give it `environment`."""

    def __init__(self, folder: Path, work: Path) -> None:
        """folder: what is cut back. What is in it now counts as synced. work: where copies are kept, outside of it."""
        self._folder, self._synced = folder.resolve(), work / "synced"
        library, cc = work / "power_cut.so", compiler()
        assert cc is not None, "there is no C compiler"
        work.mkdir(parents=True, exist_ok=True)
        command = [cc, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"]
        subprocess.run(command, check=True, timeout=BOUND)
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "SYNCED_FROM": str(self._folder),
            "SYNCED_TO": str(self._synced),
            "MUSTER_TEST_FORKS": "0",  # what is forked has loaded its libraries already
        }
        self._remember()

    def cut(self) -> None:
        """Cut the folder of a process that was killed back to what was synced; that counts as synced from now on."""
        left = self._folder.with_name(f"{self._folder.name}.left")
        self.leave(left)
        shutil.rmtree(self._folder)
        left.rename(self._folder)
        self._remember()

    def leave(self, into: Path) -> None:
        """Make a folder of what a cut would leave now, of a process that was killed or stopped."""
        self._restore("root", into)

    def _remember(self) -> None:
        """Count all of the folder as synced."""
        shutil.rmtree(self._synced, ignore_errors=True)
        self._synced.mkdir()
        subprocess.run(
            [sys.executable, "-c", _SYNC_ALL, self._folder],
            check=True,
            timeout=BOUND,
            env={**os.environ, **self.environment},
        )

    def _restore(self, folder: str, into: Path) -> None:
        """Make a folder, by its key, of the files and folders in it that were synced."""
        into.mkdir()
        for line in (self._synced / f"{folder}{NAMES}").read_text().splitlines():
            key, _, name = line.partition(" ")
            if name in (".", ".."):
                continue
            if (self._synced / f"{key}{NAMES}").is_file():
                self._restore(key, into / name)
            elif (self._synced / key).is_file():
                shutil.copyfile(self._synced / key, into / name)
