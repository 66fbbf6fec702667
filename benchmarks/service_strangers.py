"""Strangers who mean harm, as load on an orchestrator, for benchmarks/service.py.

    python -m benchmarks.service_strangers KIND

Each kind is one process. It reads a `Load` from stdin, says "connected" when it is in place, and works until it is
killed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from benchmarks.service_load import ADDRESSES, RETRY_SECONDS, Line, Load, begin, request_of
from muster.protocol.hashes import content_hash
from muster.protocol.receipts import upload_target
from muster.runtime.http_limits import HEADERS, QUERY_KEYS
from testbed.signing import QuickSigner

TRICKLE_SECONDS: Final = 1.0
HEADS: Final = 2_000
READERS: Final = 64
WORST: Final = 4
"""Reads that the readers take turns with."""
SIGNATURES: Final = 200
"""A second."""
STRANGERS: Final = 800
"""Connections of those who sign."""
HELD: Final = 64
HELD_BYTES: Final = 500_000
HELD_SHARE: Final = 0.4


async def hang_on(load: Load) -> None:
    """Send heads that never end, a byte a second."""
    connected = asyncio.Queue[None]()

    async def trickle(number: int) -> None:
        source = f"127.0.5.{1 + number % ADDRESSES}"
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", load.port, local_addr=(source, 0))
                connected.put_nowait(None)
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nA: ")
                while not reader.at_eof():
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(TRICKLE_SECONDS)
                writer.close()
            except OSError:
                await asyncio.sleep(TRICKLE_SECONDS)

    await _all(HEADS, trickle, connected)


async def read_worst(load: Load) -> None:
    """Ask an orchestrator for the slowest of its unsigned reads."""
    await _ask_worst(load, reads_of(load))


async def read_pages(load: Load) -> None:
    """Ask an explorer for the slowest of its pages and documents."""
    await _ask_worst(load, pages_of(load))


async def _ask_worst(load: Load, reads: Sequence[str]) -> None:
    """Ask for the slowest of some reads, again as soon as they are answered, each time with other numbers."""
    line = await Line.open(load.port, 0, 5)
    seconds: dict[str, float] = {}
    for read in reads:
        begun = time.monotonic()
        answer = await line.ask(request_of(load, "GET", read.format(n=random.randrange(1 << 16))))
        seconds[read] = (time.monotonic() - begun) * (answer.status == 200)
        line = line if line.is_free else await Line.open(load.port, 0, 5)
    worst = sorted(seconds, key=seconds.__getitem__)[-WORST:]

    def worst_read() -> bytes:
        return request_of(load, "GET", random.choice(worst).format(n=random.randrange(1 << 16)))

    await _ask_on(load, worst_read, {read: seconds[read] for read in worst})


async def _ask_on(load: Load, make: Callable[[], bytes], about: object = None) -> None:
    """Ask over many connections, again as soon as there is an answer."""
    connected = asyncio.Queue[None]()

    async def ask_on(number: int) -> None:
        line = await Line.open(load.port, number, 5)
        connected.put_nowait(None)
        while True:
            try:
                answer = await line.ask(make())
                await asyncio.sleep(RETRY_SECONDS if answer.status == 503 else 0)
            except OSError:
                line = await Line.open(load.port, number, 5)

    await _all(READERS, ask_on, connected, about)


async def scrape(load: Load) -> None:
    """Ask for the metrics and for the description of the service."""
    await _ask_on(load, lambda: request_of(load, "GET", random.choice(("/metrics", "/openapi.json", "/readyz"))))


async def read_signed(load: Load) -> None:
    """Be one node that signs reads of what has no end."""
    signer, run = QuickSigner(load.keys[0], load.domain), f"/v1/runs/{load.run}"
    reads = ("log?kind=verdict", "log?after={n}", "log?kind=step", "environments?after={n}")

    def read() -> bytes:
        target = f"{run}/{random.choice(reads)}".format(n=random.randrange(1 << 10))
        return request_of(load, "GET", target, signer=signer)

    await _ask_on(load, read)


async def ask_widely(load: Load) -> None:
    """Ask with as many query keys and headers as may be, and with as many as 45 kB hold."""
    wide = [wide_request(load, keys, headers) for keys, headers in ((QUERY_KEYS, HEADERS - 2), (9_000, 0), (0, 9_000))]
    await _ask_on(load, lambda: random.choice(wide))


def wide_request(load: Load, keys: int, headers: int) -> bytes:
    """Return a read with so many query keys, and so many headers besides the usual two."""
    query = "&".join(f"{number:x}=" for number in range(keys))
    whole = request_of(load, "GET", f"/v1/runs/{load.run}/demand?{query}")
    return whole[:-2] + b"".join(b"%x:\r\n" % number for number in range(headers)) + b"\r\n"


def reads_of(load: Load) -> list[str]:
    """Return an orchestrator's unsigned reads of which each may be the worst; `{n}` stands for a number of its own."""
    run, node = f"/v1/runs/{load.run}", QuickSigner(load.keys[0], load.domain).address
    log = ("", "?after={n}", "?kind=verdict", f"?node={node}", f"?node={node}&index={{n}}")
    rest = ("current", "environments", "environments?after={n}", "steps/{n}", "looks/latest", f"calls/{node}/{{n}}")
    return [run, *(f"{run}/log{one}" for one in log), *(f"{run}/{one}" for one in rest), "/", f"/v1/nodes/{node}"]


