"""What a server of weights offers: the interface that `origin` and `relay` have in common, and its statistics."""

from __future__ import annotations

import os
import stat
from collections import Counter as Tally
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from muster.runtime import telemetry
from muster.shardcast.format.manifest import MANIFEST_NAME, name_problem
from muster.shardcast.format.store import Index
from muster.shardcast.serve.http_server import FileProblem

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
    """Count since the start of the process."""

    served_bytes: int = 0
    """Of weights and manifests; other answers do not count."""
    fetched_bytes: int = 0
    """Of verified shards that came from upstream."""
    rejected: Tally[str] = field(default_factory=Tally)
    """How often each upstream was dropped for wrong bytes."""

    def count_served(self, count: int) -> None:
        self.served_bytes += count
        served_bytes.inc(count)

    def count_fetched(self, count: int) -> None:
        self.fetched_bytes += count
        fetched_bytes.inc(count)

    def count_rejected(self, url: str) -> None:
        self.rejected[url] += 1
        dropped_sources.inc()


@dataclass
class OpenFile:
    """A file of a version, open. This one is all there; a relay's may not be (`relay.IncomingFile`)."""

    file: BinaryIO
    size: int

    async def ready(self, start: int, stop: int) -> int:
        """See `http_server.Body`."""
        return stop


class VersionStore(Protocol):
    """Versions that can be served."""

    async def open(self, root: bytes, name: str) -> OpenFile:
        """Open a file of a version. Raises FileProblem: 404 when it is not there, 503 when it is not there yet."""
        ...

    async def index(self, page: int | None = None) -> Index:
        """Return what is here, or what can be had from here of the steps on a page, and all that makes these."""
        ...

    async def unready(self) -> list[str]:
        """Return why it cannot serve; nothing when it can."""
        ...


def open_file(version: Path, name: str) -> OpenFile:
    """Open one file of a version's folder, never following a link. Raises FileProblem 404.

    Not in a thread: a task that is cancelled meanwhile would lose an open file.
    """
    if name != MANIFEST_NAME and name_problem(name):
        raise FileProblem(404, "no version has a file of this name")
    try:
        descriptor = os.open(version / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise FileProblem(404, f"no such file: {error.strerror}", hint="see /v1/weights/index.json") from error
    file, status = os.fdopen(descriptor, "rb"), os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise FileProblem(404, "not a regular file", hint="see /v1/weights/index.json")
    return OpenFile(file, status.st_size)
