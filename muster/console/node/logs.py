"""muster logs: a process's log file as lines for people, and as they come."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, Never

import typer

from muster.console.command import command
from muster.console.session import Session
from muster.errors import ConfigError, UsageError
from muster.runtime.closing import Closing
from muster.runtime.printable import printable
from muster.runtime.telemetry import short_line

app = typer.Typer()

Level = Literal["debug", "info", "warning", "error"]

LEVELS: Final = ("debug", "info", "warning", "error", "critical")

FOLLOW_SECONDS: Final = 0.25
"""Pause between two looks at a file that is followed."""

FIRST_BYTES: Final = 1 << 20
"""Read from the end of a file at first; more where that holds too few lines."""

BLOCK_BYTES: Final = 1 << 16
MAX_LINE_BYTES: Final = 1 << 20
"""Of a longer line the rest is left out."""

MAX_SHOWN: Final = 4_000
"""Characters of a line that are shown."""

MAX_LINES: Final = 100_000
"""Lines that one command shows at most, those that are followed not counted."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True)
class LineFilter:
    level: Level = "info"
    """The lowest."""
    since: float = 0.0
    """Unix seconds of the first."""

    def takes(self, line: dict[str, Any]) -> bool:
        level = line.get("level", "info")
        rank = LEVELS.index(level) if level in LEVELS else LEVELS.index("error")
        return rank >= LEVELS.index(self.level) and not (self.since and seconds_of(line) < self.since)


@command(app, "logs", of_node=True)
async def logs(
    session: Session,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines, until Ctrl-C.")] = False,
    level: Annotated[Level, typer.Option(help="Lowest level to show.")] = "info",
    since: Annotated[str | None, typer.Option(help="Only lines of the last 30s, 10m, 2h or 1d; all of them.")] = None,
    lines: Annotated[
        int | None, typer.Option("-n", "--lines", min=0, max=MAX_LINES, help="The last so many lines; else 50.")
    ] = None,
) -> None:
    """Show the log of the settings' process (log.file) as lines for people. Times are UTC."""
    if follow and session.options.json:
        raise UsageError("--json prints one document, and --follow never ends", hint="leave out one of them")
    path = log_file(session)
    wanted = LineFilter(level, time.time() - parse_age(since) if since else 0.0)
    count = lines if lines is not None else MAX_LINES if since else 50
    if not path.exists() and not follow:
        raise ConfigError(f"no log at {path} yet", hint="start its process: muster worker run, for example")
    try:
        if follow:
            await follow_lines(path, wanted, count, _print)
        found, _ = last_lines(path, wanted, count)
        if session.options.json:
            session.result(found)
            return
        for line in found:
            _print(line)
    except BrokenPipeError:  # who reads them has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def log_file(session: Session) -> Path:
    """Return the log of the settings. Raises ConfigError when none is written."""
    if session.config_path is None:
        raise session.no_settings()
    path = session.settings.log.file
    if path is None:
        hint = 'set file = "log.jsonl" under [log] and start the process again; a service also has journalctl --user'
        raise ConfigError("log.file is not set: this process writes no log file", hint=hint)
    return path


def parse_age(text: str) -> float:
    """Return the seconds of an age such as 90s, 10m, 2h or 1d. Raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])", text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no length of time", hint="write it like 30s, 10m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def last_lines(path: Path, wanted: LineFilter, count: int) -> tuple[list[dict[str, Any]], int]:
    """Return the last `count` lines that are wanted, and the byte after the last line; read no more than that takes."""
    size = path.stat().st_size if path.exists() else 0
    span = FIRST_BYTES
    while True:
        found: deque[dict[str, Any]] = deque(maxlen=count)
        oldest = None
        with Tail(path, max(0, size - span)) as tail:
            for line in map(parsed, tail.read()):
                oldest = oldest if oldest is not None else seconds_of(line) or None
                if wanted.takes(line):
                    found.append(line)
            end = tail.place
        before = oldest is not None and oldest < wanted.since
        if span >= size or len(found) >= count or before:
            return list(found), end
        span *= 8


async def follow_lines(
    path: Path,
    wanted: LineFilter,
    count: int,
    show: Callable[[dict[str, Any]], None],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Never:
    """Show the last `count` lines that are wanted, and then each one that is added, until cancelled."""
    found, end = last_lines(path, wanted, count)
    for line in found:
        show(line)
    with Tail(path, end) as tail:
        while True:
            for line in map(parsed, tail.read()):
                if wanted.takes(line):
                    show(line)
            if not tail.reopened():
                await pause(FOLLOW_SECONDS)


class Tail(Closing):
    """Reads a file's lines to its end, and then those that are added, also in a new file of the same name."""

    def __init__(self, path: Path, start: int = 0) -> None:
        """`start`: the byte to begin at; the line that it is in is left out."""
        self.path = path
        self._start = start
        self._file: BinaryIO | None = None
        self._rest = b""
        """The beginning of a line whose end is not written yet."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def place(self) -> int:
        """Return the byte after the last line that was read."""
        return 0 if self._file is None else self._file.tell() - len(self._rest)

    def read(self) -> Iterator[bytes]:
        """Yield the lines that are complete and were not read yet. A file that was cut is read from its beginning."""
        if self._file is None and not self._open():
            return
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._rest, self._start = b"", 0
        while block := self._file.read(BLOCK_BYTES):
            *complete, rest = (self._rest + block).split(b"\n")
            self._rest = rest[:MAX_LINE_BYTES]
            if self._start and complete:  # began in the middle of a line
                self._start, complete = 0, complete[1:]
            yield from (line for line in complete if line.strip())

    def _open(self) -> bool:
        try:
            self._file = self.path.open("rb")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}", hint="check log.file") from error
        self._rest = b""
        self._file.seek(max(0, self._start - 1))
        return True

    def reopened(self) -> bool:
        """Return whether another file has taken this one's name, and open that; the old one has been read."""
        if self._file is None:
            return False
        try:
            there, here = self.path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:
            return False
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
            return False
        self._file.close()
        self._file, self._start = None, 0
        return self._open()


def _print(line: dict[str, Any]) -> None:
    """Print a line at once, its letters as far as the terminal has them."""
    encoding = sys.stdout.encoding or "utf-8"
    print(shown(line).encode(encoding, "backslashreplace").decode(encoding), flush=True)


def parsed(data: bytes) -> dict[str, Any]:
    """Return a line of the log; one that is no JSON object is an event by itself."""
    text = data.decode("utf-8", errors="backslashreplace")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {"event": text}
    return found if isinstance(found, dict) else {"event": text}


def shown(line: Mapping[str, Any]) -> str:
    """Return a line for people: its time in UTC, the process, the event and its values; then an exception's lines.

    What could steer a terminal, or turn the direction of writing, is shown escaped.
    """
    values = dict(line)
    moment = str(values.pop("time", ""))[:19].replace("T", " ")
    exception = str(values.pop("exception", ""))
    text = escaped(f"{moment} {short_line(None, '', values)}".strip())
    below = [f"    {escaped(part)}" for part in exception.splitlines()]
    return "\n".join([text, *below])


def escaped(text: str, most: int = MAX_SHOWN) -> str:
    """Return text with all letters that are not printed as escapes, cut at `most` letters."""
    return printable(text if len(text) <= most else text[:most] + "…")


def seconds_of(line: dict[str, Any]) -> float:
    """Return the Unix seconds of a line; 0 where it has no time."""
    try:
        found = datetime.fromisoformat(str(line.get("time", "")))
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0
