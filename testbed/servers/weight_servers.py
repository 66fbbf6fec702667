"""Origins and relays as real processes, relays that misbehave, and small checkpoints to hand round."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.fetch import Wanted, fetch_version
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import Index
from muster.shardcast.publish import publish
from muster.shardcast.serve.http_server import FileProblem, FileRequest, FileServer, ServerLimits
from muster.shardcast.serve.origin import Origin
from muster.shardcast.serve.relay import Anchor, Relay
from muster.shardcast.serve.routes import WeightRoutes
from muster.shardcast.serve.store import OpenFile, Stats
from testbed.processes import Stoppable
from testbed.waiting import BOUND, wait_until

RUN = 1
SHARD = 64 * 1024
QUICK = ShardcastSettings(fetch_seconds=BOUND, give_up_seconds=120, stall_seconds=30)
"""Bounds in which a machine full of tests still does everything."""

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def publish_step(
    folder: Path, step: int, *, model_bytes: int = 20 * SHARD + 7, run: int = RUN, seed: int = 0
) -> Manifest:
    """Publish a checkpoint of noise, different for each step and seed, into `folder`/published."""
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "model.safetensors").write_bytes(random.Random(f"{step}/{seed}").randbytes(model_bytes))
    (checkpoint / "config.json").write_text(json.dumps({"step": step}))
    (checkpoint / "tokenizer.json").write_text("{}")
    return publish(checkpoint, folder / "published", run, step, shard_bytes=SHARD)


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a flat folder by name, without the manifest."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def toml(values: dict[str, object]) -> str:
    """Dotted keys as TOML; JSON's strings, numbers, booleans and lists are TOML's too."""
    texts = {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in texts.items())


class Server(Stoppable):
    """`python -m muster.shardcast` with the settings given, in a session of its own."""

    def __init__(self, folder: Path, port: int = 0, run: int = RUN, **settings: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log.jsonl"
        self.config = folder / "muster.toml"
        chosen = {"poll_seconds": 0.05, "hold_seconds": 2, "stall_seconds": 30, "give_up_seconds": 30} | settings
        self.config.write_text(
            toml({"run": run, "log.file": self.log, "shardcast.port": port})
            + toml({key if "." in key else f"shardcast.{key}": value for key, value in chosen.items()})
        )
        self.port = port

    def spawn(self) -> Self:
        """Start it, without waiting for anything."""
        self.log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "muster.shardcast", "--config", str(self.config)]
        self.launch(command, self.config.parent / "said.log")
        return self

    def start(self) -> Self:
        """Start it and wait until it listens."""
        self.spawn()
        self.wait_until(lambda: bool(self.logged("listening")), "it listens")
        self.port = self.logged("listening")[0]["port"]
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of one event."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def get(self, path: str) -> Any:
        with _open(self.url + path, timeout=BOUND) as reply:
            return json.loads(reply.read())

    @property
    def stats(self) -> dict[str, Any]:
        return self.get("/v1/stats")

    def steps(self) -> list[int]:
        """Return the steps that it lists."""
        return [entry["step"] for entry in self.get("/v1/weights/index.json")["versions"]]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; AssertionError when it does not come true, or the process ends."""
        assert self.process is not None
        ended = self.process.poll
        wait_until(lambda: condition() or ended() is not None, what)
        assert ended() is None, f"ended before {what}: {self.stop()}"


@contextmanager
def ended(*servers: Server) -> Iterator[None]:
    """End these servers at the end, however it comes."""
    try:
        yield
    finally:
        for server in servers:
            if server.process is not None and server.process.poll() is None:
                server.stop()


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
async def odd_source(folder: Path) -> AsyncIterator[tuple[str, OddOrigin, Stats]]:
    """Yield a source in this process over `folder`: its URL, its shelf, its statistics."""
    shelf, stats = OddOrigin(folder), Stats()
    service = WeightRoutes("origin", shelf, stats)
    server = FileServer(lambda request: service.handle(shelf.hear(request)), ServerLimits())
    port = await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}", shelf, stats
    finally:
        await server.close()


def relay_settings(folder: Path, *upstreams: str, **changes: Any) -> ShardcastSettings:
    """Return the settings of a relay with the bounds of QUICK that fetches what it is asked for."""
    bounds = QUICK.model_dump(exclude_unset=True)
    quick = {"hold_seconds": 2, "poll_seconds": 0.05, "follow": False}
    return ShardcastSettings.model_validate({"dir": folder, "upstreams": upstreams, **bounds, **quick, **changes})


@asynccontextmanager
async def relaying(
    folder: Path, *upstreams: str, run: int | None = None, anchor: Anchor | None = None, **settings: Any
) -> AsyncIterator[tuple[str, Stats]]:
    """Yield a relay in this process: its URL and its statistics."""
    stats = Stats()
    async with Relay(relay_settings(folder, *upstreams, **settings), stats, run=run, anchor=anchor) as relay:
        server = FileServer(WeightRoutes("relay", relay, stats).handle, ServerLimits())
        port = await server.start("127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{port}", stats
        finally:
            await server.close()


def silent_source() -> AbstractAsyncContextManager[str]:
    """Accept connections and never answer; yields the URL."""

    async def listen(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        pass

    return _raw_source(listen)


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

    return _raw_source(answer)


@asynccontextmanager
async def _raw_source(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    writers: list[asyncio.StreamWriter] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await talk(reader, writer)

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


FETCHER = """
import asyncio, json, sys
from pathlib import Path
from muster.runtime import telemetry
from muster.errors import MusterError
from muster.shardcast.fetch.fetch import Wanted, fetch_version
from muster.settings.schema import ShardcastSettings
telemetry.configure("fetcher")
root, step, dest, sources = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
try:
    settings = ShardcastSettings(fetch_seconds=300)
    found = asyncio.run(fetch_version(Wanted(bytes.fromhex(root[2:]), 1, step, sources, dest, settings)))
except MusterError as error:
    print(f"{type(error).__name__}: {error} ({error.hint})", file=sys.stderr)
    sys.exit(error.exit_code)
print(json.dumps({"found": found.found_bytes, "fetched": found.fetched_bytes, "path": str(found.path)}))
"""


def fetcher(manifest: Manifest, dest: Path, *sources: str, before: str = "", **environment: str) -> subprocess.Popen:
    """Return a process that fetches a version, prints what it found and fetched, and ends."""
    command = [sys.executable, "-c", before + FETCHER, manifest.id, str(manifest.step), str(dest), *sources]
    return subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


async def get(manifest: Manifest, dest: Path, *sources: str, **changes: float) -> Path:
    """Fetch a version within QUICK bounds, some of them changed."""
    settings = QUICK.model_copy(update=changes)
    fetched = await fetch_version(Wanted(manifest.root, RUN, manifest.step, sources, dest, settings))
    return fetched.path
