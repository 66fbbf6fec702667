"""Show a status again and again, until Ctrl-C: what `--watch` does."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Never

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from muster.console.node.log_lines import NodeLog
from muster.console.node.logs import FIRST_BYTES, Tail, parsed, seconds_of
from muster.console.node.status import NodeStatus
from muster.console.node.view import node_rows, picture
from muster.console.session import PLAIN_WIDTH, Session, as_table
from muster.errors import MusterError, UsageError
from muster.runtime.closing import Closing
from muster.runtime.units import Moment

WATCH_SECONDS: Final = 10.0
"""Pause between two readings; each asks the chain and the orchestrator."""

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again every ten seconds, until Ctrl-C; on a terminal in place.")
]

Status = Mapping[str, Any]


async def show_status(session: Session, status: NodeStatus, *, own: bool, again: bool) -> None:
    """Show the status of a node, once or `again` and again. `own`: its log is that of the settings."""
    if again:
        await watch(session, status.read, log_file=session.settings.log.file if own else None)
    session.result(await status.read(session))


async def watch(
    session: Session,
    read: Callable[[Session], Awaitable[Status]],
    *,
    seconds: float = WATCH_SECONDS,
    log_file: Path | None = None,
) -> Never:
    """Show what `read` returns, every so many seconds, until interrupted; what fails meanwhile is shown below it.

    `read` gets a session whose notes are shown below as well. `log_file`: that of the node's process, where it is here.
    Raises UsageError with --json, and the first reading's error.
    """
    # 1. The first reading, whose error ends the command.
    if session.options.json:
        raise UsageError("--json prints one document, and --watch never ends", hint="leave out one of them")
    status, notes = await read_quietly(session, read)
    # 2. Without a terminal: a text for each reading.
    out = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    if not sys.stdout.isatty():
        while True:
            out.print(_shown(status, notes))
            sys.stdout.flush()
            await asyncio.sleep(seconds)
            status, notes = await _read_again(session, read, status)
    # 3. On a terminal: a picture that goes on between two readings.
    read_at = time.monotonic()
    title = f"{status['role']} {status['node']} of run {status['run']}"

    def draw() -> RenderableType:
        rows = node_rows(status, log.read(), now=time.time(), elapsed=time.monotonic() - read_at)
        return picture(title, rows, log.node, notes)

    with LogFile(log_file) as log, live(out, draw) as shown:
        while True:
            for _ in range(max(1, round(seconds))):
                shown.refresh()
                await asyncio.sleep(min(1.0, seconds))
            status, notes = await _read_again(session, read, status)
            read_at = time.monotonic()


def live(console: Console, draw: Callable[[], RenderableType]) -> Live:
    """Return a live display that redraws the terminal at each `refresh`: no thread draws by itself."""
    return Live(console=console, get_renderable=draw, auto_refresh=False)


class LogFile(Closing):
    """Follows the log of a node's process; without a path there is nothing in it."""

    def __init__(self, path: Path | None, start: int | None = None) -> None:
        """`start`: the byte to begin at; None: with the last lines."""
        self.node = NodeLog()
        self._tail: Tail | None = None
        if path is not None:
            self._tail = Tail(path, max(0, log_size(path) - FIRST_BYTES) if start is None else start)

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()

    def read(self) -> NodeLog:
        """Read what was written since the last time; return what is known from all lines."""
        while self._tail is not None:
            for line in map(parsed, self._tail.read()):
                self.node.take(line, seconds_of(line))
            if not self._tail.reopened():
                break
        return self.node


def log_size(path: Path | None) -> int:
    """Return the bytes of a log; 0 where there is none."""
    return path.stat().st_size if path is not None and path.exists() else 0


async def read_quietly(session: Session, read: Callable[[Session], Awaitable[Status]]) -> tuple[Status, str]:
    """Return a status, and the notes that reading it made."""
    notes = io.StringIO()
    console = Console(file=notes, highlight=False, width=PLAIN_WIDTH)
    quiet = replace(session, overrides=dict(session.overrides), stderr=console)
    return await read(quiet), notes.getvalue()


async def _read_again(
    session: Session, read: Callable[[Session], Awaitable[Status]], before: Status
) -> tuple[Status, str]:
    """Read once more; where that fails, return what was read before, and why."""
    try:
        return await read_quietly(session, read)
    except MusterError as error:
        return before, f"not read again: {error}\n"


def _shown(status: Status, notes: str) -> RenderableType:
    below = f"{notes}{Moment(round(time.time()))}".replace(" (now)", "")
    return Group(as_table(status), Text(below, style="dim"))
