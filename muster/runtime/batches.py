"""Run what arrives at the same time together: items that come while one batch runs are the next batch."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Failure:
    """The outcome of an item that failed. An exception that an item returns is a result like any other."""

    error: BaseException


Outcome = Any
"""What an item gave, or its Failure."""


@dataclass(eq=False)
class _Queued(Generic[Item]):
    item: Item
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    has_begun: bool = False

    def give_up(self) -> None:
        if not (self.has_begun or self.done.done()):
            self.done.set_exception(TimeoutError())

    def finish(self, outcome: Outcome) -> None:
        if self.done.done():
            return
        if not isinstance(outcome, Failure):
            self.done.set_result(outcome)
        elif isinstance(outcome.error, asyncio.CancelledError):
            self.done.cancel()
        else:
            self.done.set_exception(outcome.error)


class Batches(Generic[Item]):
    """Items of one kind, of which one batch runs at a time, in the order in which they arrived.

    run: runs a batch and returns an outcome for each of its items. Where it raises, all of them fail. most, most_bytes:
    items of one batch, and the sum of their `size_of`; one item runs whatever its size.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Outcome]]],
        *,
        most: int,
        most_bytes: float = math.inf,
        size_of: Callable[[Item], int] = lambda _: 0,
    ) -> None:
        self._run = run
        self._most, self._most_bytes, self._size_of = most, most_bytes, size_of
        self._queue: deque[_Queued[Item]] = deque()
        self._runner: asyncio.Task[None] | None = None

    async def add(self, item: Item, *, wait: float | None = None) -> Any:
        """Return the outcome of an item. Raises its failure, and TimeoutError when it has not begun in `wait`.

        An item whose caller is cancelled before it begins does not run.
        """
        queued = _Queued(item)
        self._queue.append(queued)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run_queued(), name="batches")
        timer = None if wait is None else asyncio.get_running_loop().call_later(wait, queued.give_up)
        try:
            return await queued.done
        finally:
            if timer is not None:
                timer.cancel()

    async def _run_queued(self) -> None:
        while batch := self._next():
            (outcomes,) = await asyncio.gather(self._run([queued.item for queued in batch]), return_exceptions=True)
            if isinstance(outcomes, BaseException):  # CancelledError too, where what runs the batch is closed
                outcomes = [Failure(outcomes)] * len(batch)
            for queued, outcome in zip(batch, outcomes, strict=True):
                queued.finish(outcome)

    def _next(self) -> list[_Queued[Item]]:
        """Take the next batch from the queue; empty when nothing waits."""
        batch, room = list[_Queued[Item]](), self._most_bytes
        while self._queue and len(batch) < self._most:
            room -= self._size_of(self._queue[0].item)
            if batch and room < 0:
                break
            queued = self._queue.popleft()
            if not queued.done.done():
                queued.has_begun = True
                batch.append(queued)
        return batch
