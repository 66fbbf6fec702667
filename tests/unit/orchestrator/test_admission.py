"""Admission under load: which requests get a place, by kind of caller and by address."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.requests import Request

from muster.protocol.requests import HEADER_SIGNATURE
from muster.runtime.connection_table import ConnectionTable, Owner
from muster.runtime.slots import ALWAYS, Slots
from orchestrator import admission
from orchestrator.admission import MemberAdmission
from orchestrator.app import contributed, documents_log, runs

TRAINER, MEMBER = Owner("0xtrainer", is_trainer=True), Owner("0xmember", is_trainer=False)


async def until_waiting() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Connection(SimpleNamespace):
    """An open connection without a socket."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Crowd:
    """An application that answers once `go` is set, behind a MemberAdmission with one place for each kind."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun: list[str] = []
        self.answered: list[str] = []
        self.recognised: Owner | None = None
        self.table = ConnectionTable(1000)
        self.admission = MemberAdmission(self.answer, self.recognise, self.table)
        self.admission.slots_by_kind = {kind: Slots(1, 0, share=1.0) for kind in self.admission.slots_by_kind}

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.append(scope["path"])
        if scope["path"] not in ALWAYS:
            await self.go.wait()
        self.answered.append(scope["path"])

    async def recognise(self, _: Request) -> Owner | None:
        return self.recognised

    def connection(self, address: str = "a", owner: Owner | None = None, *, proxied: bool = False) -> Any:
        connection: Any = Connection(address=address, owner=None, proxied=proxied, busy=True, since=0.0)
        self.table.add(connection, 0.0)
        if owner is not None:
            self.table.claim(connection, owner)
        return connection

    async def request(self, path: str, connection: Any, **headers: str) -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        asked = {"method": "GET", "path": path, "query_string": b""}
        await self.admission(scope_of(connection, **headers) | asked, receive, send)
        return sent


async def test_strangers_do_not_keep_health_trainer_and_members_out() -> None:
    crowd = Crowd()
    first = asyncio.create_task(crowd.request("/first", crowd.connection()))
    await until_waiting()
    start, body = await crowd.request("/second", crowd.connection("b"))
    headers = dict(start["headers"])
    assert (start["status"], headers[b"retry-after"]) == (503, b"1")
    assert headers[b"content-type"] == b"application/problem+json"
    assert json.loads(body["body"])["title"] == "Too many requests"
    for path in sorted(ALWAYS):
        assert await crowd.request(path, crowd.connection()) == []
    others = [
        asyncio.create_task(crowd.request(f"/{owner.address}", crowd.connection(owner=owner)))
        for owner in (TRAINER, MEMBER)
    ]
    await until_waiting()
    crowd.go.set()
    await asyncio.gather(first, *others)
    assert crowd.answered == [*sorted(ALWAYS), "/first", "/0xtrainer", "/0xmember"]


async def test_a_signature_makes_the_connection_a_members() -> None:
    crowd = Crowd()
    crowd.go.set()
    connection, crowd.recognised = crowd.connection(), MEMBER
    await crowd.request("/", connection)
    assert connection.owner is None, "the request has no signature"
    await crowd.request("/", connection, muster_signature="0x")
    assert connection.owner == MEMBER


class Board:
    """Notes what is held."""

    def __init__(self) -> None:
        self.held: list[Callable[[None], None]] = []

    def hold(self, seen: str, seconds: float, deliver: Callable[[None], None]) -> None:
        assert (seen, seconds) == ("3-0-1", 20)
        self.held.append(deliver)

    def forget(self, deliver: Callable[[None], None]) -> None:
        self.held.remove(deliver)


async def test_held_questions_take_slots_of_their_own_and_beyond_these_are_answered_at_once() -> None:
    crowd, board, started = Crowd(), Board(), []
    crowd.admission.slots_by_kind["held"] = Slots(4, 0)

    def ask(path: str = "/v1/runs/7/demand", query: bytes = b"wait=20&seen=3-0-1", signature: str = "") -> Any:
        connection = crowd.connection("a")
        connection.start = started.append
        scope = scope_of(connection, **{HEADER_SIGNATURE.lower(): signature} if signature else {}) | {
            "method": "GET",
            "path": path,
            "query_string": query,
        }
        return connection, crowd.admission.hold(board, 7, connection, SimpleNamespace(scope=scope))  # type: ignore[arg-type]

    assert not ask("/other")[1]
    assert not ask(query=b"")[1]
    assert not ask(signature="0x00")[1], "who signed it is not known yet"
    held = [ask() for _ in range(3)]
    assert [was_held for _, was_held in held] == [True, True, False], "a party has half of the slots"
    board.held.pop(0)(None)
    assert len(started) == 1, "the routes say why there is no answer"
    assert ask()[1]
    held[1][0].on_lost()
    assert len(board.held) == 1
    assert ask()[1]


async def test_slow_uploads_take_no_slot_from_other_requests_of_members() -> None:
    crowd = Crowd()
    upload = scope_of(crowd.connection(owner=MEMBER)) | {"method": "PUT", "path": "/v1/files/0xaa"}
    assert await crowd.admission.party(upload) == ("uploader", MEMBER.address)
    assert await crowd.admission.party(upload | {"method": "GET"}) == ("member", MEMBER.address)
    stranger = upload | {"state": {"connection": crowd.connection("a")}}
    assert await crowd.admission.party(stranger) == ("reader", "a")


LISTED = "/v1/runs/7/log"


async def test_one_list_is_made_at_a_time_signed_or_not_and_the_trainer_does_not_wait() -> None:
    crowd = Crowd()
    crowd.admission.slots_by_kind |= {kind: Slots(8, 8, share=1.0) for kind in ("member", "stranger", "trainer")}
    crowd.admission.slots_by_kind["list"] = Slots(1, 32, share=1 / 4)
    paths = (LISTED, "/v1/runs/7/looks/5")
    asked = [(path, owner, "a") for path in paths for owner in (None, MEMBER)]
    lists = [
        asyncio.create_task(crowd.request(path, crowd.connection(address, owner))) for path, owner, address in asked
    ]
    trainers = asyncio.create_task(crowd.request(LISTED, crowd.connection(owner=TRAINER)))
    other = asyncio.create_task(crowd.request("/v1/join", crowd.connection("a")))
    await until_waiting()
    assert crowd.begun == [LISTED, LISTED, "/v1/join"], "one list, the trainer's, and what is none"
    crowd.go.set()
    await asyncio.gather(*lists, trainers, other)
    assert len(crowd.answered) == 6


async def test_a_list_on_its_way_to_a_slow_reader_holds_up_no_other() -> None:
    crowd, reading = Crowd(), asyncio.Event()

    async def answer(_: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def read_slowly(*_: Any) -> Any:
        await reading.wait()

    crowd.admission = MemberAdmission(answer, crowd.recognise, crowd.table)
    slow = asyncio.create_task(
        crowd.admission(scope_of(crowd.connection("a")) | {"path": LISTED}, read_slowly, read_slowly)
    )
    await until_waiting()
    for _ in range(2):
        assert [one["status"] for one in await crowd.request(LISTED, crowd.connection("b"))] == [200]
    assert not slow.done()
    reading.set()
    await slow
    assert crowd.admission.slots_by_kind["list"].take("c")
    assert not crowd.admission.slots_by_kind["list"].take("d"), "it was handed back once"


def test_lists_are_what_is_read_by_a_cursor() -> None:
    routes = contributed.routes + documents_log.routes + runs.routes
    reads = [route for route in routes if isinstance(route, APIRoute) and "GET" in route.methods]
    by_cursor = {route.path for route in reads if any(one.name == "after" for one in route.dependant.query_params)}
    listed = {route.path for route in reads if admission.LISTS.fullmatch(re.sub("{[^}]*}", "7", route.path))}
    assert listed == by_cursor


@pytest.mark.parametrize("written", ["/v1/runs/+7/{}", "/v1/runs/ 7/{}", "/v1/runs/7.0/{}", "/v1/runs/7/{}\n"])
async def test_a_path_takes_its_kind_of_slot_however_a_route_reads_it(written: str) -> None:
    """A route takes its number in each of these forms."""
    crowd = Crowd()
    crowd.go.set()
    for kind, path in (("list", "log"), ("list", "looks/7"), ("stranger", "nodes/0x")):
        assert crowd.admission.slots_by_kind[kind].take("b")
        sent = await crowd.request(written.format(path), crowd.connection())
        assert [one["status"] for one in sent[:1]] == [503], path
        crowd.admission.slots_by_kind[kind].release("b")
    assert not crowd.begun


async def test_a_proxys_question_takes_a_slot_of_its_own_and_recognises_nobody() -> None:
    crowd = Crowd()
    crowd.recognised = MEMBER
    connection = crowd.connection("proxy", proxied=True)
    scope = scope_of(connection, muster_signature="0x", x_forwarded_for="203.0.113.1") | {"path": admission.CHECK}
    assert await crowd.admission.party(scope) == ("check", "203.0.113.1")


async def test_behind_a_trusted_proxy_requests_count_and_not_connections() -> None:
    crowd = Crowd()
    connection, crowd.recognised = crowd.connection("proxy", proxied=True), MEMBER
    signed = {"muster_signature": "0x", "x_forwarded_for": "203.0.113.1"}
    assert await crowd.admission.party(scope_of(connection, **signed)) == ("member", MEMBER.address)
    assert connection.owner is None, "a stranger's request may be the next on this connection"
    forwarded = scope_of(connection, x_forwarded_for="10.0.0.1, 203.0.113.9")
    assert await crowd.admission.party(forwarded) == ("stranger", "203.0.113.9")
    added = scope_of(connection, x_forwarded_for="192.0.2.7")
    added["headers"].append((b"x-forwarded-for", b"203.0.113.9"))
    assert await crowd.admission.party(added) == ("stranger", "203.0.113.9"), "HAProxy adds a second header line"
    assert await crowd.admission.party(scope_of(connection)) == ("stranger", "proxy")
    reading = scope_of(connection) | {"path": "/v1/files/0x00"}
    assert await crowd.admission.party(reading) == ("reader", "proxy"), "slow downloads do not block other requests"
    direct = scope_of(crowd.connection("a"), x_forwarded_for="203.0.113.9")
    assert await crowd.admission.party(direct) == ("stranger", "a"), "only a trusted proxy may name the address"


def scope_of(connection: Any, **headers: str) -> Any:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    asked = {"method": "GET", "path": "/v1/join", "query_string": b""}
    return {"type": "http", **asked, "headers": raw, "state": {"connection": connection}}
