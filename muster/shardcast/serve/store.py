"""What a server of weights offers: the interface that `origin` and `relay` have in common, and its statistics."""

from __future__ import annotations

import os
import stat
from collections import Counter as Tally
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from muster import telemetry
from muster.shardcast.folder import Index
from muster.shardcast.manifest import MANIFEST_NAME, name_problem
from muster.shardcast.reply import Problem

RETRY_SOON: Final = {"Retry-After": "1"}

served_bytes = telemetry.counter("shardcast_served_bytes", "Bytes of weights and manifests sent")
fetched_bytes = telemetry.counter("shardcast_fetched_bytes", "Bytes of verified shards fetched from upstream")
replies = telemetry.counter("shardcast_replies", "Answers by HTTP status", ("status",))
dropped_sources = telemetry.counter(
    "shardcast_dropped_sources", "Upstreams that sent something else than the root says"
)
open_connections = telemetry.gauge("shardcast_connections", "Connections open now")


@dataclass
class Stats:
    """Since the start of the process."""

    served_bytes: int = 0
    """Of weights and manifests; other answers do not count."""
    fetched_bytes: int = 0
    """Of verified shards that came from upstream."""
    rejected: Tally[str] = field(default_factory=Tally)
    """How often each upstream was dropped for a lie."""

    def served(self, count: int) -> None:
        self.served_bytes += count
        served_bytes.inc(count)

    def fetched(self, count: int) -> None:
        self.fetched_bytes += count
        fetched_bytes.inc(count)

    def lied(self, url: str) -> None:
        self.rejected[url] += 1
        dropped_sources.inc()


@dataclass
class Item:
    """A file of a version, open. This one is all there; a relay's may not be (`relay.Arriving`)."""

    file: BinaryIO
    size: int

    async def ready(self, start: int, stop: int) -> int:
        """See `server.Body`."""
        return stop


class Shelf(Protocol):
    """Versions that can be served."""

    async def open(self, root: bytes, name: str) -> Item:
        """A file of a version. Raises Problem: 404 when it is not there, 503 when it is not there yet."""
        ...

    async def index(self) -> Index:
        """What is here."""
        ...

    async def unready(self) -> list[str]:
        """Why it cannot serve; empty when it can."""
        ...


def is_servable(name: str) -> bool:
    """Whether a version can have a file of this name: anything else is not looked for on the disk."""
    return name == MANIFEST_NAME or not name_problem(name)


def open_item(version: Path, name: str) -> Item:
    """Open one file of a version's folder, never following a link. Raises Problem 404.

    Not in a thread: a task that is cancelled meanwhile would lose an open file.
    """
    if not is_servable(name):
        raise Problem(404, "no version has a file of this name")
    try:
        return Item(*_open(version / name))
    except OSError as error:
        raise Problem(404, f"no such file: {error.strerror}", hint="see /v1/weights/index.json") from error


def _open(path: Path) -> tuple[BinaryIO, int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise FileNotFoundError(2, "not a regular file")
    return file, status.st_size
