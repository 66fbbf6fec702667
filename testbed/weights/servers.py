"""Origins and relays: real processes, some in this process that a test can bend, and sources that misbehave."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

from muster.settings.schema import ShardcastSettings
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import Index
from muster.shardcast.serve.http_server import FileProblem, FileRequest, FileServer, Handler, OpenFile
from muster.shardcast.serve.origin import Origin
from muster.shardcast.serve.relay import Relay
from muster.shardcast.serve.routes import Stats, WeightRoutes
from testbed.http import connecting, get_json
from testbed.processes import Service, prefixed
from testbed.waiting import BOUND
from testbed.weights.checkpoints import RUN, SHARD
from testbed.weights.fetching import QUICK


class Server(Service):
    """`python -m muster.shardcast` with the settings given."""

    def __init__(self, folder: Path, port: int = 0, run: int = RUN, **settings: object) -> None:
        """Write its settings. settings: of the section `shardcast` unless they name another."""
        super().__init__("muster.shardcast", folder, {"run": run, **prefixed("shardcast", {"port": port} | settings)})

    def spawn(self) -> Self:
        self.json_log.unlink(missing_ok=True)
        return super().spawn()

    def is_ready(self) -> bool:
        return bool(self.logged("listening"))

    @property
    def port(self) -> int:
        """Return where it listens, or is to listen."""
        listening = self.logged("listening")
        return listening[-1]["port"] if listening else int(str(self.settings["shardcast.port"]))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def stats(self) -> dict[str, Any]:
        return get_json(self.url + "/v1/stats")

    def steps(self) -> list[int]:
        """Return the steps that it lists."""
        return [entry["step"] for entry in get_json(self.url + "/v1/weights/index.json")["versions"]]


class OddOrigin(Origin):
    """An origin in this process whose answers a test can bend; as a source it is a server like any other."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.opened: list[str] = []
        self.bend: Callable[[str, OpenFile], OpenFile] = lambda _, item: item
        self.advertise: Index | None = None
        self.hear: Callable[[FileRequest], FileRequest] = lambda request: request

    async def open(self, root: bytes, name: str) -> OpenFile:
        self.opened.append(name)
        return self.bend(name, await super().open(root, name))

    async def index(self, page: int | None = None) -> Index:
        return self.advertise or await super().index(page)


class Gate(OpenFile):
    """A file that gives its bytes up to `limit` only, until more is let through."""

    def __init__(self, item: OpenFile, limit: int) -> None:
        super().__init__(item.file, item.size)
        self.limit = limit
        self.moved = asyncio.Event()

    def let_through(self) -> None:
        self.limit = self.size
        self.moved.set()

    async def ready(self, start: int, stop: int) -> int:
        if start >= self.limit:
            await asyncio.wait_for(self.moved.wait(), BOUND)
        return min(stop, self.limit)


class Broken(OpenFile):
    """A file whose transfers break off in the middle."""

    async def ready(self, start: int, stop: int) -> int:
        if stop - start < SHARD:
            raise FileProblem(500, "broken")
        return start + SHARD // 2


@asynccontextmanager
async def _answering(handle: Handler) -> AsyncIterator[str]:
    """Serve files in this process; yields the URL."""
    server = FileServer(handle)
    port = await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.close()


@asynccontextmanager
async def odd_source(folder: Path) -> AsyncIterator[tuple[str, OddOrigin, Stats]]:
    """Yield a source in this process over `folder`: its URL, its shelf, its statistics."""
    shelf, stats = OddOrigin(folder), Stats()
    service = WeightRoutes("origin", shelf, stats)
    async with _answering(lambda request: service.handle(shelf.hear(request))) as url:
        yield url, shelf, stats


@asynccontextmanager
async def relaying(
    folder: Path, *upstreams: str, cache_bytes: int = 1 << 36, **changes: Any
) -> AsyncIterator[tuple[str, Stats]]:
    """Yield a relay in this process that fetches what it is asked for: its URL and its statistics."""
    stats, settings = Stats(), ShardcastSettings(dir=folder, upstreams=list(upstreams), cache_bytes=cache_bytes)
    quick: dict[str, Any] = {"bounds": QUICK, "hold_seconds": 2, "poll_seconds": 0.05, "follow": False}
    async with (
        Relay(settings, stats, **(quick | changes)) as relay,
        _answering(WeightRoutes("relay", relay, stats).handle) as url,
    ):
        yield url, stats


def silent_source() -> AbstractAsyncContextManager[str]:
    """Accept connections and never answer; yields the URL."""

    async def listen(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        pass

    return connecting(listen)


def endless_source(manifest: Manifest) -> AbstractAsyncContextManager[str]:
    """Serve the right manifest, and bytes without end for each shard; yields the URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if "manifest.json" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + manifest.canonical)
            writer.close()
            return
        size = next(file.size for file in manifest.files if file.name in head)
        (asked,) = re.findall(r"(?i)range: bytes=(\d+-\d+)", head)
        writer.write(f"HTTP/1.1 206 Partial\r\nContent-Range: bytes {asked}/{size}\r\n\r\n".encode())
        with suppress(ConnectionError):
            while True:
                writer.write(bytes(SHARD))
                await writer.drain()

    return connecting(answer)
