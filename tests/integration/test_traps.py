"""Traps at a real orchestrator: what a worker learns, who gets a ticket, and what is secret until a master is shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from muster.chain.masters_file import write_masters
from muster.constants import TOKEN
from muster.contracts import masters as masters_contract
from muster.contracts.run_terms import Series
from muster.errors import RefusedError
from muster.grading.masters import Masters
from muster.protocol.eip712 import UNSIGNED, sign_message
from muster.protocol.hashes import hex_hash
from muster.protocol.messages import PlantedRow, TicketRequest, TrapMap, TrapPromise, TrapTicket
from muster.protocol.terms import Terms
from muster.protocol.traps import check_opened, check_promise, check_ticket, is_picked, map_tree, planted_rows
from orchestrator.database import Database
from orchestrator.statements import insert_once
from orchestrator.tables import nodes
from orchestrator.traps import AHEAD
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
from testbed.samples.terms import terms_of
from testbed.waiting import until

HOLDERS = [f"holder {number}" for number in range(120)]
"""Workers that the orchestrator knows, and the chain does not: joins take long."""


@dataclass
class Place:
    """A run with traps, and its orchestrator."""

    fixture: RunFixture
    orchestrator: Orchestrator
    terms: Terms
    masters: Masters
    entropy: bytes
    refused: str = ""
    """A holder that the lottery picks soon, and that the owner gives no more tickets."""
    seconds: dict[tuple[str, int, str], int] = field(default_factory=dict)
    """Of the receipts of uploaded files."""

    def drawn(self, name: str, index: int) -> bool:
        node = self.fixture.key(name).address
        master, every = self.masters.of(1), self.terms.trap_every
        return is_picked(master=master, entropy=self.entropy, node=node, index=index, every=every)

    def find(self, *, drawn: bool, skip: int = 0) -> tuple[str, int]:
        """Return a node and one of its next indices that is a trap or none."""
        found = [(name, i) for name in HOLDERS for i in range(AHEAD) if self.drawn(name, i) == drawn]
        return [(name, i) for name, i in found if name != self.refused][skip]

    def request(self, name: str, index: int, *, root: str, salt: int = 1, **changes: Any) -> TicketRequest:
        """Return what a worker asks a ticket by; `changes` of its signed consent."""
        count = planted_rows(self.terms.positions, index)
        planted = TrapMap(
            salt=hex_hash(bytes([salt] * 32)), rows=[PlantedRow(position=i, token=3) for i in range(count)]
        )
        work = {"run": self.fixture.run, "node": self.fixture.key(name).address, "index": index, "root": root}
        ticket = {"map_root": hex_hash(map_tree(planted).root), "stored_at": self.seconds.get((name, index, root), 0)}
        consent = TrapTicket(**{**work, **ticket, "signature": UNSIGNED, **changes})
        signed = sign_message(self.fixture.key(name), self.fixture.domain, consent)
        return TicketRequest(step=0, consent=signed, map=planted)

    async def upload(self, name: str, index: int, root: str) -> None:
        async with self.fixture.client(self.orchestrator.url, name) as client:
            receipt = await client.put_file(f"{name} {index} {root}".encode(), self.fixture.run, index, root)
        self.seconds[name, index, root] = receipt.stored_at

    async def ticket(self, name: str, request: TicketRequest) -> TrapTicket:
        async with self.fixture.client(self.orchestrator.url, name) as client:
            return await client.ticket(request)

    async def refusal(self, name: str, request: TicketRequest) -> tuple[int, str]:
        """Return status and reason, without the title."""
        with pytest.raises(RefusedError) as caught:
            await self.ticket(name, request)
        return caught.value.status, str(caught.value).partition(": ")[2]


@pytest.fixture(scope="module")
def place(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("traps")
    masters = Masters.make(2)
    traps = {
        "trap_every": 20,
        "trap_prize": 4 * TOKEN,
        "trap_tip": masters.tip,
        "trap_epochs": 2,
        "trap_epoch_steps": 1,
    }
    fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="traps", workers=("w1",), **traps))
    asyncio.run(fixture.publish(0))
    write_masters(folder / "trap-masters", masters)
    orchestrator = Orchestrator(fixture, folder / "orchestrator", trap_masters=folder / "trap-masters")
    made = Place(fixture, orchestrator, terms_of(**traps), masters, asyncio.run(entropy_of(fixture)))
    made.refused, _ = made.find(drawn=True)
    orchestrator.change({"orchestrator.no_tickets": [fixture.key(made.refused).address.lower()]})
    asyncio.run(register(fixture, orchestrator))
    with orchestrator:
        yield made
    assert "Traceback" not in orchestrator.json_log.read_text()


async def entropy_of(fixture: RunFixture) -> bytes:
    async with fixture.chain("w1") as chain:
        return (await chain.draw_source(fixture.key("w1").address)).entropy


async def register(fixture: RunFixture, orchestrator: Orchestrator) -> None:
    joined = {"role": "worker", "work_class": 0, "status": "active", "draw_tip": some_hash(""), "block": 1}
    database = await Database.open(orchestrator.database_url, fixture.about)
    for name in HOLDERS:
        address = fixture.key(name).address
        row = {**joined, "address": address, "operator": address, "first_step": 0}
        await database.write(lambda connection, row=row: insert_once(connection, nodes, row))
    await database.close()


async def test_a_node_alone_can_tell_whether_it_was_drawn(place: Place) -> None:
    """Each answer is one signature. To whom it promises something checks it; to anybody else all look alike."""
    fixture, sizes = place.fixture, set()
    async with fixture.chain("w1") as chain:
        keys, now = await chain.keys(fixture.run), (await chain.head()).timestamp
    for name, index in [place.find(drawn=drawn, skip=skip) for drawn in (True, False) for skip in range(4)]:
        async with fixture.client(place.orchestrator.url, name) as client:
            body = json.dumps({"index": index, "step": 0}).encode()
            answer = await client._call("POST", f"/v1/runs/{fixture.run}/traps/question", body)  # noqa: SLF001
            sizes.add(len(answer))
            signature = await client.ask_for_trap(fixture.run, index, 0)
        about = {"run": fixture.run, "node": fixture.key(name).address, "index": index, "step": 0}
        promise = TrapPromise(**about, signature=signature)
        assert check_promise(fixture.domain, promise, keys, now) == place.drawn(name, index)
        for other in ({"index": index + 1}, {"step": 1}, {"node": fixture.key("w1").address}):
            stolen = promise.model_copy(update=other)
            assert not check_promise(fixture.domain, stolen, keys, now)
    assert len(sizes) == 1


async def test_node_that_gets_no_ticket_more_is_promised_nothing(place: Place) -> None:
    """It gets an answer like any other, also where the lottery picks it; the others are still promised traps."""
    fixture, root = place.fixture, some_hash("no ticket")
    name, index = place.refused, next(i for i in range(AHEAD) if place.drawn(place.refused, i))
    await place.upload(name, index, root)
    status, why = await place.refusal(name, place.request(name, index, root=root))
    assert (status, why) == (403, f"commitment {index} of {fixture.key(name).address} is to be no trap")
    async with fixture.chain("w1") as chain:
        keys, now = await chain.keys(fixture.run), (await chain.head()).timestamp
    for (asking, at), promised in {(name, index): False, place.find(drawn=True): True}.items():
        async with fixture.client(place.orchestrator.url, asking) as client:
            signature = await client.ask_for_trap(fixture.run, at, 0)
        about = {"run": fixture.run, "node": fixture.key(asking).address, "index": at, "step": 0}
        assert check_promise(fixture.domain, TrapPromise(**about, signature=signature), keys, now) == promised


@pytest.mark.parametrize(
    ("who", "index", "step", "status", "why"),
    [
        ("v1", 0, 0, 403, "is no active worker"),
        (HOLDERS[0], AHEAD, 0, 409, "is not one of the node's next 4"),
        (HOLDERS[0], 0, 1, 425, "step 1 is not published"),
    ],
)
async def test_who_may_ask_about_what(place: Place, who: str, index: int, step: int, status: int, why: str) -> None:
    async with place.fixture.client(place.orchestrator.url, who) as client:
        with pytest.raises(RefusedError, match=why) as caught:
            await client.ask_for_trap(place.fixture.run, index, step)
    assert caught.value.status == status


async def test_a_ticket_is_given_once_and_for_one_map(place: Place) -> None:
    fixture, root = place.fixture, some_hash("once")
    name, index = place.find(drawn=True)
    request = place.request(name, index, root=root)
    assert await place.refusal(name, request) == (409, f"no file of index {index} and this root is uploaded")
    await place.upload(name, index, root)
    second = place.seconds[name, index, root]
    why = f"the ticket is of second 0, the file's receipt of {second}"
    assert await place.refusal(name, request) == (409, why)
    request = place.request(name, index, root=root)
    ticket = await place.ticket(name, request)
    async with fixture.chain("w1") as chain:
        keys, head = await chain.keys(fixture.run), await chain.head()
    check_ticket(fixture.domain, ticket, request.consent, keys)
    assert (ticket.root, ticket.map_root) == (root, request.consent.map_root)
    assert ticket.stored_at == second <= head.timestamp
    assert await place.ticket(name, request) == ticket
    other = place.request(name, index, root=root, salt=2)
    assert await place.refusal(name, other) == (409, f"index {index} has a ticket of this root and of another map")


async def test_tickets_that_are_refused(place: Place) -> None:
    """Not drawn, not signed by the node, for somebody else, of too few rows, of another root of the map."""
    name, index = place.find(drawn=False)
    root = some_hash("refused")
    await place.upload(name, index, root)
    status, why = await place.refusal(name, place.request(name, index, root=root))
    assert (status, why) == (403, f"commitment {index} of {place.fixture.key(name).address} is to be no trap")

    drawn, at = place.find(drawn=True, skip=1)
    await place.upload(drawn, at, root)
    good = place.request(drawn, at, root=root)
    other = place.request(next(one for one in HOLDERS if one != drawn), at, root=root)
    assert (await place.refusal(drawn, other))[0] == 403
    forged = good.model_copy(update={"consent": good.consent.model_copy(update={"signature": other.consent.signature})})
    assert "the map is signed by" in (await place.refusal(drawn, forged))[1]
    unsigned = good.model_copy(update={"consent": good.consent.model_copy(update={"root": some_hash("another")})})
    assert "the map is signed by" in (await place.refusal(drawn, unsigned))[1]
    assert "the map's root is" in (await place.refusal(drawn, place.request(drawn, at, root=root, map_root=root)))[1]
    two = good.model_copy(update={"map": good.map.model_copy(update={"rows": [*good.map.rows, *good.map.rows]})})
    assert "a map names 1 rows" in (await place.refusal(drawn, two))[1]
    assert (await place.ticket(drawn, good)).root == root


async def test_no_ticket_after_the_commitment(place: Place) -> None:
    root = some_hash("late")
    await place.upload("w1", 0, root)
    await place.fixture.commit("w1", 0, root)

    report = f"/v1/nodes/{place.fixture.key('w1').address}"
    await until(lambda: place.orchestrator.json(report).get("commitments") == 1, "the orchestrator sees the commitment")
    refusal = await place.refusal("w1", place.request("w1", 0, root=root))
    assert refusal[1] == "index 0 is committed: a ticket would be too late"


async def test_maps_are_public_once_the_master_is_shown(place: Place, tmp_path: Path) -> None:
    """Last of this module: from then on there are no more tickets of this epoch. A new database has them too."""
    fixture, root = place.fixture, some_hash("opened")
    name, index = place.find(drawn=True, skip=2)
    await place.upload(name, index, root)
    request = place.request(name, index, root=root)
    ticket = await place.ticket(name, request)
    async with fixture.client(place.orchestrator.url, None) as client:
        with pytest.raises(RefusedError, match="the master of trap epoch 1 is not shown") as caught:
            await client.traps(fixture.run, 1)
        assert caught.value.status == 425

    async with fixture.chain("owner") as chain:
        await chain.send(masters_contract.reveal_master(fixture.run, Series.TRAPS, place.masters.of(1)))
        keys = await chain.keys(fixture.run)
    await until(lambda: place.orchestrator.get(f"/v1/runs/{fixture.run}/traps/1")[0] == 200, "the master is seen")
    another, at = place.find(drawn=True, skip=3)
    await place.upload(another, at, root)
    assert (await place.refusal(another, place.request(another, at, root=root)))[0] == 409

    async def opened(url: str) -> None:
        async with fixture.client(url, None) as client:
            page = await client.traps(fixture.run, 1)
            assert (await client.traps(fixture.run, 1, page.cursor)).traps == []
        (found,) = [one for one in page.traps if one.ticket.root == root]
        assert found.ticket == ticket
        assert found.rows == {0}
        given = {
            "terms": place.terms,
            "keys": keys,
            "entropy": place.entropy,
            "epoch": 1,
            "master": place.masters.of(1),
        }
        check_opened(fixture.domain, found, step=0, **given)

    await opened(place.orchestrator.url)
    storage = place.orchestrator.settings["orchestrator.storage_url"]
    masters = place.orchestrator.settings["orchestrator.trap_masters"]
    anew = Orchestrator(fixture, tmp_path / "anew", storage_url=storage, trap_masters=masters)
    with anew as running:
        await until(lambda: running.get(f"/v1/runs/{fixture.run}/traps/1")[0] == 200, "the chain is read")
        await opened(running.url)
