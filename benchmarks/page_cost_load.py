"""One process of benchmarks/page_cost.py: says "ready", and for a line of stdin "done" and what it counted.

    python -m benchmarks.page_cost_load watchers PORT COUNT PATH    ready once all are connected; counts until told
    python -m benchmarks.page_cost_load workers SECONDS             is told a `Load`, and works so long

A watcher does what a browser with the overview open does: it holds the stream of the run's state, and fetches the page
anew some seconds after something changed, as refresh.js does. Workers do what workers with an engine do, at the pace
of their settings' defaults and faster: they ask for demand, for their own report, and upload files.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Final

from pydantic import BaseModel

from benchmarks.orchestrator_idle_load import HOST, done
from muster.chain.keys import Signer
from muster.clients.orchestrator import OrchestratorClient
from muster.errors import MusterError

ADDRESSES: Final = 50
"""Of this machine, among which watchers divide: people come from many."""
AT_ONCE: Final = 50
"""Connections opened at the same time."""
CYCLE_SECONDS: Final = 0.5
"""Between two rounds of a worker: several times as busy as one that generates for minutes."""
REPORT_EVERY: Final = 4
UPLOAD_EVERY: Final = 5
"""Rounds of a worker."""
UPLOAD_BYTES: Final = 20_000
ROOTS: Final = 16
"""Roots of one index: as many as an orchestrator takes."""
REFRESH: Final = re.compile(rb'data-refresh="([0-9.]+)"')


class Load(BaseModel):
    """What workers need to know. Keys come by stdin: other users can read arguments."""

    url: str
    chain_id: int
    registry: str
    run: int
    keys: list[str]
    next_indices: list[int]


class Watchers:
    """All watchers of one process, and what they have seen."""

    def __init__(self, port: int, path: str) -> None:
        self.port, self.path = port, path
        self.seen: Counter[str] = Counter()
        self.ready = asyncio.Event()

    async def watch(self, number: int, count: int, slots: asyncio.Semaphore) -> None:
        """Open the page, then follow the stream until cancelled; connect again when it ends."""
        source = f"127.0.1.{1 + number % ADDRESSES}"
        while True:
            try:
                async with slots:
                    page = await self._get("/", source)
                    found = REFRESH.search(page)
                    pause = float(found[1]) if found else 0.0
                    reader, writer = await self._connect(source)
                    writer.write(self._request(self.path, "text/event-stream"))
                    head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"HTTP/1.1 200 "):
                    raise ConnectionError(head.split(b"\r\n")[0].decode())
                self.seen["connected"] += 1
                if self.seen["connected"] == count:
                    self.ready.set()
                await self._follow(reader, pause, source)
            except (OSError, EOFError, ValueError) as error:
                self.seen["lost"] += 1
                print(f"watcher {number}: {error!r}", file=sys.stderr)
                await asyncio.sleep(1)

    async def _follow(self, reader: asyncio.StreamReader, pause: float, source: str) -> None:
        waiting: asyncio.Task[None] | None = None
        while line := await reader.readline():
            self.seen["bytes"] += len(line)
            if line.startswith(b"data:"):
                self.seen["messages"] += 1
                if pause and (waiting is None or waiting.done()):
                    waiting = asyncio.create_task(self._refresh(pause, source))
        raise ConnectionError("the stream ended")

    async def _refresh(self, pause: float, source: str) -> None:
        await asyncio.sleep(pause * random.uniform(0.75, 1.25))
        try:
            self.seen["page_bytes"] += len(await self._get("/", source))
            self.seen["pages"] += 1
        except (OSError, EOFError) as error:
            self.seen["lost"] += 1
            print(f"a page: {error!r}", file=sys.stderr)

    async def _get(self, path: str, source: str) -> bytes:
        reader, writer = await self._connect(source)
        writer.write(self._request(path, "text/html", "Connection: close\r\n"))
        try:
            answer = await reader.read()
        finally:
            writer.close()
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError(answer[:80].decode(errors="replace"))
        return answer

    async def _connect(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port, local_addr=(source, 0), limit=1 << 22)

    def _request(self, path: str, accept: str, more: str = "") -> bytes:
        # Without compression, so that this process has less to do: the orchestrator keeps both forms.
        return f"GET {path} HTTP/1.1\r\nHost: {HOST}:{self.port}\r\nAccept: {accept}\r\n{more}\r\n".encode()


async def watch_all(port: int, count: int, path: str) -> None:
    watchers, slots = Watchers(port, path), asyncio.Semaphore(AT_ONCE)
    tasks = [asyncio.create_task(watchers.watch(number, count, slots)) for number in range(count)]
    async with asyncio.timeout(120):
        await watchers.ready.wait()
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print("done", json.dumps(watchers.seen), flush=True)
        watchers.seen.clear()
    for task in tasks:
        task.cancel()


class Counted:
    """How long answers took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.refused: list[str] = []

    async def time(self, call: Awaitable[object]) -> None:
        begun = time.monotonic()
        try:
            await call
        except MusterError as error:
            self.refused.append(str(error))
        self.seconds.append(time.monotonic() - begun)


async def work_all(load: Load, seconds: float) -> None:
    counted = Counted()
    clients = [
        OrchestratorClient(
            load.url, Signer.from_key(key), chain_id=load.chain_id, registry=load.registry, timeout=30, attempts=1
        )
        for key in load.keys
    ]
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for client, index in zip(clients, load.next_indices, strict=True):
            group.create_task(work(client, load.run, index, counted, until))
    for client in clients:
        await client.close()
    done(counted.seconds, (50, 90, 99), refused=len(counted.refused), why=counted.refused[:3])


async def work(client: OrchestratorClient, run: int, index: int, counted: Counted, until: float) -> None:
    """Do what a worker does, until the time is up."""
    assert client.signer is not None
    uploaded, turn = 0, random.randrange(REPORT_EVERY * UPLOAD_EVERY)
    await asyncio.sleep(random.uniform(0, CYCLE_SECONDS))
    while time.monotonic() < until:
        await counted.time(client.demand(run))
        if turn % REPORT_EVERY == 0:
            await counted.time(client.node(client.signer.address))
        if turn % UPLOAD_EVERY == 0:
            data, root = os.urandom(UPLOAD_BYTES), os.urandom(32)
            await counted.time(client.put_file(data, run, index + uploaded // ROOTS, root))
            uploaded += 1
        turn += 1
        await asyncio.sleep(CYCLE_SECONDS * random.uniform(0.75, 1.25))


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    role, *rest = sys.argv[1:]
    if role == "watchers":
        port, count, path = rest
        asyncio.run(watch_all(int(port), int(count), path))
    else:
        print("ready", flush=True)
        asyncio.run(work_all(Load.model_validate_json(sys.stdin.readline()), float(rest[0])))
        sys.stdin.read()


if __name__ == "__main__":
    main()
