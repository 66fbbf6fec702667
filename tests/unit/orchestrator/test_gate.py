"""Who may send what is signed: each signature is recovered once, and strangers take no place among the writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, update
from starlette.requests import Request

from muster.errors import RefusedError
from muster.ledger import tables
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.run_facts import ChainState
from muster.ledger.statements import insert_once
from muster.protocol.hashes import NOTHING_HASH
from muster.protocol.requests import HEADER_SIGNATURE, sign_request
from orchestrator import auth
from orchestrator.auth import Gate
from testbed.samples.messages import HERE, KEY, OTHER, Key
from testbed.samples.terms import keys_of, terms_of

URL = "http://here/v1/verdicts"


class Gates:
    """A gate, what it reads, and how often it recovers a signature, reads and writes."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: dict[str, int] = {}
        self.queries = Queries(database, 1, terms_of(), keys_of(OTHER.address), groups_wanted=16)
        self.polls: list[Callable[[], Any]] = []
        self.gate = Gate(HERE, "http://here", [], database=database, queries=self.queries, follower=self)  # type: ignore[arg-type]
        for owner, name in ((auth, "verify_request"), (database, "read"), (database, "write")):
            monkeypatch.setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.counts[name] = self.counts.get(name, 0) + 1
            return plain(*arguments, **options)

        return counted

    def expect_complete(self) -> None:
        """Be a follower that knows the whole chain."""

    async def next_poll(self) -> None:
        """Be the follower: what a test says happens on the chain, happens in the next poll."""
        while self.polls:
            await self.polls.pop()()
        self.queries.chain = ChainState()


@pytest.fixture
async def gates(database: Database, monkeypatch: pytest.MonkeyPatch) -> Gates:
    await database.write(join(KEY.address))
    return Gates(database, monkeypatch)


def join(address: str) -> Callable[[Connection], bool]:
    node = {"address": address, "operator": address, "role": "validator", "status": "active"}
    return lambda connection: insert_once(
        connection, tables.nodes, node | {"block": 1, "work_class": 0, "first_step": 0}
    )


def request(key: Key, **changed: str) -> Request:
    headers = sign_request(key, HERE, "POST", URL, NOTHING_HASH, now=time.time()) | changed
    pairs = [(name.lower().encode(), value.encode()) for name, value in {"host": "here", **headers}.items()]
    scope = {"type": "http", "method": "POST", "path": "/v1/verdicts", "query_string": b"", "headers": pairs}
    return Request(scope | {"raw_path": b"/v1/verdicts"})


async def test_signature_is_recovered_once_and_member_read_once(gates: Gates) -> None:
    for _ in range(3):
        sent = request(KEY)
        assert await gates.gate.recognise(sent) is not None
        caller = await gates.gate.enter(sent)
        assert (caller.address, caller.is_trainer) == (KEY.address, False)
        caller.active_validator()
    assert gates.counts == {"verify_request": 3, "read": 1, "write": 3}


async def test_invalid_signature_is_refused_without_database(gates: Gates) -> None:
    sent = request(KEY, **{HEADER_SIGNATURE: "0x" + "zz" * 65})
    assert await gates.gate.recognise(sent) is None
    with pytest.raises(RefusedError) as refused:
        await gates.gate.enter(sent)
    assert refused.value.status == 401
    assert gates.counts == {"verify_request": 1}


async def test_stranger_writes_nothing(gates: Gates) -> None:
    sent = request(Key(7))
    assert await gates.gate.recognise(sent) is None
    with pytest.raises(RefusedError) as refused:
        await gates.gate.enter(sent)
    assert refused.value.status == 403
    assert "write" not in gates.counts


async def test_node_that_joined_a_moment_ago_enters(gates: Gates, database: Database) -> None:
    gates.polls.append(lambda: database.write(join(Key(7).address)))
    assert (await gates.gate.enter(request(Key(7)))).address == Key(7).address


async def test_convicted_member_is_known_after_the_next_poll(gates: Gates, database: Database) -> None:
    (await gates.gate.enter(request(KEY))).active_validator()
    await database.write(lambda c: c.execute(update(tables.nodes).values(status="jailed")))
    await gates.next_poll()
    with pytest.raises(RefusedError, match="is no active validator"):
        (await gates.gate.enter(request(KEY))).active_validator()


async def test_trainer_enters_without_being_a_node(gates: Gates) -> None:
    caller = await gates.gate.enter(request(OTHER))
    assert (caller.is_trainer, caller.member) == (True, None)


async def test_replay_is_refused(gates: Gates) -> None:
    sent = request(KEY)
    await gates.gate.enter(sent)
    with pytest.raises(RefusedError) as refused:
        await gates.gate.enter(Request({**sent.scope, "state": {}}))
    assert refused.value.title == "Replayed request"


def question(sent: Request, method: str = "POST", target: str = "/v1/verdicts", **changed: str) -> Request:
    """Return what a proxy asks about a request: another path and method, the same signature."""
    named = {"x-original-method": method, "x-original-uri": target} | changed
    headers = [*sent.scope["headers"], *((name.encode(), value.encode()) for name, value in named.items())]
    asked = {"method": "GET", "path": "/v1/signed", "raw_path": b"/v1/signed", "headers": headers}
    return Request({**sent.scope, **asked, "state": {"connection": SimpleNamespace(proxied=True)}})


async def test_a_proxy_hears_whether_a_member_signed_and_the_signature_is_as_good_as_before(gates: Gates) -> None:
    sent = request(KEY)
    for _ in range(3):
        await gates.gate.check(question(sent))
    await gates.gate.check(question(request(OTHER)))  # the trainer's
    assert await gates.gate.recognise(sent) is not None, "it is a member's request still"
    assert (await gates.gate.enter(sent)).address == KEY.address


@pytest.mark.parametrize(
    ("method", "target"),
    [("PUT", "/v1/verdicts"), ("POST", "/v1/evidence"), ("POST", "/v1/verdicts?x=1"), ("", ""), ("GET", "/v1/signed")],
)
async def test_a_signature_of_another_request_is_none(gates: Gates, method: str, target: str) -> None:
    with pytest.raises(RefusedError):
        await gates.gate.check(question(request(KEY), method, target))


async def test_a_proxy_stores_nothing_for_strangers_nor_for_convicted_members(gates: Gates, database: Database) -> None:
    with pytest.raises(RefusedError) as refused:
        await gates.gate.check(question(request(Key(7))))
    assert refused.value.status == 403
    await gates.gate.check(question(request(KEY)))
    await database.write(lambda connection: connection.execute(update(tables.nodes).values(status="jailed")))
    await gates.next_poll()
    with pytest.raises(RefusedError):
        await gates.gate.check(question(request(KEY)))
    with pytest.raises(RefusedError) as refused:
        await gates.gate.check(question(request(KEY, **{HEADER_SIGNATURE: "0x" + "11" * 65})))
    assert refused.value.status in (401, 403)
