"""Show a status again and again, until Ctrl-C: what `--watch` does."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Never

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from muster.cli.session import PLAIN_WIDTH, Session, as_table
from muster.errors import MusterError, UsageError
from muster.runtime.units import Moment

WATCH_SECONDS: Final = 10.0
"""Pause between two readings; each asks the chain and the orchestrator."""

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again every ten seconds, until Ctrl-C; on a terminal in place.")
]

Status = Mapping[str, Any]


async def watch(
    session: Session,
    read: Callable[[Session], Awaitable[Status]],
    *,
    seconds: float = WATCH_SECONDS,
) -> Never:
    """Show what `read` returns, every so many seconds, until interrupted; what fails meanwhile is shown below it.

    `read` gets a session whose notes are shown below as well. Raises UsageError with --json, and the first reading's
    error.
    """
    if session.options.json:
        raise UsageError("--json prints one document, and --watch never ends", hint="leave out one of them")
    status, notes = await _read(session, read)
    out = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    if not sys.stdout.isatty():
        while True:
            out.print(_shown(status, notes))
            sys.stdout.flush()
            await asyncio.sleep(seconds)
            status, notes = await _read_again(session, read, status)
    with Live(_shown(status, notes), console=out, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(seconds)
            status, notes = await _read_again(session, read, status)
            live.update(_shown(status, notes), refresh=True)


async def _read(session: Session, read: Callable[[Session], Awaitable[Status]]) -> tuple[Status, str]:
    notes = io.StringIO()
    quiet = Session(session.options, dict(session.overrides), Console(file=notes, highlight=False, width=PLAIN_WIDTH))
    return await read(quiet), notes.getvalue()


async def _read_again(
    session: Session, read: Callable[[Session], Awaitable[Status]], before: Status
) -> tuple[Status, str]:
    """Read once more; where that fails, return what was read before, and why."""
    try:
        return await _read(session, read)
    except MusterError as error:
        return before, f"not read again: {error}\n"


def _shown(status: Status, notes: str) -> RenderableType:
    below = f"{notes}{Moment(round(time.time()))}".replace(" (now)", "")
    return Group(as_table(status), Text(below, style="dim"))
