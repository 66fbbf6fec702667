"""Differences on their way: fetched instead of everything, and never believed. Real processes, sockets and files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from muster.errors import ChainError, UnreachableError
from muster.shardcast.fetch import delta_fetch
from muster.shardcast.fetch.delta_fetch import DELTAS
from muster.shardcast.format import partial, store
from muster.shardcast.format.manifest import Manifest, Shard
from muster.shardcast.format.store import (
    Index,
    IndexEntry,
    partial_path,
    read_manifest,
    shard_is_good,
    verify_folder,
    version_path,
    versions,
)
from muster.shardcast.publish import publish
from testbed.chain.anvil import free_port
from testbed.waiting import BOUND, until
from testbed.weights.checkpoints import (
    RUN,
    SHARD,
    contents,
    flip_bit,
    forge_difference,
    give,
    keeping,
    publish_steps,
    write_step,
)
from testbed.weights.fetching import fetcher, get_step
from testbed.weights.servers import Server, odd_source, relaying


@pytest.fixture(scope="module")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yield a folder in which steps 0 to 5 are published; 0, 4 and 5 whole, the others as differences."""
    return tmp_path_factory.mktemp("run_fixture")


@pytest.fixture(scope="module")
def made(run_fixture: Path) -> list[Manifest]:
    return publish_steps(run_fixture, 6, deltas=keeping(whole_every=4, whole=1))


@pytest.fixture(scope="module")
def origin(run_fixture: Path, made: list[Manifest]) -> Iterator[Server]:
    """Yield an origin process that serves them."""
    with Server(run_fixture / "origin", dir=run_fixture / "published") as server:
        yield server


# What is fetched


async def test_a_client_with_the_step_before_fetches_what_changed(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path
) -> None:
    """From a source that answers; one that does not is beside it."""
    give(run_fixture, made[4], tmp_path)
    before = origin.stats["served_bytes"]
    fetched = await get_step(made, 5, tmp_path, f"http://127.0.0.1:{free_port()}", origin.url)
    served = origin.stats["served_bytes"] - before
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-5")
    assert verify_folder(fetched.path, made[5].root).problems == ()
    assert (fetched.path, fetched.fetched_bytes) == (version_path(tmp_path, made[5].root), 0)
    assert 0 < fetched.delta_bytes < made[5].total_bytes / 100
    assert fetched.delta_bytes < served < fetched.delta_bytes + 5000, "and its manifest"


async def test_a_joiner_gets_an_old_step_as_anchor_and_differences_and_catches_up(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path
) -> None:
    assert not version_path(run_fixture / "published", made[3].root).exists()
    fetched = await get_step(made, 3, tmp_path, origin.url)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")
    assert {version.root for version in versions(tmp_path)} == {made[0].root, made[3].root}, "none of those between"
    assert fetched.fetched_bytes == 0
    assert made[0].total_bytes < fetched.delta_bytes < made[0].total_bytes * 1.05
    later = await get_step(made, 5, tmp_path, origin.url)
    assert contents(later.path) == contents(run_fixture / "checkpoint-5")
    assert (later.fetched_bytes, later.delta_bytes < made[5].total_bytes / 20) == (0, True)


async def test_a_joiner_gets_a_step_that_is_whole_as_it_is(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path
) -> None:
    fetched = await get_step(made, 5, tmp_path, origin.url)
    assert (fetched.fetched_bytes, fetched.delta_bytes) == (made[5].total_bytes, 0)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-5")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that were read back from the disk and hashed to find out whether a shard is there, piece by piece."""
    found: list[int] = []

    def counting(version: Path, manifest: Manifest, shard: Shard) -> bool:
        found.append(shard.size)
        return shard_is_good(version, manifest, shard)

    for module in (partial, store):
        monkeypatch.setattr(module, "shard_is_good", counting)
    return found


async def test_shards_that_differences_made_are_hashed_once(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path, hashed: list[int]
) -> None:
    give(run_fixture, made[4], tmp_path)
    fetched = await get_step(made, 5, tmp_path, origin.url)
    assert (fetched.fetched_bytes, fetched.found_bytes) == (0, made[5].total_bytes)
    difference = read_manifest(next(version.path for version in versions(tmp_path / DELTAS)))
    assert sum(hashed) <= difference.total_bytes, "when it was made, and not again"
    assert verify_folder(fetched.path, made[5].root).problems == ()


async def test_delta_fetch_rebuilds_wrong_shard_found_on_disk(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path, hashed: list[int]
) -> None:
    """A killed process left part of the step, and one bit of it has flipped since."""
    give(run_fixture, made[4], tmp_path)
    left = Path(
        shutil.copytree(version_path(run_fixture / "published", made[5].root), partial_path(tmp_path, made[5].root))
    )
    flip_bit(left / "model.safetensors", 2 * SHARD)
    fetched = await get_step(made, 5, tmp_path, origin.url)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-5")
    assert sum(hashed) >= made[5].total_bytes
    assert fetched.fetched_bytes == 0


