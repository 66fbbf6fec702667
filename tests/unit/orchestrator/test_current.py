"""What lasts only minutes: who may say it, that the last counts, and that it is sent as it was signed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.ledger.queries import NodeRecord
from muster.ledger.run_facts import ChainState
from muster.ledger.statements import insert_new
from muster.ledger.tables import entries, nodes
from muster.protocol.announcements import CURRENT_KINDS, CurrentList, MachineReport
from muster.protocol.hashes import content_hash
from muster.protocol.messages import LogDocument, RelayOffer
from muster.protocol.receipts import open_text, sign_text
from orchestrator.auth import Caller
from orchestrator.current import CurrentDocuments
from orchestrator.log import Log
from orchestrator.relay_directory import CURRENT_SECONDS, RelayDirectory
from testbed.samples.messages import HERE, Key, request_of
from testbed.weights.servers import odd_source

RUN = 1
ANNE, BERT = Key(1), Key(2)
OWN = "https://origin.example"
H100 = MachineReport(run=RUN, device="H100", devices=8, tokens_per_second=250.5)


class Place:
    """A run with two workers, and the list of what is current."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.now, self.database = 1_000.0, database
        queries: Any = SimpleNamespace(run=RUN, chain=ChainState())
        documents = Log(HERE, database, queries, storage_url=f"file:{folder}")
        clock = lambda: self.now  # noqa: E731
        relays = RelayDirectory(RUN, "http://127.0.0.1:8546", [OWN], database, documents, clock=clock)
        self.said = CurrentDocuments(HERE, RUN, database, relays, clock=clock)

    async def say(self, kind: str, said: LogDocument, key: Key = ANNE, **caller: Any) -> bool:
        return await self.said.take(caller_of(key, **caller), sign_text(key, HERE, kind, said))

    async def listed(self) -> CurrentList:
        return CurrentList.model_validate_json(await self.said.list_json())


def caller_of(key: Key, *, status: str = "active", by: Key | None = None) -> Caller:
    sender = (by or key).address
    record = NodeRecord(sender, sender, "worker", status)
    return Caller(sender, request_of(content_hash(b"x")), record, is_trainer=False)


@pytest.fixture
async def place(tmp_path: Path, database_url: str) -> AsyncIterator[Place]:
    database = await Database.open(database_url, "run 1")
    same = {"role": "worker", "work_class": 0, "status": "active", "block": 1, "first_step": 0}
    rows = [{"address": key.address, "operator": key.address, **same} for key in (ANNE, BERT)]
    await database.write(lambda connection: insert_new(connection, nodes, rows))
    yield Place(database, tmp_path)
    await database.close()


async def test_what_nodes_say_is_sent_as_they_signed_it(place: Place, tmp_path: Path) -> None:
    """The last of a node and kind counts, for ten minutes; anybody can see who said it."""
    async with odd_source(tmp_path) as (url, _, _):
        assert await place.say("relay", RelayOffer(run=RUN, url=url + "/"))
    assert not await place.say("relay", RelayOffer(run=RUN, url=url)), "renewed: it need not answer again"
    assert await place.say("machine", replace_device("old"))
    place.now += 60
    assert not await place.say("machine", H100)
    assert await place.say("machine", H100, BERT)
    listed = await place.listed()
    opened = [
        (*open_text(HERE, one.signed, one.signed.kind, CURRENT_KINDS[one.signed.kind]), one) for one in listed.said
    ]
    offer = RelayOffer(run=RUN, url=url)
    machines = sorted([(H100, ANNE.address, 1_060.0), (H100, BERT.address, 1_060.0)], key=lambda one: one[1])
    assert [(said, by, one.received) for said, by, one in opened] == [(offer, ANNE.address, 1_000.0), *machines]
    assert listed.own == [OWN]
    place.now = 1_000 + CURRENT_SECONDS
    assert [one.signed.kind for one in (await place.listed()).said] == ["machine", "machine"]
    place.now += 60
    assert (await place.listed()).said == []
    rows = await place.database.read(lambda connection: connection.execute(entries.select()).all())
    assert rows == [], "none of it is part of the log"


def replace_device(device: str) -> MachineReport:
    return H100.model_copy(update={"device": device})


@pytest.mark.parametrize(
    ("kind", "said", "caller", "why"),
    [
        ("machine", H100, {"by": BERT}, f"the machine is signed by {ANNE.address}, the request by {BERT.address}"),
        ("machine", H100, {"status": "retired"}, "is no active node of run 1"),
        ("machine", H100, {"status": "jailed"}, "is no active node of run 1"),
        ("machine", H100.model_copy(update={"run": 2}), {}, "serves run 1, not 2"),
        ("relay", H100, {}, "does not parse"),
        ("report", H100, {}, "nothing current is a report"),
        ("relay", RelayOffer(run=RUN, url="http://127.0.0.1:1"), {}, "the orchestrator does not reach it"),
        ("relay", RelayOffer(run=RUN, url="ftp://x"), {}, "needs http"),
    ],
)
async def test_what_is_not_a_nodes_own_is_refused(
    place: Place, kind: str, said: LogDocument, caller: dict[str, Any], why: str
) -> None:
    with pytest.raises(RefusedError, match=why):
        await place.say(kind, said, **caller)
    assert (await place.listed()).said == []


async def test_nobody_else_can_send_what_a_node_signed(place: Place) -> None:
    """Neither its earlier words again, nor others under its signature."""
    signed = sign_text(ANNE, HERE, "machine", H100)
    with pytest.raises(RefusedError, match="the request by"):
        await place.said.take(caller_of(BERT), signed)
    forged = signed.model_copy(update={"text": replace_device("other").to_bytes().decode()})
    with pytest.raises(RefusedError, match="the machine is signed by"):
        await place.said.take(caller_of(ANNE), forged)
    stranger = replace(caller_of(ANNE), member=None)
    with pytest.raises(RefusedError, match="is no active node"):
        await place.said.take(stranger, signed)
    assert (await place.listed()).said == []
