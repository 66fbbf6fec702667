"""Answer the requests to an origin or a relay, by their paths.

/v1/weights/index.json              what is here, newest step first
/v1/weights/index-<number>.json     what can be had from here of the steps on one page, and what makes these
/v1/weights/0x<root>/manifest.json  the manifest of a version
/v1/weights/0x<root>/<file>         its files, with ranges
/v1/stats                           bytes served and fetched, versions, upstreams dropped for wrong bytes
/healthz /readyz /version /metrics
"""

from __future__ import annotations

import re
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from typing import Final, Protocol

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from muster.constants import PROTOCOL_VERSION
from muster.runtime import telemetry
from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.sources import WEIGHTS_PATH
from muster.shardcast.format.manifest import MANIFEST_NAME
from muster.shardcast.format.store import INDEX_NAME, Index
from muster.shardcast.serve.http_server import (
    FileProblem,
    FileRequest,
    FileServer,
    OpenFile,
    Reply,
    json_reply,
    requested_range,
)

_FILE_PATH: Final = re.compile(re.escape(WEIGHTS_PATH) + r"/0x([0-9a-f]{64})/([A-Za-z0-9_.-]{1,127})")
_INDEX_PATH: Final = re.compile(re.escape(WEIGHTS_PATH) + r"/index(?:-([0-9]{1,8}))?\.json")
_IMMUTABLE: Final = {"Accept-Ranges": "bytes", "Cache-Control": "public, max-age=31536000, immutable"}

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


class WeightRoutes:
    """Answers requests from a store; `handle` is the handler of a `FileServer`."""

    def __init__(self, role: str, store: VersionStore, stats: Stats) -> None:
        self.role = role
        self.store = store
        self.stats = stats
        self.connections: Callable[[], int] = lambda: 0
        """Returns how many are open, for the statistics."""
        self._routes: dict[str, Callable[[], Awaitable[Reply]]] = {
            "/v1/stats": self._stats,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/version": self._version,
            "/metrics": self._metrics,
        }

    async def handle(self, request: FileRequest) -> Reply:
        """Answer a request. Raises FileProblem."""
        try:
            if (route := self._routes.get(request.path)) is not None:
                reply = await route()
            elif (match := _FILE_PATH.fullmatch(request.path)) is not None:
                reply = await self._file(request, bytes.fromhex(match[1]), match[2])
            elif (match := _INDEX_PATH.fullmatch(request.path)) is not None:
                reply = await self._index(match[1])
            else:
                raise FileProblem(404, "nothing is served under this path", hint=f"try {WEIGHTS_PATH}/{INDEX_NAME}")
        except FileProblem as problem:
            replies.labels(status=str(problem.status)).inc()
            raise
        replies.labels(status=str(reply.status)).inc()
        return reply

    async def _file(self, request: FileRequest, root: bytes, name: str) -> Reply:
        opened = await self.store.open(root, name)
        try:
            asked = requested_range(request, opened.size)
            start, stop = asked or (0, opened.size)
            if start < stop and request.method == "GET":
                await opened.ready(start, stop)
        except BaseException:
            opened.file.close()
            raise
        kind = "application/json" if name == MANIFEST_NAME else "application/octet-stream"
        headers = {**_IMMUTABLE, "Content-Type": kind}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{opened.size}"
        status, count = 206 if asked else 200, self.stats.count_served
        return Reply(status, headers=headers, body=opened, start=start, stop=stop, count=count)

    async def _index(self, page: str | None) -> Reply:
        index = await self.store.index(None if page is None else int(page))
        headers = {"Content-Type": "application/json", "Cache-Control": "no-cache"}
        return Reply(200, index.model_dump_json().encode(), headers)

    async def _stats(self) -> Reply:
        index = await self.store.index()
        return json_reply(
            {
                "role": self.role,
                "served_bytes": self.stats.served_bytes,
                "fetched_bytes": self.stats.fetched_bytes,
                "rejected_sources": dict(self.stats.rejected),
                "connections": self.connections(),
                "versions": [entry.model_dump() for entry in index.versions],
            }
        )

    async def _healthz(self) -> Reply:
        return json_reply({"status": "alive"})

    async def _readyz(self) -> Reply:
        reasons = await self.store.unready()
        return json_reply({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def _version(self) -> Reply:
        return json_reply({"version": version("muster"), "protocol": PROTOCOL_VERSION, "role": self.role})

    async def _metrics(self) -> Reply:
        open_connections.set(self.connections())
        return Reply(200, _metrics_of(int(time.monotonic())), {"Content-Type": CONTENT_TYPE_LATEST})


@lru_cache(maxsize=1)
def _metrics_of(_second: int) -> bytes:
    """Return what Prometheus reads, made once in a second."""
    return generate_latest(telemetry.REGISTRY)


@asynccontextmanager
async def listening(role: str, store: VersionStore, stats: Stats, settings: ShardcastSettings) -> AsyncIterator[int]:
    """Serve a store at the settings' address, within their bounds; yields the port.

    Raises ConfigError when the port is taken.
    """
    routes = WeightRoutes(role, store, stats)
    server = FileServer(routes.handle, connections=settings.connections, rate=settings.upload_rate)
    routes.connections = lambda: server.connections
    port = await server.start(settings.host, settings.port)
    try:
        yield port
    finally:
        await server.close()
