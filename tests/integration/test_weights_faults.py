"""What goes wrong on the way of weights, with real processes. The client ends with every byte right."""

from __future__ import annotations

import asyncio
import shutil
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from muster.shardcast.fetch.fetch import FetchedVersion
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.serve.http_server import OpenFile
from testbed.http import connecting
from testbed.processes import ended
from testbed.waiting import until
from testbed.weights.checkpoints import contents, publish_step
from testbed.weights.fetching import get
from testbed.weights.servers import Gate, Server, odd_source

MIB = 1 << 20
MODEL_BYTES = 12 * MIB + 5
STEP = 7
SLOWLY = MIB // 2
"""Bytes a second: at this rate all of it takes 24 seconds, in which a server is killed."""


@pytest.fixture(scope="module")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yield a folder in which a checkpoint of twelve MiB is published."""
    return tmp_path_factory.mktemp("run_fixture")


@pytest.fixture(scope="module")
def manifest(run_fixture: Path) -> Manifest:
    return publish_step(run_fixture, STEP, model_bytes=MODEL_BYTES)


@pytest.fixture(scope="module")
def origin(run_fixture: Path, manifest: Manifest) -> Iterator[Server]:
    with Server(run_fixture / "origin", dir=run_fixture / "published") as server:
        yield server


def assert_whole(fetched: FetchedVersion, run_fixture: Path) -> None:
    assert contents(fetched.path) == contents(run_fixture / f"checkpoint-{STEP}")
    assert fetched.bad_sources == ()


async def served_something(server: Server) -> None:
    """Return once a server has sent a part of the weights."""
    await until(lambda: server.stats["served_bytes"] >= SLOWLY // 2)


async def test_a_relay_killed_in_the_middle_of_a_shard(
    run_fixture: Path, manifest: Manifest, origin: Server, tmp_path: Path
) -> None:
    """The other source sends no weights until then."""
    relay = Server(tmp_path / "relay", role="relay", dir=tmp_path / "held", upstreams=[origin.url], upload_rate=SLOWLY)
    gates: list[Gate] = []

    def hold(name: str, item: OpenFile) -> OpenFile:
        if name != "model.safetensors" or not relay.is_running:
            return item
        gates.append(Gate(item, 0))
        return gates[-1]

    with ended(relay):
        await asyncio.to_thread(relay.start)
        async with odd_source(run_fixture / "published") as (other, shelf, _):
            shelf.bend = hold
            fetching = asyncio.create_task(get(manifest, tmp_path / "in", relay.url, other))
            await served_something(relay)
            assert not fetching.done()
            await asyncio.to_thread(relay.kill)
            for gate in gates:
                gate.let_through()
            fetched = await fetching
    assert_whole(fetched, run_fixture)
    assert fetched.sources[0].failures > 0
    assert fetched.sources[0].bytes > 0, "what it had delivered counts"


async def test_an_origin_restarted_on_the_way(run_fixture: Path, manifest: Manifest, tmp_path: Path) -> None:
    slow = Server(tmp_path / "origin", dir=run_fixture / "published", upload_rate=SLOWLY)
    with slow:
        fetching = asyncio.create_task(get(manifest, tmp_path / "in", slow.url))
        await served_something(slow)
        slow.kill()
        again = Server(tmp_path / "origin", slow.port, dir=run_fixture / "published")
        with again:
            fetched = await fetching
    assert_whole(fetched, run_fixture)
    assert fetched.sources[0].failures > 0


async def test_a_slow_relay_loses_its_share_and_not_the_transfer(
    run_fixture: Path, manifest: Manifest, origin: Server, tmp_path: Path
) -> None:
    with Server(tmp_path / "slow", dir=run_fixture / "published", upload_rate=MIB // 8) as slow:
        fetched = await get(manifest, tmp_path / "in", slow.url, origin.url)
    assert_whole(fetched, run_fixture)
    assert fetched.sources[0].bytes < manifest.total_bytes / 3


async def test_a_source_that_serves_an_old_version(run_fixture: Path, origin: Server, tmp_path: Path) -> None:
    old = publish_step(tmp_path, STEP, model_bytes=MODEL_BYTES, seed=1)
    manifest = publish_step(tmp_path, STEP, model_bytes=MODEL_BYTES, seed=2)
    mixed = tmp_path / "mixed"
    shutil.copytree(tmp_path / "published", mixed)
    shutil.copy(mixed / old.id / "model.safetensors", mixed / manifest.id / "model.safetensors")
    served = tmp_path / "published"
    with Server(tmp_path / "stale", dir=mixed) as stale, Server(tmp_path / "right", dir=served) as right:
        fetched = await get(manifest, tmp_path / "in", stale.url, right.url)
    assert contents(fetched.path) == contents(tmp_path / f"checkpoint-{STEP}")
    assert [liar.url for liar in fetched.bad_sources] == [stale.url]
    assert fetched.bad_sources[0].bytes < MIB, "dropped by its first shard, but for the small files, which are the same"


@asynccontextmanager
async def resetting(url: str, share: int) -> AsyncIterator[str]:
    """Return a proxy of a source that resets every `share`-th connection after 40 KB."""
    host, port = url.removeprefix("http://").split(":")
    count = 0

    carrying: set[asyncio.Task[None]] = set()

    async def ask(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            out.write(data)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        doomed = count % share == 0
        there, out = await asyncio.open_connection(host, int(port))
        asking = asyncio.create_task(ask(reader, out))
        left = 40_000 if doomed else 400_000  # an honest connection ends too, so that there are many
        try:
            with suppress(ConnectionError):
                while left > 0 and (data := await there.read(min(left, 65_536))):
                    writer.write(data)
                    await writer.drain()
                    left -= len(data)
        finally:
            asking.cancel()
            out.transport.abort()
            if doomed:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            else:
                writer.close()
            for each in (writer, out):
                with suppress(ConnectionError):
                    await each.wait_closed()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(carry(reader, writer))
        carrying.add(task)
        await asyncio.wait([task])

    try:
        async with connecting(accept) as way:
            yield way
        assert count >= share, "nothing was reset"
    finally:
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)


async def test_one_connection_in_twenty_is_reset(
    run_fixture: Path, manifest: Manifest, origin: Server, tmp_path: Path
) -> None:
    async with resetting(origin.url, 20) as way:
        fetched = await get(manifest, tmp_path / "in", way)
    assert_whole(fetched, run_fixture)
    assert fetched.sources[0].failures > 0


@pytest.mark.parametrize("days", [-400, 400])
async def test_a_clock_that_is_wrong_by_a_year(
    days: int, run_fixture: Path, manifest: Manifest, origin: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + days * 86_400)
    assert_whole(await get(manifest, tmp_path / "in", origin.url), run_fixture)
