"""What lasts only minutes: relays, and machines of nodes of the run; the orchestrator's word, bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from explorer.current import Current
from muster.clients.orchestrator import OrchestratorClient
from muster.errors import MalformedError
from muster.ledger.database import Database
from muster.ledger.tables import machines
from muster.protocol.announcements import CurrentList, CurrentMachine, CurrentRelay
from testbed.http import Reply, serving
from testbed.runs.recorded_run import RUN, SampleRun, address
from testbed.samples.messages import HERE


def machine(node: str, **changes: Any) -> CurrentMachine:
    said = {"device": "H200", "devices": 8, "tokens_per_second": 9.5, "gas_hours": 3.0, "received": 1_000.0}
    return CurrentMachine(node=node, **said | changes)


async def rows(tmp_path: Path, body: bytes) -> tuple[Current, list[tuple[Any, ...]]]:
    """What a list leads to in a run with one node, wanda."""
    database = await Database.open(f"sqlite:///{tmp_path}/explorer.db", "a test")
    run = SampleRun(database, tmp_path)
    await run.join("wanda")
    with serving(lambda _request: Reply(body)) as url:
        async with OrchestratorClient(url, chain_id=HERE.chain_id, registry=HERE.registry, attempts=1) as client:
            current = Current(RUN, client, database)
            await current.poll()
    found = await database.read(lambda connection: connection.execute(select(machines)).all())
    await database.close()
    return current, [tuple(row) for row in found]


async def test_machines_of_the_run_and_relays_that_are_urls_are_known(tmp_path: Path) -> None:
    """Of a stranger nothing is kept, and a device's name is cleaned."""
    said = [machine(address("wanda").lower(), device="H200\u202e"), machine(address("stranger"))]
    relays = [CurrentRelay(url="https://one.example", operator=""), CurrentRelay(url="javascript:1", operator="")]
    current, found = await rows(tmp_path, CurrentList(relays=relays, machines=said).model_dump_json().encode())
    assert found == [(address("wanda"), "H200", 8, 9.5, 3.0, 1_000.0)]
    assert current.urls == ("https://one.example",)


@pytest.mark.parametrize("devices", [-1, 1 << 40])
async def test_a_list_that_is_none_is_refused(tmp_path: Path, devices: int) -> None:
    wrong = CurrentList(relays=[], machines=[machine(address("wanda"))]).model_dump_json()
    with pytest.raises(MalformedError):
        await rows(tmp_path, wrong.replace('"devices":8', f'"devices":{devices}').encode())
