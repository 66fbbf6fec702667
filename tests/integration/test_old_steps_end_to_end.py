"""Old steps, of which only deltas remain, fetched by a node that holds newer steps. Real processes and files."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.errors import UnreachableError
from muster.shardcast.fetch.delta_fetch import DELTAS
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import (
    Index,
    IndexEntry,
    read_manifest,
    remove_version,
    verify_folder,
    version_path,
    versions,
    write_index,
)
from testbed.waiting import until
from testbed.weights.checkpoints import RUN, SHARD, contents, forge_difference, give, keeping, publish_steps
from testbed.weights.fetching import QUICK, get_step
from testbed.weights.servers import Server, odd_source, relaying

STEPS = 12
OLD = 3
"""A step of which there is the difference to 2 only; 0 is whole."""


@pytest.fixture(scope="module")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run_fixture")


@pytest.fixture(scope="module")
def made(run_fixture: Path) -> list[Manifest]:
    """Yield steps 0 to 11; whole are 0, 4, 8, 10 and 11."""
    return publish_steps(run_fixture, STEPS, deltas=keeping(whole_every=4, whole=2))


@pytest.fixture(scope="module")
def origin(run_fixture: Path, made: list[Manifest]) -> Iterator[Server]:
    with Server(run_fixture / "origin", dir=run_fixture / "published") as server:
        yield server


@pytest.fixture
def here(run_fixture: Path, made: list[Manifest], tmp_path: Path) -> Path:
    """Return the folder of a client that holds the two newest steps."""
    for manifest in made[-2:]:
        give(run_fixture, manifest, tmp_path / "here")
    return tmp_path / "here"


def is_step(run_fixture: Path, made: list[Manifest], step: int, path: Path) -> bool:
    """Whether a folder holds the step, byte for byte."""
    return not verify_folder(path, made[step].root).problems and contents(path) == contents(
        run_fixture / f"checkpoint-{step}"
    )


async def test_an_old_step_is_made_from_the_origins_whole_step_and_differences(
    run_fixture: Path, made: list[Manifest], origin: Server, here: Path
) -> None:
    fetched = await get_step(made, OLD, here, origin.url)
    assert is_step(run_fixture, made, OLD, fetched.path)
    assert fetched.fetched_bytes == 0
    assert made[0].total_bytes < fetched.delta_bytes < made[0].total_bytes * 1.05
    more = await get_step(made, 2, here, origin.url)
    assert (more.fetched_bytes, more.delta_bytes) == (0, 0), "everything it needs is already on disk"


async def test_an_old_step_comes_by_way_of_a_relay_that_has_none_of_it(
    run_fixture: Path, made: list[Manifest], origin: Server, here: Path, tmp_path: Path
) -> None:
    """The relay has room for three versions, of which two are the newest step's."""
    folder = tmp_path / "relayed"

    def steps() -> list[int]:
        return [entry.step for entry in write_index(folder).versions]

    async with relaying(folder, origin.url, most_versions=3, follow=True) as (relay, stats):
        await until(lambda: len(versions(folder)) == 2 and steps() == [STEPS - 1] * 2, "it has the newest step")
        fetched = await get_step(made, OLD, here, relay)
        assert steps()[:2] == [STEPS - 1] * 2, "the newest steps are not evicted"
        assert len(versions(folder)) <= 3
        assert stats.fetched_bytes < made[0].total_bytes * 2.1, "and the relay does not fetch it again"
    assert is_step(run_fixture, made, OLD, version_path(here, made[OLD].root))
    assert fetched.fetched_bytes == 0
    assert fetched.delta_bytes < made[0].total_bytes * 1.05


async def test_relay_lists_upstream_versions_when_not_following(
    run_fixture: Path, made: list[Manifest], origin: Server, here: Path, tmp_path: Path
) -> None:
    async with relaying(tmp_path / "relayed", origin.url) as (url, _):
        fetched = await get_step(made, OLD, here, url)
    assert is_step(run_fixture, made, OLD, fetched.path)


