"""Commands of Muster as people type them: started without settings of this shell, waited for, ended by Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final, TypeVar

from testbed.waiting import BOUND

ROOT: Final = Path(__file__).resolve().parents[1]
MUSTER: Final = (sys.executable, "-m", "muster")
POLL_SECONDS: Final = 0.1

T = TypeVar("T")


def clean_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without settings of Muster, with its own programs first on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **more}


@contextmanager
def running(
    command: Sequence[str], log: Path, *, folder: Path | None = None, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that runs a command and writes all it says into `log`; end it by Ctrl-C.

    Raises TimeoutExpired where it does not end in time, after killing it.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=clean_environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(BOUND)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


async def run_to_end(
    *command: object, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command; return its exit status, output and errors. Raises TimeoutError after BOUND, and kills it then."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), cwd=folder, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), BOUND)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


def wait_for(what: str, ready: Callable[[], T], seconds: float, process: subprocess.Popen[bytes], log: Path) -> T:
    """Return what `ready` returns once that is true. Raises RuntimeError when the process ends or it takes too long."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if found := ready():
            return found
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"never: {what} (status {process.poll()})\n{log.read_text(errors='replace')[-4_000:]}")


def get_bytes(url: str) -> bytes:
    """Return an answer of a server on this machine. Raises OSError without one."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=BOUND) as reply:
        return reply.read()


def get_json(url: str) -> Any:
    """Return a JSON answer of a server on this machine; {} when nobody answers, or the request is refused."""
    try:
        return json.loads(get_bytes(url))
    except (OSError, ValueError):
        return {}


def swarm_url(folder: Path) -> str:
    """Return the URL of a local swarm's orchestrator, by its settings; empty before it has any."""
    settings = folder / "orchestrator" / "muster.toml"
    found = re.search(r'^url = "(.+)"$', settings.read_text(), re.MULTILINE) if settings.exists() else None
    return found[1] if found else ""


def address_in(home: Path) -> str:
    """Return the address of the only node that a home folder has; empty before there is one."""
    for path in home.glob(".muster/nodes/*/node.json"):
        return "0x" + json.loads(path.read_text())["address"].removeprefix("0x")
    return ""
