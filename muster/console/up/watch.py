"""Show a node until Ctrl-C, or until its process ends for good: a live picture on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, RenderableType

from muster.console.node.log_lines import NodeLog
from muster.console.node.logs import shown
from muster.console.node.status import status_of
from muster.console.node.view import StatusRow, changes, cut, node_rows, picture
from muster.console.node.watching import LogFile, live, read_quietly
from muster.console.up.prepare import LocalNode
from muster.console.up.running import NodeProcess
from muster.errors import MusterError
from muster.runtime.printable import printable

POLLS: Final = 4
"""Polls of the chain between two readings; at least LEAST_SECONDS."""
LEAST_SECONDS: Final = 2.0
DRAW_SECONDS: Final = 1.0


class LiveScreen:
    """A live picture on a terminal."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._shown: RenderableType = ""
        self._live = live(console, lambda: self._shown)
        self._live.start()

    def show(self, rows: Sequence[StatusRow], log: NodeLog, notes: str) -> None:
        self._shown = picture(self._title, rows, log, notes)
        self._live.refresh()

    def say(self, sentence: str) -> None:
        self._console.print(printable(sentence), markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()


class LineScreen:
    """A line for each change."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._rows: Sequence[StatusRow] = ()
        self._warned = 0
        self._notes = ""
        self.say(title)

    def show(self, rows: Sequence[StatusRow], log: NodeLog, notes: str) -> None:
        new = min(log.warned - self._warned, len(log.warnings))
        warnings = [cut(shown(line).partition("\n")[0]) for line in list(log.warnings)[-new:] if new]
        said = notes.splitlines() if notes != self._notes else []
        for sentence in [*warnings, *changes(self._rows, rows), *said]:
            self.say(sentence)
        self._rows, self._warned, self._notes = rows, log.warned, notes

    def say(self, sentence: str) -> None:
        line = f"{datetime.now(UTC):%H:%M:%S}  {printable(sentence)}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Do nothing: what was said stays."""


class NodeWatch:
    """Shows one node."""

    def __init__(self, node: LocalNode, process: NodeProcess | None) -> None:
        """`process`: None where it is not ours, and is watched only."""
        self._session = node.session
        self._log = node.log
        self._process = process
        self._reader = status_of(node.role, node.address)
        self._title = f"{node.place.name}: {node.role} {node.address} of run {node.session.settings.run}"
        self._pause = max(LEAST_SECONDS, POLLS * node.session.settings.chain.poll_seconds)
        self._status: Mapping[str, Any] = {}
        self._notes = ""
        self._read_at = time.monotonic()

    async def show(self) -> None:
        """Show it until cancelled, or until its process has ended for good."""
        console = self._session.stderr
        screen = LiveScreen(console, self._title) if console.is_terminal else LineScreen(console, self._title)
        if self._process is not None:
            self._process.say = screen.say
        reading = asyncio.create_task(self._read_on(), name="read the node's status")
        try:
            with LogFile(self._log) as log:
                while not reading.done():
                    self._draw(screen, log.read())
                    if self._process is not None and self._process.is_over:
                        return
                    await asyncio.sleep(DRAW_SECONDS)
            reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            screen.close()
            if self._process is not None:
                self._process.say = self._session.note

    def _draw(self, screen: LiveScreen | LineScreen, log: NodeLog) -> None:
        elapsed = time.monotonic() - self._read_at
        rows = node_rows(self._status, log, now=time.time(), elapsed=elapsed) if self._status else []
        screen.show(rows, log, self._notes)

    async def _read_on(self) -> None:
        """Read the status again and again; where that fails, keep what was read before and note why."""
        while True:
            try:
                self._status, self._notes = await read_quietly(self._session, self._reader.read)
                self._read_at = time.monotonic()
            except MusterError as error:
                self._notes = f"not read: {error}"
            await asyncio.sleep(self._pause)
