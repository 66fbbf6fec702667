"""Relays serve verified shards while more arrive, within bounds, and resume after a restart."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.contracts import runs
from muster.errors import MismatchError, UnreachableError
from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.download import Progress
from muster.shardcast.fetch.fetch import FetchRequest, fetch_version
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import Index, IndexEntry, incomplete, verify_folder, versions
from muster.shardcast.serve.http_server import OpenFile
from muster.shardcast.serve.relay import Relay
from muster.shardcast.serve.routes import Stats
from testbed.chain.anvil import free_port
from testbed.processes import ended
from testbed.runs.run_fixture import RunFixture
from testbed.waiting import until
from testbed.weights.checkpoints import RUN, contents, publish_step
from testbed.weights.fetching import QUICK, fetcher, get
from testbed.weights.servers import Gate, Server, odd_source, relaying


@pytest.fixture(scope="module")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yield a folder in which step 3 is published."""
    return tmp_path_factory.mktemp("run_fixture")


@pytest.fixture(scope="module")
def manifest(run_fixture: Path) -> Manifest:
    return publish_step(run_fixture, 3)


@pytest.fixture
async def origin(run_fixture: Path, manifest: Manifest) -> AsyncIterator[str]:
    """Yield the URL of an origin, in this process, that serves it."""
    async with odd_source(run_fixture / "published") as (url, _, _):
        yield url


@pytest.fixture
def all_lies(run_fixture: Path, manifest: Manifest, tmp_path: Path) -> Path:
    """Return the published folder with the right manifest and zeros for everything else."""
    folder = shutil.copytree(run_fixture / "published", tmp_path / "all-lies")
    for file in manifest.files:
        (folder / manifest.id / file.name).write_bytes(bytes(file.size))
    return folder


async def test_a_checkpoint_goes_through_a_relay_to_four_clients(
    run_fixture: Path, manifest: Manifest, tmp_path: Path
) -> None:
    origin = Server(tmp_path / "origin", port=free_port(), dir=run_fixture / "published")
    relay = Server(tmp_path / "relay", role="relay", dir=tmp_path / "relayed", upstreams=[origin.url])
    with ended(origin, relay):
        await asyncio.gather(asyncio.to_thread(origin.start), asyncio.to_thread(relay.start))
        found = await asyncio.gather(*(get(manifest, tmp_path / f"client-{i}", relay.url) for i in range(4)))
        stats, served = relay.stats, origin.stats["served_bytes"]
        assert relay.steps() == [3]
    for path in (fetched.path for fetched in found):
        assert contents(path) == contents(run_fixture / "checkpoint-3")
        assert verify_folder(path, manifest.root).problems == ()
    size = manifest.total_bytes + len(manifest.canonical)
    assert stats["fetched_bytes"] == manifest.total_bytes
    assert stats["served_bytes"] == 4 * size
    assert served == size


async def test_a_relay_serves_what_it_has_while_the_rest_is_on_its_way(
    run_fixture: Path, manifest: Manifest, tmp_path: Path
) -> None:
    half = 10 * 64 * 1024
    gates: list[Gate] = []

    def gate(name: str, item: OpenFile) -> OpenFile:
        if name == "model.safetensors" and all(gate.limit == half for gate in gates):
            gates.append(Gate(item, half))
            return gates[-1]
        return item

    async with odd_source(run_fixture / "published") as (upstream, shelf, _):
        shelf.bend = gate
        async with relaying(tmp_path / "relayed", upstream, hold_seconds=5) as (url, _):
            reports: list[Progress] = []
            request = FetchRequest(manifest.root, RUN, 3, [url], tmp_path / "in", QUICK, progress=reports.append)
            fetching = asyncio.create_task(fetch_version(request))
            await until(lambda: bool(reports) and reports[-1].done >= half)
            assert not fetching.done()
            assert reports[-1].done < manifest.total_bytes
            for waiting in gates:
                waiting.let_through()
            assert contents((await fetching).path) == contents(run_fixture / "checkpoint-3")
    assert (reports[-1].done, reports[-1].total, reports[-1].found) == (manifest.total_bytes, manifest.total_bytes, 0)


async def test_a_relay_serves_no_byte_that_its_upstream_lied_about(
    manifest: Manifest, origin: str, all_lies: Path, tmp_path: Path
) -> None:
    async with odd_source(all_lies) as (lies, _, _), relaying(tmp_path / "relayed", lies) as (url, stats):
        with pytest.raises(UnreachableError, match="502"):
            await get(manifest, tmp_path / "in", url, give_up_seconds=2, stall_seconds=1)
        assert stats.rejected == {lies: 1}, "it was not asked again for every request"
        assert stats.served_bytes == len(manifest.canonical)
        path = (await get(manifest, tmp_path / "in", url, origin)).path
    assert verify_folder(path, manifest.root).problems == ()


