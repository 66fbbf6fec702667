"""What nodes say of their machines, to a real orchestrator: through an outage, and from real worker and validator."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.clients import machine_report
from muster.clients.machine_report import MachineReporter, TokenRate
from muster.clients.orchestrator import OrchestratorClient
from muster.ledger.tables import machines
from muster.protocol.announcements import MachineReport, clean_device
from muster.runtime.processor import processor_name
from testbed.chain.contracts import Deployment
from testbed.processes import ended
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.runs.world import World
from testbed.waiting import until


class Counting(OrchestratorClient):
    """Counts the reports that it was to send."""

    sent = 0

    async def report_machine(self, report: MachineReport) -> None:
        self.sent += 1
        await super().report_machine(report)


async def test_neither_outage_nor_refusal_ends_a_node(
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
    with orchestrator:
        async with member, stranger, asyncio.TaskGroup() as group:
            reporting = [
                group.create_task(MachineReporter(member, run, TokenRate(), lambda: "H100\u202e", 4).run()),
                group.create_task(MachineReporter(stranger, run, TokenRate(), lambda: "H200").run()),
            ]

            reports: list[float] = []

            async def reported() -> bool:
                found = [received for (received,) in await orchestrator.rows(machines, "received")]
                is_new, reports[:] = found != reports, found
                return bool(found) and is_new

            await until(reported, "the first report")
            await asyncio.to_thread(orchestrator.stop)
            tried = member.sent

            async def has_tried() -> bool:
                return member.sent > tried + 2 and stranger.sent > 2

            await until(has_tried, "reports are sent while the orchestrator is down")
            await asyncio.to_thread(orchestrator.start)
            await until(reported, "a report after that")
            columns = ("node", "device", "devices", "tokens_per_second")
            assert await orchestrator.rows(machines, *columns) == [(w1, "H100", 4, 0.0)]
            assert not any(task.done() for task in reporting)
            for task in reporting:
                task.cancel()


@pytest.mark.slow
async def test_nodes_report_their_machine_unless_disabled(world: World) -> None:
    run_fixture, orchestrator = world.run_fixture, world.orchestrator
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
