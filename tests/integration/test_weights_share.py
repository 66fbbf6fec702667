"""A worker shares the weights it holds: listed by the orchestrator, fetched from by another, gone when it lies."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from muster.clients.orchestrator import OrchestratorClient
from muster.clients.relays import FRESH_SECONDS, Relays
from muster.clients.run_data import CheckpointFetcher
from muster.contracts import runs
from muster.errors import MusterError, UnreachableError
from muster.models.files import tokenizer_hash
from muster.protocol.messages import MisbehaviourReport, RelayOffer, SignedText
from muster.protocol.receipts import open_text
from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.fetch import FetchRequest, fetch_version
from muster.shardcast.format.store import version_path
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.waiting import until
from testbed.weights.checkpoints import SHARD, contents, publish_step
from testbed.weights.servers import odd_source
from worker.service import share

OWNERS_RELAY = "http://127.0.0.1:9"
"""The URL of the owner's relay in these runs. Nothing listens there."""


async def test_a_worker_shares_what_it_holds(deployment: Any, tmp_path: Path) -> None:
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="share", workers=("w1", "w2"))
    manifest = publish_step(tmp_path, 3, run=run_fixture.run)
    with Orchestrator(run_fixture, tmp_path / "orchestrator") as orchestrator:
        async with run_fixture.client(orchestrator.url, "w1") as client, asyncio.TaskGroup() as group:
            settings = ShardcastSettings(port=0)
            relays = Relays(settings, client, run_fixture.run)
            sharing = group.create_task(share(tmp_path / "published", run_fixture.run, settings, client, relays))

            async def listed() -> bool:
                return len(await client.relays(run_fixture.run)) == 2

            await until(listed, "the offer is listed")
            owners, shared = await client.relays(run_fixture.run)
            assert owners == OWNERS_RELAY
            assert await relays.urls() == [OWNERS_RELAY]  # a node does not fetch from its own relay
            fetched = await fetch_version(FetchRequest(manifest.root, run_fixture.run, 3, [shared], tmp_path / "in"))
            assert contents(fetched.path) == contents(tmp_path / "checkpoint-3")

            lie = MisbehaviourReport(
                run=run_fixture.run, url=shared, root=manifest.id, why="shard 0 is not what the root says"
            )
            for reporter in ("v1", "v2"):
                async with run_fixture.client(orchestrator.url, reporter) as accuser:
                    await accuser.add_document("misbehaviour", lie)
            assert await client.relays(run_fixture.run) == [OWNERS_RELAY]
            assert await lies(run_fixture, client) == [
                (run_fixture.key(name).address, shared, lie.why) for name in ("v1", "v2")
            ]
            sharing.cancel()


async def lies(run_fixture: RunFixture, client: OrchestratorClient) -> list[tuple[str, str, str]]:
    """Return who reported which relay, and why, as the log has it."""
    page = await client.log(run_fixture.run, kind="misbehaviour")
    signed = [SignedText.model_validate_json(one.text) for one in page.entries]
    opened = [open_text(run_fixture.domain, one, "misbehaviour", MisbehaviourReport) for one in signed]
    return [(by, report.url, report.why) for report, by in opened]


def with_a_bit_flipped(published: Path) -> Path:
    """Return a copy of a folder of versions with a bit of every shard changed."""
    copy = shutil.copytree(published, published.parent / "flipped")
    for file in copy.rglob("model.safetensors"):
        data = bytearray(file.read_bytes())
        data[::SHARD] = bytes(byte ^ 1 for byte in data[::SHARD])
        file.write_bytes(data)
    return copy


async def test_corrupt_relay_is_reported_and_delisted(deployment: Any, tmp_path: Path) -> None:
    """Two operators fetch from a relay that flips a bit. They keep nothing of it, and the directory drops the relay."""
    publish_step(tmp_path, 0)
    promised = tokenizer_hash(tmp_path / "checkpoint-0")
    run_fixture = await RunFixture.build(
        tmp_path, deployment.settings, seed="liar", workers=("w1",), tokenizer_hash=promised
    )
    manifest = publish_step(tmp_path, 0, run=run_fixture.run)
    with Orchestrator(run_fixture, tmp_path / "orchestrator") as orchestrator:
        async with run_fixture.chain("trainer") as chain, run_fixture.client(orchestrator.url, "w1") as member:
            await chain.send(runs.publish_checkpoint(run_fixture.run, 0, manifest.root, bytes(32)))
            terms = await chain.terms(run_fixture.run)
            async with odd_source(with_a_bit_flipped(tmp_path / "published")) as (url, _, _):
                await member.say("relay", RelayOffer(run=run_fixture.run, url=url))
                for name in ("v1", "v2"):
                    async with run_fixture.client(orchestrator.url, name) as client:
                        folder = tmp_path / name
                        relays = Relays(ShardcastSettings(), client, run_fixture.run)
                        hasty = FetchBounds(give_up_seconds=20)
                        checkpoints = CheckpointFetcher(chain, terms, relays, folder, bounds=hasty)
                        with pytest.raises(MusterError, match="hashes to"):
                            await checkpoints.get(0)
                        assert not version_path(folder, manifest.root).exists()
            assert await member.relays(run_fixture.run) == [OWNERS_RELAY]
            told = [(by, relay) for by, relay, _ in await lies(run_fixture, member)]
            assert told == [(run_fixture.key(name).address, url) for name in ("v1", "v2")]


async def test_worker_that_cannot_be_reached_says_so_and_shares_nothing(deployment: Any, tmp_path: Path) -> None:
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="unreached", workers=("w1",))
    with Orchestrator(run_fixture, tmp_path / "orchestrator") as orchestrator:
        async with run_fixture.client(orchestrator.url, "w1") as client:
            settings = ShardcastSettings(port=0, url="http://127.0.0.1:10")
            relays = Relays(settings, client, run_fixture.run)
            with capture_logs() as lines:
                await share(tmp_path / "published", run_fixture.run, settings, client, relays)
            assert await client.relays(run_fixture.run) == [OWNERS_RELAY]
    (line,) = [line for line in lines if line["event"] == "not sharing weights"]
    assert "the orchestrator does not reach it" in line["why"]
    assert "shardcast.url" in line["next"]


async def test_relay_directory_refreshes_and_survives_outage(deployment: Any, tmp_path: Path) -> None:
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="directory", workers=("w1",))
    now = 0.0
    with Orchestrator(run_fixture, tmp_path / "orchestrator") as orchestrator:
        async with (
            odd_source(tmp_path) as (url, _, _),
            run_fixture.client(orchestrator.url, "w1", timeout=30) as client,
        ):
            relays = Relays(ShardcastSettings(), client, run_fixture.run, clock=lambda: now)
            assert await relays.urls() == [OWNERS_RELAY]
            await client.say("relay", RelayOffer(run=run_fixture.run, url=url))
            assert await relays.urls() == [OWNERS_RELAY]
            now += FRESH_SECONDS
            assert await relays.urls() == [OWNERS_RELAY, url]
            await asyncio.to_thread(orchestrator.stop)
            relays.expire()
            assert await relays.urls() == [OWNERS_RELAY, url]
            with pytest.raises(UnreachableError):
                await Relays(ShardcastSettings(), client, run_fixture.run).urls()