# Its own run_fixture


@pytest.fixture
async def steps(tmp_path: Path) -> AsyncIterator[tuple[str, list[Manifest]]]:
    """Yield an origin with steps 1 and 2, to which more can be published."""
    made = [publish_step(tmp_path, step, model_bytes=100_000) for step in (1, 2)]
    async with odd_source(tmp_path / "published") as (url, _, _):
        yield url, made


async def test_a_relay_follows_upstream_and_keeps_few(steps: tuple[str, list[Manifest]], tmp_path: Path) -> None:
    upstream, made = steps
    folder = tmp_path / "relayed"
    async with relaying(folder, upstream, most_versions=2, follow=True) as (url, _):
        await until(lambda: [v.root for v in versions(folder)] == [made[1].root])
        for step in (3, 4):
            made.append(publish_step(tmp_path, step, model_bytes=100_000))
            await until(lambda: made[-1].root in [v.root for v in versions(folder)])
        assert [version.root for version in versions(folder)] == [made[2].root, made[3].root]
        assert await get(made[0], tmp_path / "in", url), "an older one is fetched when asked for"
        assert [version.root for version in versions(folder)] == [made[3].root, made[0].root]


async def test_a_relay_keeps_within_its_disk(steps: tuple[str, list[Manifest]], tmp_path: Path) -> None:
    upstream, made = steps
    room = made[0].total_bytes + 50_000
    huge = publish_step(tmp_path, 3, model_bytes=300_000)
    folder = tmp_path / "relayed"
    async with relaying(folder, upstream, cache_bytes=room, hold_seconds=1) as (url, _):
        await get(made[0], tmp_path / "in", url)
        await get(made[1], tmp_path / "in", url)
        await until(lambda: [v.root for v in versions(folder)] == [made[1].root])
        with pytest.raises(UnreachableError, match="507"):
            await get(huge, tmp_path / "in", url, give_up_seconds=0.5)
        assert [version.root for version in versions(folder)] == [made[1].root]
        assert incomplete(folder) == []


async def test_a_restarted_relay_checks_and_serves_what_it_has(
    run_fixture: Path, manifest: Manifest, origin: str, tmp_path: Path
) -> None:
    folder = tmp_path / "relayed"
    async with relaying(folder, origin) as (url, _):
        await get(manifest, tmp_path / "1", url)
        await until(lambda: len(versions(folder)) == 1)
    model = folder / manifest.id / "model.safetensors"
    data = bytearray(model.read_bytes())
    data[0] ^= 1
    model.write_bytes(data)
    async with relaying(folder, origin) as (url, stats):
        assert contents((await get(manifest, tmp_path / "2", url)).path) == contents(run_fixture / "checkpoint-3")
        assert stats.fetched_bytes == manifest.shards[1].size


async def test_a_relay_that_was_killed_goes_on(
    run_fixture: Path, manifest: Manifest, origin: str, tmp_path: Path
) -> None:
    folder = tmp_path / "relayed"
    killed = fetcher([manifest], 3, folder, origin, MUSTER_FAILPOINT="shardcast.shard_written")
    assert (await asyncio.to_thread(killed.end))[0] == -9
    async with relaying(folder, origin) as (url, stats):
        assert contents((await get(manifest, tmp_path / "in", url)).path) == contents(run_fixture / "checkpoint-3")
        assert 0 < stats.fetched_bytes < manifest.total_bytes


async def test_a_relay_relays_for_its_run_and_what_the_chain_has(
    manifest: Manifest, origin: str, tmp_path: Path
) -> None:
    async def refuse(manifest: Manifest) -> None:
        raise MismatchError(f"{manifest.id} is not what the chain has")

    async with relaying(tmp_path / "1", origin, run=2) as (url, _):
        with pytest.raises(UnreachableError, match="404"):
            await get(manifest, tmp_path / "in", url, give_up_seconds=0.5)
    async with relaying(tmp_path / "2", origin, anchor=refuse) as (url, _):
        with pytest.raises(UnreachableError, match="502"):
            await get(manifest, tmp_path / "in", url, give_up_seconds=0.5)
    for folder in (tmp_path / "1", tmp_path / "2"):
        assert [path.name for path in folder.iterdir()] == ["lock"]


