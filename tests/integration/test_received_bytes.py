"""Which bytes count as received from a source: every valid byte that arrived, by any route, and no other."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from muster.errors import MismatchError, UnreachableError
from muster.shardcast.fetch.delta_fetch import fetch_step
from muster.shardcast.fetch.fetch import FetchedVersion, FetchRequest
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import version_path
from testbed.weights.checkpoints import RUN, SHARD, flip_bit, forge_difference, give, keeping, publish_steps
from testbed.weights.fetching import QUICK, get_step
from testbed.weights.servers import Broken, odd_source


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published")


@pytest.fixture(scope="module")
def made(published: Path) -> list[Manifest]:
    """Steps 0 to 5; 0, 4 and 5 are there whole, the others as differences."""
    return publish_steps(published, 6, deltas=keeping(whole_every=4, whole=1))


class Received(Counter[str]):
    """Adds up the bytes received per URL."""

    def add(self, url: str, size: int) -> None:
        assert size > 0
        self[url] += size


async def get(made: list[Manifest], step: int, dest: Path, *sources: str) -> tuple[FetchedVersion, Received]:
    received = Received()
    return await get_step(made, step, dest, *sources, on_received=received.add), received


@pytest.fixture
async def source(published: Path, made: list[Manifest]) -> AsyncIterator[str]:
    async with odd_source(published / "published") as (url, _, _):
        yield url


async def test_a_whole_step_from_two_sources(
    published: Path, made: list[Manifest], source: str, tmp_path: Path
) -> None:
    async with odd_source(published / "published") as (other, _, _):
        fetched, received = await get(made, 5, tmp_path, source, other + "/")
    assert received.total() == fetched.fetched_bytes == made[5].total_bytes
    assert received == {report.url: report.bytes for report in fetched.sources}
    assert set(received) == {source, other}, "base URLs as the directory lists them"


async def test_second_fetch_receives_no_bytes(made: list[Manifest], source: str, tmp_path: Path) -> None:
    await get(made, 5, tmp_path, source)
    assert (await get(made, 5, tmp_path, source))[1] == {}


async def test_a_difference_to_a_step_that_is_here(
    published: Path, made: list[Manifest], source: str, tmp_path: Path
) -> None:
    give(published, made[4], tmp_path)
    fetched, received = await get(made, 5, tmp_path, source)
    assert received == {source: fetched.delta_bytes}
    assert 0 < fetched.delta_bytes < made[5].total_bytes / 100


async def test_a_step_to_begin_with_and_differences(made: list[Manifest], source: str, tmp_path: Path) -> None:
    fetched, received = await get(made, 3, tmp_path, source)
    assert (fetched.fetched_bytes, received) == (0, {source: fetched.delta_bytes})
    assert fetched.delta_bytes > made[0].total_bytes


async def test_a_difference_that_makes_something_else_is_not_received(
    published: Path, made: list[Manifest], source: str, tmp_path: Path
) -> None:
    """The bytes match the source's own manifest and arrive, but they are not weights of the run."""
    lies = tmp_path / "lies"
    shutil.copytree(published / "published", lies)
    forge_difference(lies, made[4], made[5])
    give(published, made[4], tmp_path / "in")
    async with odd_source(lies) as (liar, _, _):
        fetched, received = await get(made, 5, tmp_path / "in", liar)
    assert fetched.delta_bytes > 0
    assert received == {liar: fetched.fetched_bytes}, "of the step that was fetched whole after it"


async def test_valid_shards_from_faulty_source_count_as_received(
    published: Path, made: list[Manifest], source: str, tmp_path: Path
) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(version_path(published / "published", made[5].root), version_path(spoilt, made[5].root))
    last = next(shard for shard in reversed(made[5].shards) if shard.size == SHARD)
    flip_bit(version_path(spoilt, made[5].root) / made[5].files[last.file].name, last.offset)
    async with odd_source(spoilt) as (liar, _, _):
        with pytest.raises(MismatchError):
            await get(made, 5, tmp_path / "alone", liar)
        fetched, received = await get(made, 5, tmp_path / "in", liar, source)
    [report] = [report for report in fetched.sources if report.url == liar]
    assert received.total() == made[5].total_bytes
    assert received[liar] == report.bytes


async def test_bytes_before_failed_fetch_count_as_received(
    published: Path, made: list[Manifest], source: str, tmp_path: Path
) -> None:
    received, only = Received(), tmp_path / "only"
    shutil.copytree(version_path(published / "published", made[5].root), version_path(only, made[5].root))
    async with odd_source(only) as (url, shelf, _):
        broken = False

        def bend(name: str, item: object) -> object:
            nonlocal broken
            if name.endswith(".safetensors") and shelf.opened.count(name) > 4:
                broken = True
                return Broken(item.file, item.size)  # type: ignore[attr-defined]
            return item

        shelf.bend = bend  # type: ignore[assignment]

        async def anchored(step: int) -> bytes:
            return made[step].root

        settings = replace(QUICK, give_up_seconds=1.0, stall_seconds=1.0, streams=1)
        request = FetchRequest(made[5].root, RUN, 5, [url], tmp_path / "in", settings, on_received=received.add)
        with pytest.raises(UnreachableError):
            await fetch_step(request, anchored)
        assert broken
    assert 0 < received[url] < made[5].total_bytes
    rest = (await get(made, 5, tmp_path / "in", source))[1]
    assert received[url] + rest[source] == made[5].total_bytes
