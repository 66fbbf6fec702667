"""The HTTP face of an origin or a relay: which path is what.

/v1/weights/index.json              what is here, newest step first
/v1/weights/0x<root>/manifest.json  the manifest of a version
/v1/weights/0x<root>/<file>         its files, with ranges
/v1/stats                           bytes served and fetched, versions, upstreams that lied
/healthz /readyz /version /metrics
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from muster import telemetry
from muster.constants import PROTOCOL_VERSION
from muster.shardcast.folder import INDEX_NAME
from muster.shardcast.manifest import MANIFEST_NAME
from muster.shardcast.reply import Problem, Reply, Request, json_reply, requested_range
from muster.shardcast.shelf import Shelf, Stats, open_connections, replies
from muster.shardcast.sources import WEIGHTS_PATH

_FILE_PATH: Final = re.compile(re.escape(WEIGHTS_PATH) + r"/0x([0-9a-f]{64})/([A-Za-z0-9_.-]{1,127})")
_FOR_EVER: Final = {"Accept-Ranges": "bytes", "Cache-Control": "public, max-age=31536000, immutable"}


class Service:
    """Answers requests from a shelf; `handle` is what a `server.FileServer` wants."""

    def __init__(self, role: str, shelf: Shelf, stats: Stats) -> None:
        self.role = role
        self.shelf = shelf
        self.stats = stats
        self.connections: Callable[[], int] = lambda: 0
        """How many are open, for the statistics."""
        self._routes: dict[str, Callable[[], Awaitable[Reply]]] = {
            f"{WEIGHTS_PATH}/{INDEX_NAME}": self._index,
            "/v1/stats": self._stats,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/version": self._version,
            "/metrics": self._metrics,
        }

    async def handle(self, request: Request) -> Reply:
        """The answer to a request. Raises Problem."""
        try:
            if (route := self._routes.get(request.path)) is not None:
                reply = await route()
            elif (match := _FILE_PATH.fullmatch(request.path)) is not None:
                reply = await self._file(request, bytes.fromhex(match[1]), match[2])
            else:
                raise Problem(404, "nothing is served under this path", hint=f"try {WEIGHTS_PATH}/{INDEX_NAME}")
        except Problem as problem:
            replies.labels(status=str(problem.status)).inc()
            raise
        replies.labels(status=str(reply.status)).inc()
        return reply

    async def _file(self, request: Request, root: bytes, name: str) -> Reply:
        item = await self.shelf.open(root, name)
        try:
            part = requested_range(request, item.size)
            start, stop = part or (0, item.size)
            if start < stop and request.method == "GET":
                await item.ready(start, stop)
        except BaseException:
            item.file.close()
            raise
        headers = {**_FOR_EVER, "Content-Type": "application/octet-stream"}
        if name == MANIFEST_NAME:
            headers["Content-Type"] = "application/json"
        if part:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{item.size}"
        return Reply(206 if part else 200, headers=headers, body=item, start=start, stop=stop, count=self.stats.served)

    async def _index(self) -> Reply:
        index = await self.shelf.index()
        headers = {"Content-Type": "application/json", "Cache-Control": "no-cache"}
        return Reply(200, index.model_dump_json().encode(), headers)

    async def _stats(self) -> Reply:
        index = await self.shelf.index()
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
        reasons = await self.shelf.unready()
        return json_reply({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def _version(self) -> Reply:
        return json_reply({"version": version("muster"), "protocol": PROTOCOL_VERSION, "role": self.role})

    async def _metrics(self) -> Reply:
        open_connections.set(self.connections())
        return Reply(200, generate_latest(telemetry.REGISTRY), {"Content-Type": CONTENT_TYPE_LATEST})
