"""`muster swarm demo` as a person starts it, for the tests that watch one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from muster.runtime.module_command import module_command
from testbed.suite.fork_server import exec_process
from testbed.waiting import BOUND

TOKEN = 10**18


def start(
    folder: Path, *words: str, environment: dict[str, str] | None = None, forked: bool = True
) -> subprocess.Popen[str]:
    """`muster swarm demo` with its folder and report in `folder`; not `forked`: exactly as from a shell."""
    command = module_command("muster", "swarm", "demo", "--folder", folder / "swarm", *words)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    return (subprocess.Popen if forked else exec_process)(
        [*command, "--report", str(folder / "report.html")],
        cwd=folder,
        env={**kept, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    """Read what a demo says until a line has these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"it ended without saying {words!r}")


def processes_of(folder: Path) -> list[str]:
    """Command lines of running processes that name the folder, or run in it."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                where = os.readlink(f"/proc/{entry}/cwd")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if str(folder) in words or Path(where).is_relative_to(folder):
                found.append(f"{entry}: {words}")
    return found


def to_the_end(process: subprocess.Popen[str], seconds: float) -> tuple[dict[str, Any], str]:
    """Wait for a demo started with --json: its document, and what it said on stderr."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=BOUND)
    assert process.returncode == 0, err[-8000:]
    return json.loads(out), err
