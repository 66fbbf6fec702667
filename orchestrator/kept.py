"""Keep answers for some seconds: many who ask for the same cost as much as one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar

MAX_KEPT: Final = 512
"""Answers of one kind that are kept at the same time, unless they are large."""

T = TypeVar("T")


class KeptAnswers:
    """Answers by key, each at most `seconds` old. One that fails is not kept."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, *, most: int = MAX_KEPT) -> None:
        self._seconds = seconds
        self._clock = clock
        self._most = most
        self._kept: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}
        """Answers, made or being made, and when that began, oldest first."""

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to `key`: a kept one, or what `make` returns, made once however many ask meanwhile."""
        now = self._clock()
        if (kept := self._kept.get(key)) is not None:
            began, task = kept
            if not task.done() or (now - began < self._seconds and not _has_failed(task)):
                return await asyncio.shield(task)
            del self._kept[key]
        self._forget(now)
        task = asyncio.create_task(_made(make), name="kept answer")
        task.add_done_callback(_has_failed)  # retrieves the exception: the caller may be cancelled
        self._kept[key] = now, task
        return await asyncio.shield(task)

    def _forget(self, now: float) -> None:
        """Delete answers that are too old to be given again, and the oldest where there is no room for one more."""
        while self._kept:
            key, (began, task) = next(iter(self._kept.items()))
            if len(self._kept) < self._most and not (task.done() and now - began >= self._seconds):
                return
            del self._kept[key]


async def _made(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