async def test_a_step_on_an_old_page_of_the_index_is_found(
    run_fixture: Path, made: list[Manifest], here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The index names the five newest versions and step 0, and the others are on pages of two steps."""
    from muster.shardcast.format import store as folder

    monkeypatch.setattr(folder, "MAX_INDEX_ENTRIES", 6)
    monkeypatch.setattr(folder, "PAGE_STEPS", 2)
    served = Path(shutil.copytree(run_fixture / "published", tmp_path / "served"))
    index = folder.write_index(served)
    assert sorted({entry.step for entry in index.versions}) == [0, 9, 10, 11]
    assert (served / "index-5.json").exists()
    async with odd_source(served) as (url, _, _):
        fetched = await get_step(made, OLD, here, url)
        async with relaying(tmp_path / "relayed", url) as (relay, _):
            joined = await get_step(made, 6, tmp_path / "joiner", relay)
    assert is_step(run_fixture, made, OLD, fetched.path)
    assert is_step(run_fixture, made, 6, joined.path)


async def test_false_whole_offer_does_not_block_fetch(
    run_fixture: Path, made: list[Manifest], origin: Server, here: Path, tmp_path: Path
) -> None:
    said = IndexEntry(root=made[OLD].id, run=RUN, step=OLD, base_step=None, size=made[OLD].total_bytes)
    (tmp_path / "nothing").mkdir()
    async with odd_source(tmp_path / "nothing") as (url, shelf, _):
        shelf.advertise = Index(versions=[said.model_copy(update={"root": made[11].id, "step": 11}), said])
        fetched = await get_step(made, OLD, here, url, origin.url)
    assert is_step(run_fixture, made, OLD, fetched.path)


async def test_lies_about_old_steps_cost_less_each_than_the_truth(
    run_fixture: Path, made: list[Manifest], origin: Server, here: Path, tmp_path: Path
) -> None:
    """One source has a wrong difference on the way, one names a hundred cheap ones that it has not."""
    liar = Path(shutil.copytree(run_fixture / "published", tmp_path / "lies"))
    forge_difference(liar, made[0], made[1])
    cheap = [
        IndexEntry(root=f"0x{number:064x}", run=RUN, step=OLD, base_step=number % OLD, size=1 + number)
        for number in range(100)
    ]
    async with odd_source(liar) as (lies, _, _), odd_source(liar) as (boasts, shelf, _):
        shelf.advertise = Index(versions=cheap)
        fetched = await get_step(made, OLD, here, lies, boasts, origin.url)
    assert is_step(run_fixture, made, OLD, fetched.path)
    assert fetched.delta_bytes < made[0].total_bytes * 1.1, "the whole step was fetched once"


async def test_a_damaged_step_to_begin_with_is_left_aside(
    run_fixture: Path, made: list[Manifest], origin: Server, here: Path
) -> None:
    model = give(run_fixture, made[4], here) / "model.safetensors"
    data = bytearray(model.read_bytes())
    data[2 * SHARD + 1] ^= 1
    model.write_bytes(data)
    fetched = await get_step(made, 6, here, origin.url)
    assert is_step(run_fixture, made, 6, fetched.path)


async def test_an_old_step_that_was_damaged_on_disk_is_made_again(
    run_fixture: Path, made: list[Manifest], origin: Server, here: Path
) -> None:
    fetched = await get_step(made, OLD, here, origin.url)
    (fetched.path / "config.json").unlink()
    again = await get_step(made, OLD, here, origin.url, give_up_seconds=3)
    assert is_step(run_fixture, made, OLD, again.path)
    assert again.fetched_bytes == 0


async def test_several_old_steps_at_the_same_time(
    run_fixture: Path, made: list[Manifest], origin: Server, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eviction never removes a delta that a pending step still needs, even with the smallest limit."""
    from muster.shardcast.fetch import delta_fetch

    monkeypatch.setattr(delta_fetch, "KEPT_DELTAS", 0)
    steps = (1, 2, 3, 5, 6, 7, 9)
    found = await asyncio.gather(*(get_step(made, step, here, origin.url) for step in steps))
    assert all(is_step(run_fixture, made, step, fetched.path) for step, fetched in zip(steps, found, strict=True))
    assert versions(here / DELTAS) == []


async def test_fetch_fails_at_once_when_no_source_has_step(
    run_fixture: Path, made: list[Manifest], here: Path, tmp_path: Path
) -> None:
    served = Path(shutil.copytree(run_fixture / "published", tmp_path / "served"))
    for version in versions(served):
        if read_manifest(version.path).step == 2:
            remove_version(version.path)
    write_index(served)
    async with odd_source(served) as (url, _, _):
        clock = asyncio.get_running_loop().time
        started = clock()
        with pytest.raises(UnreachableError) as refused:
            await get_step(made, OLD, here, url)
        assert clock() - started < QUICK.give_up_seconds / 2
        assert str(refused.value) == (
            f"step {OLD} cannot be had: no differences lead there ({url} has steps 0 to 11); "
            f"whole: no source has the manifest of {made[OLD].id}: {url}: {url} answers 404 Not Found"
        )


async def test_a_step_that_is_just_being_published_is_waited_for(
    run_fixture: Path, made: list[Manifest], tmp_path: Path
) -> None:
    served = tmp_path / "served"
    shutil.copytree(version_path(run_fixture / "published", made[10].root), version_path(served, made[10].root))
    async with odd_source(served) as (url, shelf, _):
        fetching = asyncio.create_task(get_step(made, 11, tmp_path / "here", url, give_up_seconds=120))
        await until(lambda: shelf.opened.count("manifest.json") >= 2)
        give(run_fixture, made[11], served)
        fetched = await fetching
    assert is_step(run_fixture, made, 11, fetched.path)
