"""Processes of ours: commands as people type them, and services that a test watches, kills and starts again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from muster.runtime.module_command import module_command
from muster.settings.toml import to_toml
from testbed.waiting import BOUND, wait_until

MUSTER: Final = module_command("muster")
OUTSIDE: Final = ("MUSTER_", "AWS_")
"""Prefixes of environment variables that no started process inherits."""
LAST_WORDS: Final = 8_000
"""How many characters of a process's output a failure shows."""

T = TypeVar("T")


def clean_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without settings, with its own programs first on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OUTSIDE)}
    return {**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **more}


class Process:
    """A command in a separate session. Its output goes to a file: a pipe without a reader would stop it.

    As a context manager it is started, and ended by `ends_at`.
    """

    ends_at = signal.SIGTERM

    def __init__(
        self,
        command: Sequence[object],
        log: Path,
        *,
        output: Path | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        popen: Callable[..., subprocess.Popen[bytes]] | None = None,
    ) -> None:
        """output: where its stdout goes, if not into `log`; folder: where it starts; popen: instead of the usual one.

        environment: beside what is inherited.
        """
        self.command, self.log, self.output = [*map(str, command)], log, output
        self.environment = dict(environment)
        self._started_in, self._popen = folder, popen
        self._process: subprocess.Popen[bytes] | None = None

    def is_ready(self) -> bool:
        """Return whether it does by now what it was started for."""
        return True

    def start(self) -> Self:
        """Start it and wait until it is ready."""
        self.spawn().wait_until(self.is_ready, "it is ready")
        return self

    def spawn(self) -> Self:
        """Start it, without waiting for anything."""
        with self.log.open("wb") as log, (self.output or Path(os.devnull)).open("wb") as output:
            self._process = (self._popen or subprocess.Popen)(
                self.command,
                cwd=self._started_in,
                env=clean_environment(**self.environment),
                stdin=subprocess.DEVNULL,
                stdout=output if self.output else log,
                stderr=log,
                start_new_session=True,
            )
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return what the newest start made."""
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        """Return what it has said since its newest start."""
        return self.log.read_text(errors="replace")

    @property
    def document(self) -> Any:
        """Return its stdout as JSON."""
        assert self.output is not None
        return json.loads(self.output.read_text())

    def wait_until(self, condition: Callable[[], T], what: str, seconds: float = BOUND) -> T:
        """Return the first true value of a condition. Raises AssertionError when that is late or it ends before."""

        def watched() -> T:
            value = condition()
            assert value or self.is_running, f"ended before {what}: {self.command}\n{self.said[-LAST_WORDS:]}"
            return value

        return wait_until(watched, lambda: f"{what}: {self.command}\n{self.said[-LAST_WORDS:]}", seconds)

    def says(self, words: str) -> None:
        """Wait until it says these words."""
        self.wait_until(lambda: words in self.said, f"it says {words!r}")

    def kill(self) -> None:
        """End it as if the power had failed."""
        self.process.kill()
        self.process.wait(BOUND)

    def stop(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Send it a signal, `ends_at` by default, if it still runs; return the exit code and what it said."""
        if self.is_running:
            self.process.send_signal(number or self.ends_at)
        return self.end()

    def end(self, seconds: float = BOUND) -> tuple[int, str]:
        """Wait until it ends by itself; return the exit code and what it said.

        Raises TimeoutExpired where it does not end in time, after killing its session.
        """
        try:
            return self.process.wait(seconds), self.said
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.stop()


class Muster(Process):
    """`muster WORDS`, as a person types it and ends it by Ctrl-C."""

    ends_at = signal.SIGINT

    def __init__(self, words: Sequence[object], log: Path, **options: Any) -> None:
        super().__init__(module_command("muster", *words), log, **options)


class Service(Process):
    """`python -m MODULE --config FILE` in a folder: its settings, which a test may change, and its JSON log."""

    def __init__(
        self,
        module: str,
        folder: Path,
        settings: Mapping[str, object],
        *,
        launcher: Sequence[str] = (sys.executable, "-P"),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Write the settings file. settings: by their dotted keys; launcher: what starts a module."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.config, self.json_log = folder, folder / "muster.toml", folder / "log.jsonl"
        command = [*launcher, "-m", module, "--config", self.config]
        super().__init__(command, folder / "said.log", environment=environment)
        self.settings: dict[str, object] = {"log.file": self.json_log}
        self.change(settings)

    def change(self, settings: Mapping[str, object]) -> None:
        """Change settings, for the next start. None takes one away."""
        changed = {**self.settings, **settings}
        self.settings = {name: value for name, value in changed.items() if value is not None}
        self.config.write_text(to_toml(self.settings))

    def logged(self, event: str = "") -> list[dict[str, Any]]:
        """Return the log lines of one event, or of all, over all of its lives."""
        lines = self.json_log.read_text().splitlines() if self.json_log.exists() else []
        return [line for line in map(json.loads, lines) if event in ("", line["event"])]


@contextmanager
def ended(*processes: Process) -> Iterator[None]:
    """End these processes on exit, also after an exception."""
    with ExitStack() as stack:
        for process in processes:
            stack.push(process)
        yield


def prefixed(section: str, settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings by their dotted keys; those that name no section are of this one."""
    return {name if "." in name else f"{section}.{name}": value for name, value in settings.items()}


async def run_to_end(*command: object, folder: Path | None = None, **environment: str) -> tuple[int, str, str]:
    """Run a command; return its exit status, output and errors. Raises TimeoutExpired after BOUND, having killed it."""
    done = await asyncio.to_thread(
        subprocess.run,
        [*map(str, command)],
        cwd=folder,
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    return done.returncode, done.stdout, done.stderr
