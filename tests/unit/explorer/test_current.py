"""What lasts only minutes: relays, and machines of nodes of the run; signatures checked, bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from explorer.current import Current, ListedRelay
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts.registry import Registered, Role
from muster.errors import MalformedError
from muster.ledger.database import Database
from muster.ledger.tables import machines
from muster.protocol.announcements import CurrentDocument, CurrentList, MachineReport
from muster.protocol.messages import LogDocument, RelayOffer
from muster.protocol.receipts import sign_text
from testbed.http import Reply, serving
from testbed.runs.recorded_run import RUN, SampleRun, address
from testbed.samples.messages import HERE, Key

KEYS = {name: Key(number) for number, name in enumerate(("wanda", "vera", "stranger"), 1)}
H200 = MachineReport(run=RUN, device="H200\u202e", devices=8, tokens_per_second=9.5, gas_hours=3.0)


def said(by: str, kind: str, document: LogDocument) -> CurrentDocument:
    return CurrentDocument(signed=sign_text(KEYS[by], HERE, kind, document), received=1_000.0)


async def rows(tmp_path: Path, *bodies: bytes) -> tuple[Current, list[tuple[Any, ...]]]:
    """What lists lead to, one after the other, in a run with a worker, wanda, and a validator, vera."""
    database = await Database.open(f"sqlite:///{tmp_path}/explorer.db", "a test")
    run = SampleRun(database, tmp_path)
    for name, role in (("wanda", Role.WORKER), ("vera", Role.VALIDATOR)):
        operator = address(f"{name}'s operator")
        await run.happen(Registered, KEYS[name].address, operator, RUN, role, 0, 1, bytes(32))
    left = list(bodies)
    with serving(lambda _request: Reply(left.pop(0))) as url:
        async with OrchestratorClient(url, chain_id=HERE.chain_id, registry=HERE.registry, attempts=1) as client:
            current = Current(RUN, client, database)
            for _ in bodies:
                await current.poll()
    found = await database.read(lambda connection: connection.execute(select(machines)).all())
    await database.close()
    return current, sorted(tuple(row) for row in found)


def listed(*documents: CurrentDocument) -> bytes:
    own = ["https://one.example", "javascript:1"]
    return CurrentList(own=own, said=list(documents)).model_dump_json().encode()


async def test_machines_of_the_run_and_relays_that_are_urls_are_known(tmp_path: Path) -> None:
    """Of a stranger nothing is kept; a device's name is cleaned; a validator makes no tokens."""
    documents = [
        said("wanda", "relay", RelayOffer(run=RUN, url="https://two.example/")),
        said("vera", "relay", RelayOffer(run=RUN, url="https://one.example")),  # the owner's
        said("vera", "relay", RelayOffer(run=RUN, url="https://two.example")),  # listed already
        said("stranger", "relay", RelayOffer(run=RUN, url="https://three.example")),
        *(said(name, "machine", H200) for name in ("wanda", "vera", "stranger")),
    ]
    current, found = await rows(tmp_path, listed(*documents), listed(*documents))
    wanda, vera = KEYS["wanda"].address, KEYS["vera"].address
    expected = [(wanda, "H200", 8, 9.5, 3.0, 1_000.0), (vera, "H200", 8, 0.0, 3.0, 1_000.0)]
    assert found == sorted(expected)
    (theirs,) = [relay for relay in current.relays if relay.operator]
    assert current.relays[0] == ListedRelay(url="https://one.example", operator="")
    assert theirs == ListedRelay(url="https://two.example", operator=address("wanda's operator"))
    assert len(current.relays) == 2


async def test_what_an_orchestrator_makes_up_is_left_out(tmp_path: Path) -> None:
    """Changed words, words of another run, of no known kind, or under no signature."""
    good = said("wanda", "machine", H200)
    spoilt = [
        good.signed.model_copy(update={"text": good.signed.text.replace('"devices":8', '"devices":9')}),
        good.signed.model_copy(update={"run": RUN + 1}),
        good.signed.model_copy(update={"kind": "relay"}),
        good.signed.model_copy(update={"kind": "report"}),
        good.signed.model_copy(update={"signature": "0x" + "ff" * 65}),
    ]
    documents = [good.model_copy(update={"signed": one}) for one in spoilt]
    current, found = await rows(tmp_path, listed(*documents))
    assert (found, current.urls) == ([], ("https://one.example",))


@pytest.mark.parametrize("received", ["-1", "NaN", '"x"'])
async def test_a_list_that_is_none_is_refused(tmp_path: Path, received: str) -> None:
    body = listed(said("wanda", "machine", H200)).replace(b"1000.0", received.encode())
    with pytest.raises(MalformedError):
        await rows(tmp_path, body)