async def test_a_relay_relays_what_the_chain_has(deployment: Any, tmp_path: Path) -> None:
    settings = deployment.settings
    fixture = await RunFixture.build(tmp_path, settings, seed="relayed", workers=())
    run = fixture.run
    forged, anchored = (publish_step(tmp_path, 0, run=run, seed=seed) for seed in (1, 2))
    unpublished = publish_step(tmp_path, 1, run=run)
    async with fixture.chain("trainer") as chain:
        await chain.send(runs.publish_checkpoint(run, 0, anchored.root, bytes(32)))
    async with odd_source(tmp_path / "published") as (url, _, _):
        where = {"chain.rpc_url": settings.rpc_url, "chain.addresses": settings.addresses}
        options = {"role": "relay", "dir": tmp_path / "relayed", "check_chain": True, **where}
        relay = Server(tmp_path / "relay", run=run, upstreams=[url], **options)
        with ended(relay):
            await asyncio.to_thread(relay.start)
            bounds = replace(QUICK, give_up_seconds=1)
            for refused, status in ((forged, "502"), (unpublished, "404")):
                request = FetchRequest(refused.root, run, refused.step, [relay.url], tmp_path / "in", bounds)
                with pytest.raises(UnreachableError, match=status):
                    await fetch_version(request)
            fetched = await fetch_version(FetchRequest(anchored.root, run, 0, [relay.url], tmp_path / "in", QUICK))
            assert verify_folder(fetched.path, anchored.root).problems == ()
            kept = await until(lambda: versions(tmp_path / "relayed"), "the relay keeps what it has passed on")
    assert [version.root for version in kept] == [anchored.root]


async def test_an_upstream_that_advertises_what_it_has_not_is_ignored(
    run_fixture: Path, manifest: Manifest, origin: str, tmp_path: Path
) -> None:
    boast = Index(versions=[IndexEntry(root="0x" + "ab" * 32, run=RUN, step=2**32 - 1, size=1)])
    folder = tmp_path / "relayed"
    async with odd_source(run_fixture / "published") as (loud, shelf, _):
        shelf.advertise = boast
        async with relaying(folder, loud, origin, follow=True):
            await until(lambda: [v.root for v in versions(folder)] == [manifest.root])
            assert incomplete(folder) == []


async def test_a_relay_is_ready_when_upstream_answers(run_fixture: Path, tmp_path: Path) -> None:
    stats, port = Stats(), free_port()
    settings = ShardcastSettings(dir=tmp_path / "relayed", upstreams=[f"http://127.0.0.1:{port}"])
    async with Relay(settings, stats, poll_seconds=0.05) as relay:
        assert await relay.unready() == ["no upstream has answered"]
        late = Server(tmp_path / "late", port=port, dir=run_fixture / "published")
        with ended(late):
            await asyncio.to_thread(late.start)
            await until(lambda: relay.upstream_answers)
            assert await relay.unready() == []


# The process


async def test_settings_that_cannot_work_end_with_a_hint(origin: str, run_fixture: Path, tmp_path: Path) -> None:
    relay = {"role": "relay", "dir": tmp_path / "relayed"}
    port = int(origin.rpartition(":")[2])
    cases = {
        f"cannot listen on 127.0.0.1:{port}": {"port": port, "dir": run_fixture / "published"},
        "there is no relay or origin to fetch from": {**relay, "upstreams": []},
        "'nowhere' is not the base URL of a relay": {**relay, "upstreams": ["nowhere"]},
        "shardcast.role": {"role": "mirror"},
        "unknown setting shardcast.shard_size": {"shard_size": 3},
    }
    started = {says: Server(tmp_path / str(i), **given).spawn() for i, (says, given) in enumerate(cases.items())}
    for says, server in started.items():
        code, errors = await asyncio.to_thread(server.end)
        assert (code, says in errors, "\n  next: " in errors) == (78, True, True), errors


async def test_a_second_relay_in_the_same_folder_is_refused(origin: str, tmp_path: Path) -> None:
    settings = {"role": "relay", "dir": tmp_path / "relayed", "upstreams": [origin]}
    first = Server(tmp_path / "1", **settings)
    with ended(first):
        await asyncio.to_thread(first.start)
        second = Server(tmp_path / "2", **settings).spawn()
        code, errors = await asyncio.to_thread(second.end)
        assert code == 78
        assert "is in use by process" in errors
        assert (await asyncio.to_thread(first.stop))[0] == 0
