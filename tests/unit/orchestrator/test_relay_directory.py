"""The relay directory: which relays are listed, for how long, and which reports hide one."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.ledger.run_facts import ChainState
from muster.ledger.statements import insert_new, upsert
from muster.ledger.tables import current, nodes
from muster.protocol.messages import MisbehaviourReport, SignedText
from muster.protocol.receipts import open_text, sign_text
from muster.shardcast.serve.http_server import FileRequest
from orchestrator.log import Log
from orchestrator.relay_directory import (
    CURRENT_SECONDS,
    HIDDEN_SECONDS,
    MAX_CHECKS,
    MAX_LISTED,
    MAX_REPORTS,
    RelayDirectory,
)
from testbed.samples.messages import HERE, Key
from testbed.waiting import BOUND
from testbed.weights.servers import odd_source

KEYS = {key.address: key for key in (Key(number) for number in range(1, 6))}
ANNE, BERT, CLEO, DORA, ERIK = KEYS
"""Dora is no member, and Erik's operator is Bert."""
ROOT = "0x" + "0d" * 32
OWN = "https://origin.example"
HER_RELAY = "https://anne.example:8700"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def directory(tmp_path: Path, database_url: str, clock: Clock) -> AsyncIterator[RelayDirectory]:
    database = await Database.open(database_url, "run 1")
    others = {"role": "worker", "work_class": 0, "status": "active", "block": 1, "first_step": 0}
    operators = {ANNE: ANNE, BERT: BERT, CLEO: CLEO, ERIK: BERT}
    members = [{"address": address, "operator": operator, **others} for address, operator in operators.items()]
    await database.write(lambda connection: insert_new(connection, nodes, members))
    yield directory_of(database, tmp_path, "https://hub.example", OWN + "/", clock=clock)
    await database.close()


def directory_of(
    database: Database, folder: Path, url: str, *own: str, clock: Callable[[], float] = time.time
) -> RelayDirectory:
    queries: Any = SimpleNamespace(run=1, chain=ChainState())
    documents = Log(HERE, database, queries, storage_url=f"file:{folder}", clock=clock)
    return RelayDirectory(1, url, list(own), database, documents, clock=clock)


async def offer(directory: RelayDirectory, node: str, url: str = HER_RELAY) -> None:
    """Let a node have offered a URL that answered (`test_current.py`)."""
    row = {"kind": "relay", "node": node, "key": url, "received": directory.clock(), "text": ""}
    await directory.database.write(lambda connection: upsert(connection, current, row))


def lie(url: str = HER_RELAY, run: int = 1) -> MisbehaviourReport:
    return MisbehaviourReport(run=run, url=url, root=ROOT, why="shard 3 hashes to something else")


async def report(directory: RelayDirectory, who: str, said: MisbehaviourReport | None = None) -> bool:
    return await directory.documents.take("misbehaviour", sign_text(KEYS[who], HERE, "misbehaviour", said or lie()))


async def listed(directory: RelayDirectory) -> list[str]:
    return await directory.database.read(directory.listed)


async def test_owner_relays_come_first_then_the_offers_renewed_last(directory: RelayDirectory, clock: Clock) -> None:
    assert await listed(directory) == [OWN]
    await offer(directory, ANNE)
    clock.now = 10
    await offer(directory, BERT, "https://bert.example")
    assert await listed(directory) == [OWN, "https://bert.example", HER_RELAY]
    clock.now = 20
    await offer(directory, ANNE)
    assert await listed(directory) == [OWN, HER_RELAY, "https://bert.example"]
    await offer(directory, ANNE, OWN)  # a URL that is already listed adds nothing
    assert await listed(directory) == [OWN, "https://bert.example"]


async def test_an_offer_that_is_not_renewed_ends(directory: RelayDirectory, clock: Clock) -> None:
    await offer(directory, ANNE)
    clock.now = CURRENT_SECONDS - 1
    assert await listed(directory) == [OWN, HER_RELAY]
    clock.now = CURRENT_SECONDS
    assert await listed(directory) == [OWN]