async def test_a_relay_makes_a_step_of_the_difference_that_it_passes_on(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path, hashed: list[int]
) -> None:
    """The relay fetches the difference once, and hashes what it made once. A joiner gets all of the step from it."""
    for folder in ("relayed", "client"):
        give(run_fixture, made[4], tmp_path / folder)
    before = origin.stats["served_bytes"]
    async with relaying(tmp_path / "relayed", origin.url, follow=True) as (url, stats):
        await until(lambda: len(versions(tmp_path / "relayed")) == 3)
        assert sum(hashed) < 1.2 * made[4].total_bytes, "the step that it had, at its start"
        fetched = await get_step(made, 5, tmp_path / "client", url)
        assert stats.served_bytes < made[5].total_bytes / 20
        joiner = await get_step(made, 5, tmp_path / "joiner", url)
        (difference,) = [read_manifest(v.path) for v in versions(tmp_path / "client" / DELTAS)]
        assert stats.fetched_bytes == difference.total_bytes
    assert origin.stats["served_bytes"] - before == difference.total_bytes + len(difference.canonical)
    for found, of_step in ((fetched, 0), (joiner, made[5].total_bytes)):
        assert (found.fetched_bytes, contents(found.path)) == (of_step, contents(run_fixture / "checkpoint-5"))


async def test_a_relay_that_was_killed_uses_the_difference_that_it_has(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path
) -> None:
    published = [read_manifest(version.path) for version in versions(run_fixture / "published")]
    for manifest in published:
        if manifest.root == made[4].root or (manifest.step, manifest.base_step) == (5, 4):
            give(run_fixture, manifest, tmp_path)
    async with relaying(tmp_path, origin.url, follow=True) as (_, stats):
        await until(lambda: len(versions(tmp_path)) == 3)
        assert stats.fetched_bytes == 0


# What goes wrong


@pytest.mark.parametrize("damage", ["a bit", "a file"])
async def test_a_base_that_was_damaged_on_disk_costs_the_damaged_shards(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path, damage: str
) -> None:
    model = give(run_fixture, made[4], tmp_path) / "model.safetensors"
    if damage == "a bit":
        flip_bit(model, 3 * SHARD + 1)
    else:
        model.unlink()
    fetched = await get_step(made, 5, tmp_path, origin.url)
    assert fetched.fetched_bytes == (SHARD if damage == "a bit" else made[5].files[1].size)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-5")


