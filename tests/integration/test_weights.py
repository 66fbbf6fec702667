"""Weights from trainer to workers: real processes, sockets and files, and sources that fail, stall and lie."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from muster.errors import ConfigError, MalformedError, MismatchError, StorageError, UnreachableError
from muster.shardcast.fetch import sources
from muster.shardcast.fetch.fetch import FetchRequest, fetch_version
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import incomplete, verify_folder, versions
from testbed.chain.anvil import free_port
from testbed.processes import ended
from testbed.waiting import until
from testbed.weights.checkpoints import RUN, contents, describe, flip_bit, publish_step
from testbed.weights.fetching import QUICK, fetcher, get
from testbed.weights.servers import Broken, Gate, Server, endless_source, odd_source, relaying, silent_source


@pytest.fixture(scope="module")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yield a folder in which step 3 is published."""
    return tmp_path_factory.mktemp("run_fixture")


@pytest.fixture(scope="module")
def manifest(run_fixture: Path) -> Manifest:
    return publish_step(run_fixture, 3)


@pytest.fixture(scope="module")
def origin(run_fixture: Path, manifest: Manifest) -> Iterator[Server]:
    """Yield an origin process that serves it."""
    with Server(run_fixture / "origin", dir=run_fixture / "published") as server:
        yield server


@pytest.fixture
def liar(run_fixture: Path, manifest: Manifest, tmp_path: Path) -> Path:
    """Return the published folder with one bit of shard 1 flipped; the first source is asked for that shard."""
    folder = shutil.copytree(run_fixture / "published", tmp_path / "lies")
    model = folder / manifest.id / "model.safetensors"
    flip_bit(model, 1000)
    return folder


@pytest.fixture
def all_lies(run_fixture: Path, manifest: Manifest, tmp_path: Path) -> Path:
    """Return the published folder with the right manifest and zeros for everything else."""
    folder = shutil.copytree(run_fixture / "published", tmp_path / "all-lies")
    for file in manifest.files:
        (folder / manifest.id / file.name).write_bytes(bytes(file.size))
    return folder


# From origin through a relay to clients


