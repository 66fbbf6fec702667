"""What nodes say of their machines, to a real orchestrator: through an outage, and from real worker and validator."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.clients import machine_report
from muster.clients.machine_report import MachineReporter, TokenRate
from muster.clients.orchestrator import OrchestratorClient
from muster.ledger.tables import current
from muster.protocol.announcements import MachineReport, Said, clean_device
from muster.protocol.receipts import open_text
from muster.runtime.processor import processor_name
from testbed.chain.contracts import Deployment
from testbed.processes import ended
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.runs.world import World
from testbed.waiting import until


class Counting(OrchestratorClient):
    """Counts the reports that it was to send."""

    sent = 0

    async def say(self, kind: str, said: Said) -> None:
        self.sent += 1
        await super().say(kind, said)


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
                found = [received for (received,) in await orchestrator.rows(current, "received")]
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
            (said,) = (await member.current(run)).said
            report = MachineReport(run=run, device="H100", devices=4, tokens_per_second=0.0)
            assert open_text(run_fixture.domain, said.signed, "machine", MachineReport) == (report, w1)
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

        async def machines() -> dict[str, MachineReport]:
            async with run_fixture.client(orchestrator.url, "w1") as client:
                listed = (await client.current(run_fixture.run)).said
            signed = [one.signed for one in listed if one.signed.kind == "machine"]
            opened = [open_text(run_fixture.domain, one, "machine", MachineReport) for one in signed]
            return {node: said for said, node in opened}

        async def said() -> bool:
            found = await machines()
            return v1 in found and w1 in found and found[w1].tokens_per_second > 0

        async def silent_one_works() -> bool:
            return bool(processes["w2"].logged("generated"))

        w1, v1 = run_fixture.key("w1").address, run_fixture.key("v1").address
        await until(said, "the worker generates and says so")
        await until(silent_one_works, "another one generates")
        found = await machines()
        device = clean_device(processor_name())
        assert {node: (one.device, one.devices) for node, one in found.items()} == {w1: (device, 1), v1: (device, 1)}
        assert found[v1].tokens_per_second == 0
