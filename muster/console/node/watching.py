"""Show a node, once or until Ctrl-C: a live picture on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Never

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from muster.console.money.wallet import address_of
from muster.console.node.log_lines import NodeLog
from muster.console.node.logs import FIRST_BYTES, Tail, parsed, seconds_of
from muster.console.node.nodes import NodeOption
from muster.console.node.status import NodeReader
from muster.console.node.view import StatusRow, changes, node_rows, picture, warning_lines
from muster.console.session import PLAIN_WIDTH, Session
from muster.errors import MusterError, UsageError
from muster.runtime.closing import Closing
from muster.runtime.printable import printable

WATCH_SECONDS: Final = 10.0
"""Pause between two readings; each asks the chain and the orchestrator."""
DRAW_SECONDS: Final = 1.0

WatchOption = Annotated[
    bool,
    typer.Option(
        "--watch", "-w", help="Read it again every ten seconds, until Ctrl-C: a live picture on a terminal, else lines."
    ),
]


async def status(session: Session, node: NodeOption = None, watch: WatchOption = False) -> None:
    """Show what a node did, what was rejected, what it earned, what it has at stake, and its cases."""
    if watch and session.options.json:
        raise UsageError("--json prints one document, and --watch never ends", hint="leave out one of them")
    reader = NodeReader(await address_of(session, node))
    if not watch:
        session.result(await reader.read(session))
        return
    watched = WatchedNode(session, reader.read, session.settings.log.file if node is None else None)
    await watched.read()
    console = session.stdout
    if not console.file.isatty():
        session.result(watched.status)
    with Screen(console, "{role} {node} of run {run}".format_map(watched.status)) as screen:
        await watched.follow(screen, WATCH_SECONDS)


class Screen(Closing):
    """Shows a node: a live picture on a terminal, a line for each change elsewhere."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._picture: RenderableType = ""
        self._rows: Sequence[StatusRow] = ()
        self._warned = 0
        self._notes = ""
        self._live: Live | None = None
        if console.file.isatty():  # it draws at each refresh: no thread draws by itself
            self._live = Live(console=console, get_renderable=lambda: self._picture, auto_refresh=False)
            self._live.start()
        else:
            self.say(title)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, rows: Sequence[StatusRow], log: NodeLog, notes: str) -> None:
        """Draw the rows again, or print what changed since the last call."""
        if self._live is not None:
            self._picture = picture(self._title, rows, log, notes)
            self._live.refresh()
            return
        warnings = warning_lines(log, log.warned - self._warned)
        for line in [*warnings, *changes(self._rows, rows), *(notes.splitlines() if notes != self._notes else [])]:
            self.say(line)
        self._rows, self._warned, self._notes = rows, log.warned, notes

    def say(self, sentence: str) -> None:
        """Print a sentence above the picture, or as a line."""
        text = printable(sentence) if self._live is not None else f"{datetime.now(UTC):%H:%M:%S}  {printable(sentence)}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=self._live is None)


class WatchedNode:
    """A node, its last status, and the notes that reading it made."""

    def __init__(
        self, session: Session, read: Callable[[Session], Awaitable[Mapping[str, Any]]], log_file: Path | None
    ) -> None:
        """`read`: as `NodeReader.read`. `log_file`: that of the node's process, if it is on this machine."""
        self.status: Mapping[str, Any] = {}
        self._session = session
        self._read = read
        self._log_file = log_file
        self._notes = ""
        self._read_at = time.monotonic()

    async def read(self) -> None:
        """Read the status. What fails leaves the last one."""
        notes = io.StringIO()
        console = Console(file=notes, highlight=False, width=PLAIN_WIDTH)
        quiet = replace(self._session, overrides=dict(self._session.overrides), stderr=console)
        self.status = await self._read(quiet)
        self._notes, self._read_at = notes.getvalue(), time.monotonic()

    async def follow(self, screen: Screen, pause: float) -> Never:
        """Show the node until cancelled; read its status every `pause` seconds, and note why a reading fails."""
        with LogFile(self._log_file) as log:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read_on(pause), name="read the node's status")
                while True:
                    self._draw(screen, log.read())
                    await asyncio.sleep(min(DRAW_SECONDS, pause))

    def _draw(self, screen: Screen, log: NodeLog) -> None:
        elapsed = time.monotonic() - self._read_at
        rows = node_rows(self.status, log, now=time.time(), elapsed=elapsed) if self.status else []
        screen.show(rows, log, self._notes)

    async def _read_on(self, pause: float) -> Never:
        if self.status:
            await asyncio.sleep(pause)
        while True:
            try:
                await self.read()
            except MusterError as error:
                self._notes = f"not read: {error}"
            await asyncio.sleep(pause)


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