async def test_any_static_server_with_ranges_is_a_source(run_fixture: Path, manifest: Manifest, tmp_path: Path) -> None:
    app = Starlette(routes=[Mount("/v1/weights", StaticFiles(directory=run_fixture / "published"))])
    server = uvicorn.Server(uvicorn.Config(app, port=free_port(), log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        fetched = await get(manifest, tmp_path, f"http://127.0.0.1:{server.config.port}")
    finally:
        server.should_exit = True
        await serving
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")


async def test_local_shards_are_verified_and_not_fetched(manifest: Manifest, origin: Server, tmp_path: Path) -> None:
    path = (await get(manifest, tmp_path, origin.url)).path
    before = origin.stats["served_bytes"]
    again = await get(manifest, tmp_path, origin.url)
    assert (again.path, again.found_bytes, again.fetched_bytes) == (path, manifest.total_bytes, 0)
    flip_bit(path / "model.safetensors", 0)
    repaired = await get(manifest, tmp_path, origin.url)
    assert repaired.fetched_bytes == manifest.shards[1].size
    assert verify_folder(repaired.path, manifest.root).problems == ()
    assert origin.stats["served_bytes"] - before == manifest.shards[1].size


async def test_two_who_fetch_the_same_fetch_it_once(manifest: Manifest, origin: Server, tmp_path: Path) -> None:
    before = origin.stats["served_bytes"]
    first, second = await asyncio.gather(*(get(manifest, tmp_path, origin.url) for _ in range(2)))
    assert first.path == second.path
    assert origin.stats["served_bytes"] - before == manifest.total_bytes + len(manifest.canonical)
    assert [path.name for path in tmp_path.iterdir()] == [manifest.id]


# Sources that lie


async def test_a_relay_that_flips_one_bit_is_dropped_and_the_fetch_succeeds(
    run_fixture: Path, manifest: Manifest, origin: Server, liar: Path, tmp_path: Path
) -> None:
    async with odd_source(liar) as (lies, _, _):
        fetched = await get(manifest, tmp_path / "in", lies, origin.url)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")
    reports = {report.url: report for report in fetched.sources}
    assert [report.url for report in fetched.bad_sources] == [lies]
    assert reports[lies].dropped.startswith(f"shard 1 from {lies} hashes to 0x")
    assert reports[lies].bytes + reports[origin.url].bytes == fetched.fetched_bytes == manifest.total_bytes


async def test_a_liar_is_dropped_by_its_first_lie(
    run_fixture: Path, manifest: Manifest, origin: Server, all_lies: Path, tmp_path: Path
) -> None:
    async with odd_source(all_lies) as (lies, shelf, _):
        fetched = await get(manifest, tmp_path / "in", lies, origin.url)
        shards_asked_for = [name for name in shelf.opened if name != "manifest.json"]
        assert len(shards_asked_for) <= QUICK.streams
    assert [(report.url, report.bytes) for report in fetched.bad_sources] == [(lies, 0)]
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")


async def test_when_all_sources_lie_nothing_is_there_to_load(manifest: Manifest, liar: Path, tmp_path: Path) -> None:
    async with odd_source(liar) as (first, _, _), odd_source(liar) as (second, _, _):
        with pytest.raises(MismatchError, match=r"every source of .* shards") as caught:
            await get(manifest, tmp_path / "in", first, second)
    assert first in str(caught.value)
    assert second in str(caught.value)
    assert caught.value.exit_code == 3
    assert caught.value.hint
    assert versions(tmp_path / "in") == []
    assert incomplete(tmp_path / "in") == [manifest.root]


async def test_fetch_recovers_from_corrupt_partial_download(
    run_fixture: Path, manifest: Manifest, origin: Server, liar: Path, tmp_path: Path
) -> None:
    async with odd_source(liar) as (lies, _, _):
        with pytest.raises(MismatchError):
            await get(manifest, tmp_path / "in", lies)
    fetched = await get(manifest, tmp_path / "in", origin.url)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")
    assert fetched.found_bytes + fetched.fetched_bytes == manifest.total_bytes
    assert fetched.fetched_bytes >= manifest.shards[1].size


@pytest.mark.parametrize("name", ["../../escaped.json", "/tmp/escaped.json", "escaped.py"])
async def test_a_manifest_that_leads_out_of_the_folder_is_refused(
    run_fixture: Path, manifest: Manifest, tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(run_fixture / "published", tmp_path / "lies")
    hostile = manifest.canonical.replace(b'"config.json"', json.dumps(name).encode())
    (folder / manifest.id / "manifest.json").write_bytes(hostile)
    async with odd_source(folder) as (lies, _, _), relaying(tmp_path / "relayed", lies) as (relay, _):
        with pytest.raises(MismatchError, match=f"the file name '{name}' is none of a checkpoint"):
            await get(manifest, tmp_path / "in", lies)
        with pytest.raises(UnreachableError, match="502"):
            await get(manifest, tmp_path / "in", relay, give_up_seconds=1)
    assert [path.name for path in tmp_path.rglob("*escaped*")] == []
    assert list((tmp_path / "in").iterdir()) == []
    assert [path.name for path in (tmp_path / "relayed").iterdir()] == ["lock"]


@pytest.mark.parametrize("length", [0, 1, 500, -1])
async def test_a_truncated_manifest_drops_its_source(
    run_fixture: Path, manifest: Manifest, origin: Server, tmp_path: Path, length: int
) -> None:
    folder = shutil.copytree(run_fixture / "published", tmp_path / "lies")
    (folder / manifest.id / "manifest.json").write_bytes(manifest.canonical[:length])
    async with odd_source(folder) as (lies, _, _):
        with pytest.raises(MismatchError, match="not a manifest"):
            await get(manifest, tmp_path / "in", lies)
        assert verify_folder((await get(manifest, tmp_path / "in", lies, origin.url)).path).problems == ()


async def test_a_manifest_of_another_version_drops_its_source(
    run_fixture: Path, manifest: Manifest, tmp_path: Path
) -> None:
    other = publish_step(tmp_path, 4)
    (tmp_path / "published" / other.id).rename(tmp_path / "published" / manifest.id)
    async with odd_source(tmp_path / "published") as (old, _, _):
        with pytest.raises(MismatchError, match=f"the manifest's root is {other.id}"):
            await get(manifest, tmp_path / "in", old)


# Wrong questions


async def test_fetch_refuses_unknown_root_and_mismatched_manifest(
    manifest: Manifest, origin: Server, tmp_path: Path
) -> None:
    hasty, small = replace(QUICK, give_up_seconds=0.5), replace(QUICK, max_bytes=1000)
    with pytest.raises(UnreachableError, match="404") as caught:
        await fetch_version(FetchRequest(bytes(32), RUN, 3, [origin.url], tmp_path, hasty))
    assert "curl" in caught.value.hint
    with pytest.raises(MismatchError, match="is the root of step 3 of run 1, and not of step 4 of run 1"):
        await fetch_version(FetchRequest(manifest.root, RUN, 4, [origin.url], tmp_path, QUICK))
    with pytest.raises(MismatchError, match="and not of step 3 of run 2"):
        await fetch_version(FetchRequest(manifest.root, 2, 3, [origin.url], tmp_path, QUICK))
    with pytest.raises(MalformedError, match="at most 1000 are accepted"):
        await fetch_version(FetchRequest(manifest.root, RUN, 3, [origin.url], tmp_path, small))
    assert list(tmp_path.iterdir()) == []


async def test_a_difference_is_not_loaded_as_if_it_were_a_checkpoint(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    for name in ("step.delta", "step.json"):
        (draft / name).write_text("{}")
    delta = describe(draft, 3, 2)
    (draft / "manifest.json").write_bytes(delta.canonical)
    (tmp_path / "published").mkdir()
    draft.rename(tmp_path / "published" / delta.id)
    async with odd_source(tmp_path / "published") as (url, _, _):
        with pytest.raises(MalformedError, match="difference to step 2"):
            await get(delta, tmp_path / "in", url)


@pytest.mark.parametrize("sources", [[], ["relay:8700"], ["ftp://relay"], ["http://relay/?x=1"], [""]])
async def test_sources_that_are_no_urls_are_a_config_error(sources: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        await fetch_version(FetchRequest(bytes(32), RUN, 3, sources, tmp_path))
    assert caught.value.hint


# Sources that fail


async def test_a_relay_that_is_down_costs_nothing_but_its_share(
    run_fixture: Path, manifest: Manifest, origin: Server, tmp_path: Path
) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    fetched = await get(manifest, tmp_path, dead, origin.url)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")
    reports = {report.url: report for report in fetched.sources}
    assert reports[dead].failures >= 1
    assert (reports[dead].bytes, reports[dead].dropped, fetched.bad_sources) == (0, "", ())
    assert reports[origin.url].bytes == manifest.total_bytes


async def test_a_client_waits_for_an_origin_that_starts_later(
    run_fixture: Path, manifest: Manifest, tmp_path: Path
) -> None:
    late = Server(tmp_path / "late", port=free_port(), dir=run_fixture / "published")
    fetching = asyncio.create_task(get(manifest, tmp_path / "in", late.url))
    with ended(late):
        await asyncio.to_thread(late.start)
        assert contents((await fetching).path) == contents(run_fixture / "checkpoint-3")


async def test_a_client_waits_for_a_version_that_is_published_later(tmp_path: Path) -> None:
    first = publish_step(tmp_path / "here", 1)
    second = publish_step(tmp_path / "elsewhere", 2)
    async with odd_source(tmp_path / "here" / "published") as (url, shelf, _):
        fetching = asyncio.create_task(get(second, tmp_path / "in", url))
        await until(lambda: "manifest.json" in shelf.opened)
        assert not fetching.done()
        publish_step(tmp_path / "here", 2)
        assert contents((await fetching).path) == contents(tmp_path / "elsewhere" / "checkpoint-2")
        assert first.root != second.root


async def test_silent_source_does_not_delay_fetch(
    run_fixture: Path, manifest: Manifest, origin: Server, tmp_path: Path
) -> None:
    async with silent_source() as silent:
        fetched = await get(manifest, tmp_path, silent, origin.url)
        assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")
        sat, served = fetched.sources
        assert (sat.bytes, served.bytes) == (0, manifest.total_bytes)
        assert sat.failures == 0, "the shards it sat on were fetched elsewhere before it timed out"
        with pytest.raises(UnreachableError, match="no source has the manifest"):
            await get(manifest, tmp_path / "alone", silent, give_up_seconds=0.5)


async def test_transfers_that_break_off_are_tried_again_elsewhere(
    run_fixture: Path, manifest: Manifest, origin: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with odd_source(run_fixture / "published") as (broken, shelf, _):
        shelf.bend = lambda name, item: Broken(item.file, item.size) if name == "model.safetensors" else item
        fetched = await get(manifest, tmp_path / "1", broken, origin.url)
        assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")
        assert fetched.sources[0].failures >= 1
        assert fetched.bad_sources == ()
        monkeypatch.setattr(sources, "MIN_RATE", 1 << 20)
        with pytest.raises(UnreachableError, match="shards of"):
            await get(manifest, tmp_path / "2", broken, give_up_seconds=0.5, stall_seconds=0.2)


async def test_a_server_without_ranges_gives_what_it_can(
    run_fixture: Path, manifest: Manifest, origin: Server, tmp_path: Path
) -> None:
    async with odd_source(run_fixture / "published") as (plain, shelf, _):
        shelf.hear = lambda request: replace(request, headers={})
        fetched = await get(manifest, tmp_path, plain, origin.url)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")
    report = fetched.sources[0]
    assert (report.dropped, report.last_failure) == ("", f"{plain} answers 200 OK")
    assert report.bytes in (0, 13, 23, 36), "files of one shard need no range"


async def test_a_source_that_answers_with_another_range_is_dropped(
    run_fixture: Path, manifest: Manifest, tmp_path: Path
) -> None:
    for asked in ("bytes=0-70000", "bytes=1-65536", "bytes=0-10"):
        async with odd_source(run_fixture / "published") as (odd, shelf, _):
            shelf.hear = lambda request, asked=asked: (
                replace(request, headers={"range": asked}) if "model" in request.path else request
            )
            with pytest.raises(MismatchError, match=asked.replace("=", " ")):
                await get(manifest, tmp_path, odd)


async def test_a_source_that_sends_without_end_is_dropped(manifest: Manifest, tmp_path: Path) -> None:
    async with endless_source(manifest) as endless:
        with pytest.raises(MismatchError, match="does not say how long its answer is"):
            await get(manifest, tmp_path, endless)


async def test_a_fetch_has_a_time_out_over_all(run_fixture: Path, manifest: Manifest, tmp_path: Path) -> None:
    async with odd_source(run_fixture / "published") as (url, shelf, _):
        shelf.bend = lambda name, item: Gate(item, 0) if name == "model.safetensors" else item
        with pytest.raises(UnreachableError, match=r"was not complete after 1 s") as caught:
            await get(manifest, tmp_path / "in", url, seconds=1)
    assert caught.value.hint == "try again: the fetch resumes"


# Killed and resumed


async def test_a_killed_client_goes_on_without_fetching_good_shards_again(
    run_fixture: Path, manifest: Manifest, origin: Server, tmp_path: Path
) -> None:
    dest = tmp_path / "in"
    killed = fetcher([manifest], 3, dest, origin.url, MUSTER_FAILPOINT="shardcast.shard_written")
    assert killed.end()[0] == -9
    assert versions(dest) == []
    before = origin.stats["served_bytes"]
    fetched = await get(manifest, dest, origin.url)
    assert fetched.found_bytes >= min(shard.size for shard in manifest.shards)
    assert fetched.found_bytes + fetched.fetched_bytes == manifest.total_bytes
    assert origin.stats["served_bytes"] - before == fetched.fetched_bytes, "the manifest was on disk as well"
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")
    assert [path.name for path in dest.iterdir()] == [manifest.id]


async def test_a_full_disk_is_a_clear_error(manifest: Manifest, origin: Server, tmp_path: Path) -> None:
    status, errors = fetcher([manifest], 3, tmp_path, origin.url, launcher=("prlimit", "--fsize=100000")).end()
    assert status == StorageError.exit_code
    assert "StorageError: no room for step 3: no space left" in errors
    assert "df -h" in errors
    assert versions(tmp_path) == []


async def test_a_cap_holds_on_either_side(
    run_fixture: Path, manifest: Manifest, origin: Server, tmp_path: Path
) -> None:
    rate = manifest.total_bytes  # a second, less the last piece of each stream
    fetched = await get(manifest, tmp_path / "1", origin.url, download_rate=rate)
    assert fetched.seconds > 0.8
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")
    with Server(tmp_path / "slow", dir=run_fixture / "published", upload_rate=rate) as slow:
        fetched = await get(manifest, tmp_path / "2", slow.url)
    assert fetched.seconds > 0.8
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")
