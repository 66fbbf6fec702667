"""What the members of a chaos run asked for and what was acknowledged: one append-only file each, a JSON line an event.

A line is written before a request is sent, and another once its fate is known: `ok` (a 2xx to a signed write, or a
receipt), `failed` (refused, so that it did not happen) or `unknown`. A process that is killed leaves a request without
its second line, which is unknown too, and perhaps half a line.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from muster.errors import RefusedError, RevertError, UnfundedError

State = Literal["invoked", "ok", "failed", "unknown"]
FAILED: Final = (RefusedError, RevertError, UnfundedError)
"""Errors which prove that a request changed nothing."""
GONE: Final = "gone"
"""The operation by which a worker reports that a commitment will not be made again."""


@dataclass(frozen=True)
class Event:
    """One line."""

    at: float
    """Wall-clock second."""
    by: str
    request: str
    """Names the request among those of `by`."""
    operation: str
    state: State
    what: Mapping[str, Any]
    """The same in all lines of a request, or more in the later one."""


class History:
    """The file of one member, which outlives its processes."""

    def __init__(self, path: Path, by: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._by, self._numbers = by, itertools.count()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if os.fstat(self._file).st_size:
            os.write(self._file, b"\n")  # after half a line that a killed process left

    @contextmanager
    def request(self, operation: str, **what: Any) -> Iterator[dict[str, Any]]:
        """Record a request around its call. What the block puts into the yielded mapping is recorded with its end."""
        number, more = f"{os.getpid()}-{next(self._numbers)}", dict[str, Any]()
        self._write(number, operation, "invoked", what)
        try:
            yield more
        except FAILED:
            self._write(number, operation, "failed", what)
            raise
        except BaseException:
            self._write(number, operation, "unknown", what)
            raise
        self._write(number, operation, "ok", what | more)

    def note(self, operation: str, **what: Any) -> None:
        """Record what is no request."""
        self._write(f"{os.getpid()}-{next(self._numbers)}", operation, "ok", what)

    def _write(self, request: str, operation: str, state: State, what: Mapping[str, Any]) -> None:
        line = {"at": round(time.time(), 3), "by": self._by, "request": request}
        os.write(self._file, json.dumps(line | {"operation": operation, "state": state, "what": what}).encode() + b"\n")


def read_history(paths: Iterable[Path]) -> list[Event]:
    """Return the events of all members by time, without the half lines that killed processes left."""
    found = []
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                found.append(Event(**json.loads(line)))
            except ValueError:
                continue
    return sorted(found, key=lambda event: event.at)