async def test_a_start_that_lost_a_file_is_avoided_and_its_differences_are_not(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruning: list[bool] = []

    def prune(folder: Path, keep: int) -> list[bytes]:
        pruning.append(threading.current_thread() is threading.main_thread())
        return store.prune(folder, keep)

    monkeypatch.setattr(delta_fetch, "prune", prune)
    start = (await get_step(made, 2, tmp_path, origin.url)).path
    store.remove_version(version_path(tmp_path, made[0].root))
    (start / "model.safetensors").unlink()
    fetched = await get_step(made, 3, tmp_path, origin.url)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")
    assert made[0].total_bytes < fetched.delta_bytes < made[0].total_bytes * 1.05, "from step 0"
    assert pruning == [False] * 3, "it blocks, so it is kept off the event loop"


@pytest.fixture
def liar(run_fixture: Path, made: list[Manifest], tmp_path: Path) -> Path:
    """Return a folder with a small, well-formed delta from step 4 that yields other weights than step 5."""
    folder = tmp_path / "lies"
    shutil.copytree(run_fixture / "published", folder)
    forge_difference(folder, made[4], made[5])
    return folder


async def test_a_relay_whose_upstream_lies_about_a_difference_fetches_the_step(
    run_fixture: Path, made: list[Manifest], liar: Path, tmp_path: Path
) -> None:
    give(run_fixture, made[4], tmp_path / "relayed")
    async with (
        odd_source(liar) as (upstream, _, _),
        relaying(tmp_path / "relayed", upstream, follow=True) as (_, stats),
    ):
        await until(lambda: version_path(tmp_path / "relayed", made[5].root).exists())
        assert stats.fetched_bytes > made[5].total_bytes / 2
    assert contents(version_path(tmp_path / "relayed", made[5].root)) == contents(run_fixture / "checkpoint-5")


async def test_a_relay_makes_nothing_that_the_chain_does_not_have(
    run_fixture: Path, made: list[Manifest], tmp_path: Path
) -> None:
    refused: list[int] = []

    async def anchor(manifest: Manifest) -> None:
        if manifest.step == 5:
            refused.append(manifest.step)
            raise ChainError("step 5 is not published")

    give(run_fixture, made[4], tmp_path / "relayed")
    async with (
        odd_source(run_fixture / "published") as (upstream, _, _),
        relaying(tmp_path / "relayed", upstream, follow=True, anchor=anchor),
    ):
        await until(lambda: len(refused) >= 2)
        assert not list((tmp_path / "relayed").glob(".0x*.part"))
    assert {version.root for version in versions(tmp_path / "relayed")} == {made[4].root}


async def test_a_lying_difference_is_found_out_and_the_step_fetched_whole(
    run_fixture: Path, made: list[Manifest], liar: Path, tmp_path: Path
) -> None:
    give(run_fixture, made[4], tmp_path / "client")
    with capture_logs() as lines:
        async with odd_source(liar) as (url, _, _):
            fetched = await get_step(made, 5, tmp_path / "client", url)
    used = [(line["good"], line["bad"]) for line in lines if line["event"] == "used differences"]
    assert used == [(1, 4)], "it was given up early; the configuration has not changed"
    assert verify_folder(fetched.path, made[5].root).problems == ()
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-5")
    assert fetched.fetched_bytes == made[5].files[1].size, "the model, all of it"
    assert 0 < fetched.delta_bytes < made[5].total_bytes / 20


async def test_false_offers_do_not_block_honest_delta(
    run_fixture: Path, made: list[Manifest], origin: Server, liar: Path, tmp_path: Path
) -> None:
    give(run_fixture, made[4], tmp_path / "client")
    boast = [IndexEntry(root="0x" + "ab" * 32, run=RUN, step=5, base_step=4, size=1)] * 1000
    async with odd_source(liar) as (lies, _, _), odd_source(run_fixture / "published") as (loud, shelf, _):
        shelf.advertise = Index(versions=boast)
        fetched = await get_step(made, 5, tmp_path / "client", loud, lies, origin.url)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-5")
    assert (fetched.fetched_bytes, fetched.delta_bytes < made[5].total_bytes / 20) == (0, True)


async def test_false_sizes_do_not_block_the_differences_to_a_step_that_none_has_whole(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path
) -> None:
    async with odd_source(run_fixture / "published") as (loud, shelf, _):
        honest = await shelf.index()
        false = [entry.model_copy(update={"size": 1}) for entry in honest.versions if entry.base_step is not None]
        shelf.advertise = Index(versions=false)
        fetched = await get_step(made, 3, tmp_path, loud, origin.url)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")


async def test_a_difference_that_is_larger_than_was_said_is_not_fetched(
    run_fixture: Path, made: list[Manifest], tmp_path: Path
) -> None:
    give(run_fixture, made[4], tmp_path / "client")
    async with odd_source(run_fixture / "published") as (url, shelf, stats):
        honest = await shelf.index()
        shelf.advertise = Index(
            versions=[entry.model_copy(update={"size": 100}) if entry.base_step else entry for entry in honest.versions]
        )
        fetched = await get_step(made, 5, tmp_path / "client", url)
        assert "step.delta" not in shelf.opened
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-5")
    assert stats.served_bytes >= made[5].total_bytes


async def test_an_anchor_that_is_not_the_chains_is_not_fetched(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path
) -> None:
    fake = publish(write_step(tmp_path / "fake", 9), tmp_path / "fakes", RUN, 2, shard_bytes=SHARD)
    async with odd_source(tmp_path / "fakes") as (url, _, stats):
        fetched = await get_step(made, 3, tmp_path / "client", url, origin.url)
        assert fake.id not in [version.path.name for version in versions(tmp_path / "client")]
        assert stats.served_bytes == 0
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-3")


async def test_a_step_that_can_be_had_in_no_way_is_unreachable(
    run_fixture: Path, made: list[Manifest], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(run_fixture / "published", tmp_path / "published"))
    for version in versions(folder):
        if read_manifest(version.path).step == 2:
            shutil.rmtree(version.path)
    async with odd_source(folder) as (url, _, _):
        with pytest.raises(UnreachableError, match="no source has"):
            await get_step(made, 2, tmp_path / "client", url, give_up_seconds=3)


async def test_killed_while_it_applies_a_client_goes_on(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path
) -> None:
    give(run_fixture, made[4], tmp_path)
    killed = fetcher(made, 5, tmp_path, origin.url, MUSTER_FAILPOINT="shardcast.shard_made")
    assert killed.end()[0] == -9
    assert [version.root for version in versions(tmp_path)] == [made[4].root]
    before = origin.stats["served_bytes"]
    fetched = await get_step(made, 5, tmp_path, origin.url)
    assert origin.stats["served_bytes"] == before, "the difference and the manifest were on disk"
    assert (fetched.fetched_bytes, fetched.delta_bytes) == (0, 0)
    assert contents(fetched.path) == contents(run_fixture / "checkpoint-5")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([DELTAS, made[4].id, made[5].id])


def test_publisher_killed_before_delta_makes_it_after_restart(tmp_path: Path) -> None:
    publish_steps(tmp_path, 1)
    script = (
        "import pathlib, sys; from testbed.weights.checkpoints import publish_steps\n"
        "publish_steps(pathlib.Path(sys.argv[1]), 2, first=1)"
    )
    environment = os.environ | {"MUSTER_FAILPOINT": "shardcast.published_whole"}
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, timeout=BOUND)
    assert killed.returncode == -9
    publish_steps(tmp_path, 2, first=1)
    published = tmp_path / "published"
    found = [(made.step, made.base_step) for v in versions(published) if (made := read_manifest(v.path))]
    assert sorted(found, key=str) == [(0, None), (1, 0), (1, None)]
    assert sorted(p.name[0] for p in published.iterdir()) == ["0", "0", "0", "i"]
