"""What nodes say of their machines, to a real orchestrator: through an outage, and from real worker and validator."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.clients import machine_report
from muster.clients.machine_report import MachineMeter, MachineReporter
from muster.clients.orchestrator import OrchestratorClient
from muster.protocol.announcements import MachineReport, clean_device
from muster.protocol.messages import RelayOffer
from muster.runtime.processor import processor_name
from muster.shardcast.format.store import read_manifest, versions
from orchestrator.tables import machines, served
from testbed.chain.contracts import Deployment
from testbed.processes import ended
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.runs.world import World
from testbed.waiting import until

OWNERS_RELAY = "http://127.0.0.1:9"


class Counting(OrchestratorClient):
    """Counts the reports that it was to send."""

    sent = 0

    async def report_machine(self, report: MachineReport) -> None:
        self.sent += 1
        await super().report_machine(report)


async def test_neither_outage_nor_refusal_ends_a_node_or_loses_what_it_counted(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_report, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(machine_report, "REPORT_SECONDS", 0.1)
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="machine", workers=("w1",))
    orchestrator = Orchestrator(run_fixture, tmp_path / "orchestrator")
    w1, run, book = run_fixture.key("w1").address, run_fixture.run, run_fixture.book
    where = {"chain_id": book.chain_id, "registry": book.registry, "timeout": 30, "attempts": 1}
    member = Counting(orchestrator.url, run_fixture.key("w1"), **where)
    stranger = Counting(orchestrator.url, run_fixture.key("stranger"), **where)
    meter = MachineMeter()
    with orchestrator:
        async with member, stranger, asyncio.TaskGroup() as group:
            reporting = [
                group.create_task(MachineReporter(member, run, meter, lambda: "H100\u202e", 4).run()),
                group.create_task(MachineReporter(stranger, run, MachineMeter(), lambda: "H200").run()),
            ]

            async def reported(*expected: tuple) -> bool:
                return await orchestrator.rows(served, "url", "node", "bytes") == list(expected)

            meter.add_received(OWNERS_RELAY, 1_000)
            await until(lambda: reported((OWNERS_RELAY, w1, 1_000)), "the first report")
            await asyncio.to_thread(orchestrator.stop)
            meter.add_received(OWNERS_RELAY, 23)
            tried = member.sent

            async def has_tried() -> bool:
                return member.sent > tried + 2 and stranger.sent > 2

            await until(has_tried, "reports are sent while the orchestrator is down")
            await asyncio.to_thread(orchestrator.start)
            await until(lambda: reported((OWNERS_RELAY, w1, 1_023)), "the report after that")
            columns = ("node", "device", "devices", "tokens_per_second")
            assert await orchestrator.rows(machines, *columns) == [(w1, "H100", 4, 0.0)]
            assert not any(task.done() for task in reporting)
            for task in reporting:
                task.cancel()


@pytest.mark.slow
async def test_nodes_report_their_machine_unless_disabled(world: World) -> None:
    run_fixture, orchestrator, origin = world.run_fixture, world.orchestrator, world.origin
    async with run_fixture.client(orchestrator.url, "w5") as listing:
        await listing.offer_relay(RelayOffer(run=run_fixture.run, url=origin.url))
    processes = {}
    for name, role, silent in (("w1", "worker", False), ("v1", "validator", False), ("w2", "worker", True)):
        processes[name] = world.node(role, name, **({f"{role}.report_machine": False} if silent else {}))
    with ended(*processes.values()):
        for process in processes.values():
            process.start()

        async def said() -> bool:
            found = await orchestrator.rows(machines, "node", "tokens_per_second")
            return dict(found).get(w1, 0) > 0 and v1 in dict(found)

        async def silent_one_works() -> bool:
            return bool(processes["w2"].logged("generated"))

        w1, v1 = run_fixture.key("w1").address, run_fixture.key("v1").address
        await until(said, "the worker generates and says so")
        await until(silent_one_works, "another one generates")
        found = await orchestrator.rows(machines, "node", "device", "devices", "tokens_per_second")
        device = clean_device(processor_name())
        assert sorted(row[:3] for row in found) == sorted([(w1, device, 1), (v1, device, 1)])
        assert {row[0]: row[3] for row in found}[v1] == 0

        manifest = read_manifest(versions(run_fixture.folder / "published")[0].path)

        async def received() -> bool:
            return await orchestrator.rows(served, "url", "node", "bytes") == [
                (origin.url, node, manifest.total_bytes) for node in sorted([w1, v1])
            ]

        await until(received, "both have said from where they have the weights")
