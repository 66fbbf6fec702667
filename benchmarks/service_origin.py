"""An origin of weights whose connections one address holds: what others wait, for benchmarks/service.py.

    python -m benchmarks.service_origin PORT TARGET

is the address: CONNECTIONS that each ask for a whole file and read it as slowly as they may; who is cut comes back. A
node of another address asks for the index and a part of the file, over a new connection each time; a third asks how the
origin is.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.report import Figure, figure, none
from benchmarks.watched import expect, module, started
from testbed.weights.checkpoints import publish_step
from testbed.weights.servers import Server

MODEL_BYTES: Final = 64 << 20
CONNECTIONS: Final = 256
"""As many as an origin takes by default."""
SLOW_BYTES: Final = 64 << 10
"""A second: nearly as slow as an origin allows."""
PART_BYTES: Final = 1 << 20
PAUSE_SECONDS: Final = 0.1
STRANGER, NODE, MONITOR = "127.0.5.1", "127.0.3.1", "127.0.4.1"
ALLOWED_SECONDS: Final = 0.25


@dataclass
class Seen:
    """What node and monitor saw: seconds of answers, and how many were refused."""

    node: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def p99(self) -> float:
        return sorted(self.node)[int(len(self.node) * 0.99)]


async def read_slowly(port: int, target: str) -> None:
    """Hold all connections, for ever."""
    held = asyncio.Semaphore(0)

    async def hold() -> None:
        loop, seen = asyncio.get_running_loop(), False
        while True:
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BYTES)
                client.setblocking(False)
                client.bind((STRANGER, 0))
                try:
                    await loop.sock_connect(client, ("127.0.0.1", port))
                    await loop.sock_sendall(client, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    while await loop.sock_recv(client, SLOW_BYTES):
                        if not seen:
                            held.release()
                            seen = True
                        await asyncio.sleep(1)
                except OSError:
                    await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(hold())
        for _ in range(CONNECTIONS):
            await held.acquire()
        print("connected", flush=True)


async def watch(port: int, target: str, seconds: float) -> Seen:
    """Be node and monitor for so long."""
    seen, ends = Seen(), time.monotonic() + seconds

    async def ask(source: str, path: str, answers: list[float], *lines: str) -> None:
        begun = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        writer.write("\r\n".join([f"GET {path} HTTP/1.1", "Host: x", "Connection: close", *lines, "", ""]).encode())
        answer = await reader.read(-1)
        seen.refused += answer[9:12] not in (b"200", b"206")
        answers.append(time.monotonic() - begun)
        writer.close()

    while time.monotonic() < ends:
        await ask(NODE, "/v1/weights/index.json", seen.node)
        await ask(NODE, target, seen.node, f"Range: bytes=0-{PART_BYTES - 1}")
        for path in ("/healthz", "/readyz"):
            await ask(MONITOR, path, seen.health)
        await asyncio.sleep(PAUSE_SECONDS)
    return seen


def hostile_origin(seconds: float) -> list[Figure]:
    """Measure node and monitor with and without the address that holds all connections."""
    with tempfile.TemporaryDirectory(prefix="muster-origin-") as name:
        folder = Path(name)
        manifest = publish_step(folder, 1, model_bytes=MODEL_BYTES)
        target = f"/v1/weights/{manifest.id}/model.safetensors"
        with Server(folder / "origin", dir=folder / "published") as origin:
            without = asyncio.run(watch(origin.port, target, seconds))
            with started(module("benchmarks.service_origin", origin.port, target)) as strangers:
                expect(strangers, "connected")
                beside = asyncio.run(watch(origin.port, target, seconds))
    return figures(beside, without)


def figures(beside: Seen, without: Seen) -> list[Figure]:
    """Return the figures of what was seen beside strangers and without."""
    allowed = max(2 * without.p99, ALLOWED_SECONDS)
    more = {"node": median(beside.node), "requests": len(beside.node)}
    ratio, unit = beside.p99 / allowed, "s, p99 of a node"
    p99 = {"limit": without.p99, "ratio": ratio, "target": 1.0, "unit": unit, "at_most": True}
    return [
        figure("hostile_origin", beside.p99, **p99, **more),
        none("hostile_origin_503", beside.refused + without.refused, "refusals"),
        figure("hostile_origin_health", beside.health, ratio=max, target=1.0, unit="s", at_most=True),
    ]


if __name__ == "__main__":
    print("ready", flush=True)
    asyncio.run(read_slowly(int(sys.argv[1]), sys.argv[2]))