def pages_of(load: Load) -> list[str]:
    """Return the same of an explorer."""
    run, node = f"/v1/runs/{load.run}", QuickSigner(load.keys[0], load.domain).address
    names = "&".join(f"name={name}" for name in ("reward", "kl", "entropy", "loss", "completions/mean_length"))
    own = ("summary", "overview", "live", "metrics", "others", "earnings")
    wide = (
        "workers?order=accepted&offset={n}&limit=100",
        "workers?search=0x{n}",
        "validators?search=0x{n}",
        f"series?{names}&points=2000&first={{n}}",
        "feed?before={n}",
        "events?after={n}",
        "cases?before={n}",
        "checkpoints?before={n}",
        "rollouts?step={n}",
        f"nodes/{node}",
        f"nodes/{node}/commitments?before={{n}}",
        f"addresses/{node}",
    )
    pages = ("/", "/leaderboard?search=0x{n}", "/events", "/court", "/steps", "/rollouts", f"/nodes/{node}")
    return [*(f"{run}/{one}" for one in (*own, *wide)), *pages]


async def sign_in_vain(load: Load) -> None:
    """Send validly signed writes of keys that are no members', so many a second."""
    secrets = (hashlib.sha256(f"stranger {number}".encode()).hexdigest() for number in range(ADDRESSES))
    signers, connected = [QuickSigner(secret, load.domain) for secret in secrets], asyncio.Queue[None]()

    async def send(number: int) -> None:
        line, every = await Line.open(load.port, number, 5), STRANGERS / SIGNATURES
        connected.put_nowait(None)
        await asyncio.sleep(every * number / STRANGERS)
        while True:
            try:
                begun = time.monotonic()
                await line.ask(request_of(load, "POST", "/v1/verdicts", b"{}", signers[number % ADDRESSES]))
                await asyncio.sleep(begun + every - time.monotonic())
            except OSError:
                line = await Line.open(load.port, number, 5)

    await _all(STRANGERS, send, connected)


async def hold_uploads(load: Load) -> None:
    """Be members who send a part of a file, and then a byte now and then; again whenever they are cut off."""
    data, connected = os.urandom(HELD_BYTES), asyncio.Queue[None]()
    name = content_hash(data)

    async def hold(number: int) -> None:
        signer, index = QuickSigner(load.keys[number], load.domain), load.next_indices[number]
        target = "?".join(upload_target(name, load.run, index, content_hash(signer.address.encode())))
        source = f"127.0.5.{1 + number % ADDRESSES}"
        connected.put_nowait(None)
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", load.port, local_addr=(source, 0))
                whole = request_of(load, "PUT", target, data, signer, name=name)
                begun = len(whole) - int(len(data) * (1 - HELD_SHARE))
                writer.write(whole[:begun])
                answer = asyncio.create_task(reader.read(1))
                for place in range(begun, len(whole)):
                    await asyncio.wait([answer], timeout=TRICKLE_SECONDS)
                    if answer.done():
                        break
                    writer.write(whole[place : place + 1])
                    await writer.drain()
                writer.close()
            except OSError:
                pass
            await asyncio.sleep(RETRY_SECONDS)

    await _all(len(load.keys), hold, connected)


async def _all(
    count: int,
    act: Callable[[int], Coroutine[Any, Any, None]],
    connected: asyncio.Queue[None],
    about: object = None,
) -> None:
    """Let so many act until this is ended; say so once as many have connected."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(act(number))
        for _ in range(count):
            await connected.get()
        print("connected", json.dumps(about), flush=True)


KINDS: Final = {
    "reads": read_worst,
    "pages": read_pages,
    "heads": hang_on,
    "signatures": sign_in_vain,
    "uploads": hold_uploads,
    "scrapes": scrape,
    "signed": read_signed,
    "wide": ask_widely,
}


if __name__ == "__main__":
    begin(KINDS[sys.argv[1]])
