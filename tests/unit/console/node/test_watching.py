"""A node that is watched: a picture on a terminal, lines elsewhere, and the last good status when a reading fails."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from muster.console.node.watching import Screen, WatchedNode
from muster.console.session import Options, Session
from muster.errors import UnreachableError
from muster.runtime.units import Ether, Tokens

WORKER: dict[str, Any] = {
    "role": "worker",
    "status": "active",
    "newest_step": 13,
    "accepted": 1,
    "pending": 2,
    "rejected": {},
    "in_window": Tokens(0),
    "pay_per_commitment": Tokens(0),
    "claimable": Tokens(0),
    "open_cases": 0,
    "gas": Ether(0),
    "gas_transactions": 0,
}


class EndedError(Exception):
    """The test has seen enough."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class DrawnScreen(Screen):
    """A screen that says when it was drawn."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.drawn = asyncio.Event()

    def show(self, *what: Any) -> None:
        super().show(*what)
        self.drawn.set()


async def printed(out: io.StringIO, *answers: Any, log_file: Path | None = None) -> str:
    """What is printed of a node that is read so often; an answer that is an error is raised."""
    left = [*answers, EndedError()]

    async def read(session: Session) -> dict[str, Any]:
        screen.drawn.clear()
        await screen.drawn.wait()
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        session.note(f"note {answer['accepted']}")
        return answer

    console = Console(file=out, width=120, _environ={"TERM": "xterm"})
    with pytest.raises(ExceptionGroup) as caught, DrawnScreen(console, "a node") as screen:
        await WatchedNode(Session(Options()), read, log_file).follow(screen, 0.001)
    assert isinstance(caught.value.exceptions[0], EndedError)
    return out.getvalue()


async def test_changes_are_lines_without_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"event": "slow disk", "level": "warning", "time": "2026-11-24T10:00:00Z"}) + "\n")
    answers = WORKER, UnreachableError("no answer"), WORKER | {"accepted": 2, "pending": 1}
    text = await printed(io.StringIO(), *answers, log_file=log)
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in text.splitlines())
    assert [line[10:] for line in text.splitlines()] == [
        "a node",
        "2026-11-24 10:00:00 warning: slow disk",
        "commitments: 1 accepted, 2 pending, 0 rejected",
        "claimable: 0 MUST",
        "note 1",
        "not read: no answer",
        "commitments: 2 accepted, 1 pending, 0 rejected",
        "note 2",
    ]


async def test_last_good_status_stays_on_a_terminal() -> None:
    text = await printed(Terminal(), WORKER, UnreachableError("no answer"))
    last = [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.rpartition("a node")[2]).splitlines()]
    assert "commitments    1 accepted, 2 pending, 0 rejected" in last
    assert last[-1] == "not read: no answer"
