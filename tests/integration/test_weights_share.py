"""A worker shares the weights it holds: listed by the orchestrator, fetched from by another, gone when it lies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from house import House, Orchestrator
from node_house import until
from weights_house import contents, publish_step

from muster.messages import LieReport
from muster.settings import ShardcastSettings
from muster.shardcast.client import fetch_with_report
from worker.sharing import share

NOBODY = "http://127.0.0.1:9"
"""The owner's relay in these houses: nothing listens there."""


async def test_a_worker_shares_what_it_holds(deployment: Any, tmp_path: Path) -> None:
    house = await House.build(tmp_path, deployment.settings, seed="share", workers=("w1", "w2"))
    manifest = publish_step(tmp_path, 3, run=house.run)
    orchestrator = await asyncio.to_thread(Orchestrator(house, tmp_path / "orchestrator").start)
    try:
        async with house.client(orchestrator.url, "w1") as client, asyncio.TaskGroup() as group:
            settings = ShardcastSettings(share=True, port=0)
            sharing = group.create_task(share(tmp_path / "published", house.run, settings, client))

            async def listed() -> bool:
                return len(await client.relays(house.run)) == 2

            await until("the offer is listed", listed, 30)
            owners, shared = await client.relays(house.run)
            assert owners == NOBODY
            fetched = await fetch_with_report(manifest.root, house.run, 3, [shared], tmp_path / "in")
            assert contents(fetched.path) == contents(tmp_path / "checkpoint-3")

            lie = LieReport(run=house.run, url=shared, root=manifest.id, why="shard 0 is not what the root says")
            for reporter in ("v1", "v2"):
                async with house.client(orchestrator.url, reporter) as accuser:
                    await accuser.report_lie(lie)
            assert await client.relays(house.run) == [NOBODY]
            told = await client.events(house.run)
            lies = [event["data"] for event in told["events"] if event["kind"] == "relay lied"]
            assert [line["by"] for line in lies] == [house.key(name).address for name in ("v1", "v2")]
            sharing.cancel()
    finally:
        await asyncio.to_thread(orchestrator.stop)
