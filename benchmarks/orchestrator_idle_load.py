"""One process of benchmarks/orchestrator_idle.py: says "ready" once all are connected.

python -m benchmarks.orchestrator_idle_load workers PORT COUNT PATH SECONDS    told to go; "done", and what it counted
python -m benchmarks.orchestrator_idle_load strangers PORT COUNT               until it is ended
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import sys
from collections.abc import Sequence
from typing import Final

HOST: Final = "127.0.0.1"
ELSEWHERE: Final = "127.0.0.2"
POLL_SECONDS: Final = 2.0
"""The default of worker.poll_seconds."""
TRICKLE_SECONDS: Final = 1.0
AT_ONCE: Final = 200
"""Connections opened at the same time."""
LENGTH: Final = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)


class Worker(asyncio.Protocol):
    """A worker that asks, waits for the answer, and asks again after POLL_SECONDS."""

    def __init__(self, request: bytes, count: Count) -> None:
        self._request = request
        self._count = count
        self._received = b""
        self._asked = 0.0
        self.over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def ask(self) -> None:
        if not self.over and not self._transport.is_closing():
            self._asked = self._loop.time()
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not end or (length is not None and len(body) < int(length[1])):
            return
        self._received = b""
        self._count.seconds.append(self._loop.time() - self._asked)
        self._count.refused += not head.startswith(b"HTTP/1.1 200 ")
        self._asked = 0.0
        self._loop.call_later(POLL_SECONDS, self.ask)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over:
            self._count.refused += 1

    def finish(self) -> None:
        """Count an answer that is still awaited as one that took until now."""
        self.over = True
        if self._asked:
            self._count.seconds.append(self._loop.time() - self._asked)


class Count:
    """What all workers have seen."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.refused = 0


async def work(port: int, count: int, path: str, seconds: float) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n\r\n".encode()
    counted, workers = Count(), []
    loop, slots = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)

    async def connect() -> None:
        async with slots:
            _, worker = await loop.create_connection(lambda: Worker(request, counted), HOST, port)
            workers.append(worker)
            loop.call_later(random.uniform(0, POLL_SECONDS), worker.ask)

    await asyncio.gather(*(connect() for _ in range(count)))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.sleep(seconds)
    for worker in workers:
        worker.finish()
    done(counted.seconds, (50, 99), refused=counted.refused)


def done(seconds: list[float], percents: Sequence[int], **more: object) -> None:
    """Say how long answers took: these percentiles, and the slowest."""
    taken = sorted(seconds)
    quantiles = {f"p{percent}": taken[int(len(taken) * percent / 100)] for percent in percents}
    print("done", json.dumps({"answers": len(taken), **quantiles, "slowest": taken[-1], **more}), flush=True)


async def trickle(port: int, count: int) -> None:
    connected, ready = 0, asyncio.Event()

    async def hang_on(source: str) -> None:
        nonlocal connected
        while True:
            try:
                reader, writer = await asyncio.open_connection(HOST, port, local_addr=(source, 0))
            except OSError:
                await asyncio.sleep(TRICKLE_SECONDS)
                continue
            connected += 1
            if connected == count:
                ready.set()
            try:
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nA: ")
                while not reader.at_eof():
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(TRICKLE_SECONDS)
            except ConnectionError:
                pass
            finally:
                writer.close()

    async with asyncio.TaskGroup() as group:
        for i in range(count):
            group.create_task(hang_on(HOST if i % 2 else ELSEWHERE))
        if count:
            await ready.wait()
        print("ready", flush=True)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    role, port, count, *rest = sys.argv[1:]
    if role == "workers":
        asyncio.run(work(int(port), int(count), rest[0], float(rest[1])))
        sys.stdin.read()
    else:
        asyncio.run(trickle(int(port), int(count)))


if __name__ == "__main__":
    main()