async def test_the_list_is_bounded(directory: RelayDirectory) -> None:
    for i in range(MAX_LISTED + 5):
        await offer(directory, f"0x{i:040x}", f"https://relay-{i}.example")
    assert len(await listed(directory)) == MAX_LISTED


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://x", "needs http"),
        ("http://x/?a", "query"),
        ("http://127.0.0.1:1", "not an address of the public network"),
        ("http://10.1.2.3", "not an address of the public network"),
        ("http://169.254.169.254", "not an address of the public network"),
        ("http://[::1]:80", "not an address of the public network"),
        ("http://localhost", "not an address of the public network"),
    ],
)
async def test_invalid_or_private_url_is_refused(directory: RelayDirectory, url: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        await directory.check(ANNE, url)
    assert await listed(directory) == [OWN]


async def test_a_local_swarm_lists_local_relays(tmp_path: Path, database_url: str) -> None:
    database = await Database.open(database_url, "run 1")
    local = directory_of(database, tmp_path, "http://127.0.0.1:8546")
    await offer(local, ANNE, "http://127.0.0.1:9000")
    assert await listed(local) == ["http://127.0.0.1:9000"]
    await database.close()


async def test_new_offer_must_answer(tmp_path: Path, database_url: str, clock: Clock) -> None:
    database = await Database.open(database_url, "run 1")
    local = directory_of(database, tmp_path, "http://127.0.0.1:8546", clock=clock)
    async with odd_source(tmp_path) as (url, _, _):
        assert await local.check(ANNE, url + "/") == url
        await offer(local, ANNE, url)
    await local.check(ANNE, url)  # renewed: not tried again
    with pytest.raises(RefusedError, match="the orchestrator does not reach it") as refused:
        await local.check(BERT, url)
    assert refused.value.status == 422
    clock.now = CURRENT_SECONDS
    with pytest.raises(RefusedError, match="the orchestrator does not reach it"):
        await local.check(ANNE, url)
    await database.close()


async def test_name_of_a_private_address_is_not_asked(
    directory: RelayDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[FileRequest] = []
    async with odd_source(tmp_path) as (url, origin, _):

        def hear(request: FileRequest) -> FileRequest:
            heard.append(request)
            return request

        origin.hear = hear
        here = ("127.0.0.1", urlsplit(url).port)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", here)])
        with pytest.raises(RefusedError, match="does not reach it at an address of the public network"):
            await directory.check(ANNE, "http://anne.example")
    assert heard == []


async def test_offers_tried_at_the_same_time_are_bounded(
    directory: RelayDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()

    def resolve(*_: object) -> None:
        held.wait(BOUND)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    urls = [f"https://relay-{i}.example" for i in range(MAX_CHECKS + 1)]
    checks = [asyncio.create_task(directory.check(ANNE, url)) for url in urls]
    done, _ = await asyncio.wait(checks, return_when=asyncio.FIRST_COMPLETED)
    held.set()
    with pytest.raises(RefusedError, match="other offers are being tried"):
        await done.pop()
    await asyncio.wait(checks)
    for check in checks[:MAX_CHECKS]:
        assert isinstance(check.exception(), RefusedError)


async def test_two_operators_hide_an_offer_and_one_does_not(directory: RelayDirectory, clock: Clock) -> None:
    await offer(directory, ANNE)
    assert await report(directory, BERT)
    assert not await report(directory, BERT), "the report is a repetition"
    assert not await report(directory, ERIK), "the same operator"
    assert await report(directory, ANNE), "a node may report its own relay"
    assert await listed(directory) == [OWN, HER_RELAY]
    assert await report(directory, CLEO)
    assert await listed(directory) == [OWN]
    clock.now = HIDDEN_SECONDS
    await offer(directory, ANNE)
    assert await listed(directory) == [OWN, HER_RELAY], "the reports have expired"
    for reporter in (CLEO, BERT):  # who says the same again is heard again
        await report(directory, reporter)
    assert await listed(directory) == [OWN]


async def test_the_owner_s_relay_is_never_hidden(directory: RelayDirectory) -> None:
    for reporter in (ANNE, BERT, CLEO):
        assert await report(directory, reporter, lie(OWN))
    assert await listed(directory) == [OWN]


async def test_report_is_stored_with_its_signature(directory: RelayDirectory) -> None:
    await offer(directory, ANNE)
    await report(directory, BERT)
    (kept,) = (await directory.documents.page(0)).entries
    signed = SignedText.model_validate_json(kept.text)
    assert open_text(HERE, signed, "misbehaviour", MisbehaviourReport) == (lie(), BERT)


async def test_reports_of_one_operator_are_bounded(directory: RelayDirectory, clock: Clock) -> None:
    for i in range(MAX_REPORTS):
        await offer(directory, ANNE, f"https://relay-{i}.example")
        assert await report(directory, BERT, lie(f"https://relay-{i}.example"))
    await offer(directory, ANNE)
    with pytest.raises(RefusedError, match=f"has reported {MAX_REPORTS} relays"):
        await report(directory, BERT)
    assert await report(directory, CLEO)
    clock.now = HIDDEN_SECONDS
    await offer(directory, ANNE)
    assert await report(directory, BERT)


async def test_report_about_an_unlisted_relay_is_refused(directory: RelayDirectory) -> None:
    with pytest.raises(RefusedError, match="is no relay of run 1"):
        await report(directory, BERT, lie("https://elsewhere.example"))
