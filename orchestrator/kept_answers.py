"""Keep answers that many ask for: each is made once, however many ask meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from orchestrator.database import Database

T = TypeVar("T")

MAX_KEPT: Final = 64
"""Answers kept at the same time."""
LEAST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 10.0
_SHARE: Final = 0.01
"""Of the time may go into making one answer again and again, between these bounds."""


@dataclass
class _Answer:
    version: int
    """Of the database."""
    until: float
    """Monotonic second at which it is made anew; infinite while it is being made."""
    task: asyncio.Task[Any]


class KeptAnswers:
    """Answers, finished or being made, by what was asked. Each is read in one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[Hashable, _Answer] = {}

    async def at_this_version(self, key: Hashable, make: Callable[[Connection], T]) -> T:
        """Return the answer to `key` at the present version of the database."""
        kept = self._kept.get(key)
        if kept is None or kept.version != self._database.version or _has_failed(kept.task):
            kept = self._make(key, make)
        return await asyncio.shield(kept.task)

    async def lately(self, key: Hashable, make: Callable[[Connection], T]) -> T:
        """Return the answer to `key` of this second, or of some seconds ago where making it takes long."""
        kept = self._kept.get(key)
        if kept is None or time.monotonic() >= kept.until or _has_failed(kept.task):
            kept = self._make(key, make)
        return await asyncio.shield(kept.task)

    def _make(self, key: Hashable, make: Callable[[Connection], Any]) -> _Answer:
        if len(self._kept) > MAX_KEPT:
            self._kept.clear()
        began = time.monotonic()
        task = asyncio.create_task(self._database.read(make), name="kept answer")
        kept = self._kept[key] = _Answer(self._database.version, float("inf"), task)

        def made(_: asyncio.Task[Any]) -> None:
            _has_failed(task)  # retrieves the exception: the caller may be cancelled
            took = time.monotonic() - began
            kept.until = began + min(MOST_SECONDS, max(LEAST_SECONDS, took / _SHARE))

        task.add_done_callback(made)
        return kept


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
