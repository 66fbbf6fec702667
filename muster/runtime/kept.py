"""Keep answers for a while: many who ask for the same cost as much as one."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

MAX_KEPT: Final = 512
"""Answers of one kind that are kept at the same time, unless they are large."""

T = TypeVar("T")


@dataclass(eq=False)
class _KeptAnswer:
    made: asyncio.Future[Any]
    until: float = math.inf
    """When it is too old: never while it is being made."""
    size: int = 0


class KeptAnswers:
    """Answers by key, each made once however many ask meanwhile. One that fails is not kept.

    seconds: greatest age of an answer since making it began, or a function that returns it from the seconds that
    making took. most, most_bytes: answers that are kept, and the sum of what `size_of` returns of them. Those asked for
    longest ago are deleted first; one is kept whatever its size.
    """

    def __init__(
        self,
        seconds: float | Callable[[float], float],
        clock: Callable[[], float] = time.monotonic,
        *,
        most: int = MAX_KEPT,
        most_bytes: float = math.inf,
        size_of: Callable[[Any], int] = lambda _: 0,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._most, self._most_bytes, self._size_of = most, most_bytes, size_of
        self._kept: dict[Hashable, _KeptAnswer] = {}
        """Answers, made or being made, by the time of the last request for each."""

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to `key`: a kept one, or what `make` returns. Raises as `make`."""
        now, answer = self._clock(), self._kept.pop(key, None)
        if answer is None or answer.until <= now:
            answer = _KeptAnswer(asyncio.ensure_future(make()))
            answer.made.add_done_callback(partial(self._finish, answer, now))
        self._kept[key] = answer
        return answer.made.result() if answer.made.done() else await asyncio.shield(answer.made)

    def _finish(self, answer: _KeptAnswer, began: float, made: asyncio.Future[Any]) -> None:
        """Decide how long an answer is kept, then delete what is too old and what there is no room for."""
        now = self._clock()
        if made.cancelled() or made.exception() is not None:  # retrieves the exception: the caller may be cancelled
            answer.until = -math.inf
        else:
            answer.until = began + (self._seconds(now - began) if callable(self._seconds) else self._seconds)
            answer.size = self._size_of(made.result())
        self._kept = {key: one for key, one in self._kept.items() if one.until > now}
        while len(self._kept) > 1 and (
            len(self._kept) > self._most or sum(one.size for one in self._kept.values()) > self._most_bytes
        ):
            del self._kept[next(iter(self._kept))]
