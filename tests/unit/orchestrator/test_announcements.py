"""Announcements of members: whose count, how often, and how far their numbers can drive a sum."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert, select

from muster.chain.keys import Signer
from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.ledger.queries import NodeRecord
from muster.ledger.run_facts import ChainState
from muster.ledger.tables import checkpoints, entries, nodes
from muster.protocol.announcements import BenchmarkScore, NodeName
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.hashes import content_hash
from orchestrator import announcements as room
from orchestrator.announcements import Announcements
from orchestrator.auth import Caller
from orchestrator.log import Log
from testbed.samples.messages import request_of

OPERATOR, NODE, TRAINER, OWNER, OTHER = (Signer.from_key(digit * 64) for digit in "12345")
WHERE = Domain(31337, "0x" + "0a" * 20)
HASH = "0x" + "0d" * 32
RUN, START = 7, 1_800_000_000.0
RELAY, ELSEWHERE = "https://origin.example", "https://elsewhere.example"


class Clock:
    now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url, "a test")
    row = {"address": NODE.address, "operator": OPERATOR.address, "role": "worker", "work_class": 0}
    row |= {"status": "active", "block": 1, "first_step": 0}
    published = {"step": 3, "manifest_root": HASH, "batch_root": HASH, "anchor": HASH, "block": 1}
    published |= {"transaction": HASH, "entropy": HASH}

    def write(connection: Any) -> None:
        connection.execute(insert(nodes).values(row))
        connection.execute(insert(checkpoints).values(published))

    await opened.write(write)
    yield opened
    await opened.close()


@pytest.fixture
def said(database: Database, tmp_path: Path, clock: Clock) -> Announcements:
    keys = SimpleNamespace(trainer=TRAINER.address)
    queries: Any = SimpleNamespace(run=RUN, keys_now=keys, chain=ChainState(now=int(START)))
    documents = Log(WHERE, database, queries, storage_url=f"file:{tmp_path}", clock=clock)
    return Announcements(OWNER.address, queries, database, documents, clock=clock)


def caller(body: bytes = b"", role: str = "worker", status: str = "active", address: str = NODE.address) -> Caller:
    return Caller(
        address,
        request_of(content_hash(body)),
        NodeRecord(address, OPERATOR.address, role, status),
        is_trainer=False,
    )


def name(text: str, named: float = START, key: Signer = OPERATOR, **changes: Any) -> NodeName:
    fields = {"run": RUN, "node": NODE.address, "name": text, "named": int(named), "signature": UNSIGNED} | changes
    return sign_message(key, WHERE, NodeName(**fields))


def score(value: float = 0.5, key: Signer = TRAINER, **changes: Any) -> BenchmarkScore:
    fields = {"run": RUN, "step": 3, "benchmark": "gsm8k", "score": value, "low": 0.25, "high": 0.75, "tasks": 1319}
    fields |= {"samples": 1, "measured": int(START), "signature": UNSIGNED} | changes
    return sign_message(key, WHERE, BenchmarkScore(**fields))


async def rows(database: Database, table: Any, *columns: str) -> list[tuple]:
    query = select(*table.c[columns]).order_by(*table.primary_key.columns)
    return [tuple(row) for row in await database.read(lambda connection: connection.execute(query).all())]


# Names


async def test_a_node_is_named_once_a_minute_and_by_later_names_only(
    said: Announcements, database: Database, clock: Clock
) -> None:
    first = name("first", START - 10)
    assert await said.documents.take("name", first)
    assert not await said.documents.take("name", first)
    clock.now += 59
    with pytest.raises(RefusedError, match=f"^{NODE.address} was named less than a minute ago$") as caught:
        await said.documents.take("name", name("second", clock.now))
    assert (caught.value.status, caught.value.hint) == (409, "try again in 1 s")
    clock.now += 1
    assert await said.documents.take("name", name("second", clock.now, node=NODE.address.lower()))
    clock.now += 60
    for old in (first, name("third", clock.now - 60), name("third", START)):
        with pytest.raises(RefusedError, match=r"^another name about the same is known, as late or later$"):
            await said.documents.take("name", old)
    assert await said.documents.take("name", name("", clock.now))
    taken = await rows(database, entries, "kind", "key", "received", "text")
    assert {(kind, key) for kind, key, _, _ in taken} == {("name", NODE.address)}
    assert [(received, json.loads(text)["name"]) for _, _, received, text in taken] == [
        (START, "first"), (START + 60, "second"), (START + 120, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("announced", "status", "reason"),
    [
        (name("mine", key=OTHER), 403, f"the name is signed by {OTHER.address}, not by {OPERATOR.address}"),
        (name("mine", key=NODE), 403, f"the name is signed by {NODE.address}, not by {OPERATOR.address}"),
        (name("mine", node=OTHER.address), 404, f"{OTHER.address} is no node of run 7"),
        (name("mine", run=8), 404, "this orchestrator serves run 7, not 8"),
        (name("mine", START + 61), 422, "the name is of the future"),
        (name("<b>"), 422, "the name '<b>' may have letters, digits, spaces and"),
        (name("\u202e"), 422, r"the name '\\u202e' may have"),
    ],
)
async def test_names_that_are_refused(
    said: Announcements, database: Database, announced: NodeName, status: int, reason: str
) -> None:
    with pytest.raises(RefusedError, match=f"^{reason}") as caught:
        await said.documents.take("name", announced)
    assert caught.value.status == status
    assert await rows(database, entries, "text") == []
    assert await said.documents.segments.firsts() == []


async def test_name_changed_after_signing_is_refused(said: Announcements) -> None:
    with pytest.raises(RefusedError, match=r"^the name is signed by") as caught:
        await said.documents.take("name", name("mine").model_copy(update={"name": "thine"}))
    assert caught.value.status == 403
    with pytest.raises(RefusedError, match="upper s"):
        await said.documents.take("name", name("mine").model_copy(update={"signature": "0x" + "ff" * 64 + "1b"}))


async def test_name_dated_one_minute_ahead_is_accepted(said: Announcements) -> None:
    assert await said.documents.take("name", name("mine", START + 60))


# Scores

OWNERS = " or ".join(sorted((TRAINER.address, OWNER.address)))


async def test_scores_of_the_trainer_and_the_owner_are_kept_the_latest_counts(
    said: Announcements, database: Database
) -> None:
    first = score(0.5)
    assert await said.documents.take("score", first)
    assert not await said.documents.take("score", first)
    for old in (score(0.6), score(0.6, measured=int(START) - 1), score(0.5, key=OWNER)):
        with pytest.raises(RefusedError, match=r"^another score about the same is known, as late or later$"):
            await said.documents.take("score", old)
    assert await said.documents.take("score", score(0.625, key=OWNER, measured=int(START) + 1))
    assert await said.documents.take("score", score(0.25, benchmark="aime24"))
    taken = await rows(database, entries, "kind", "key", "text")
    assert [(kind, key, json.loads(text)["score"]) for kind, key, text in taken] == [
        ("score", "3:gsm8k", 0.5), ("score", "3:gsm8k", 0.625), ("score", "3:aime24", 0.25),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("announced", "status", "reason"),
    [
        (score(key=OTHER), 403, f"the score is signed by {OTHER.address}, not by {OWNERS}"),
        (score(key=NODE), 403, f"the score is signed by {NODE.address}, not by {OWNERS}"),
        (score().model_copy(update={"score": 0.75}), 403, "the score is signed by 0x[0-9a-fA-F]{40}, not by"),
        (score(step=4), 404, "run 7 has not published step 4"),
        (score(run=8), 404, "this orchestrator serves run 7, not 8"),
        (score(0.2), 422, "a score of 0.2 is not within 0.25 to 0.75"),
        (score(0.8), 422, "a score of 0.8 is not within 0.25 to 0.75"),
        (score(tasks=0), 422, "a score of no answers"),
        (score(samples=0), 422, "a score of no answers"),
        (score(measured=int(START) + 61), 422, "the score is of the future"),
    ],
)
async def test_scores_that_are_refused(
    said: Announcements, database: Database, announced: BenchmarkScore, status: int, reason: str
) -> None:
    with pytest.raises(RefusedError, match=f"^{reason}") as caught:
        await said.documents.take("score", announced)
    assert caught.value.status == status
    assert await rows(database, entries, "text") == []
    assert await said.documents.segments.firsts() == []


async def test_benchmarks_of_a_run_are_bounded(said: Announcements, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_BENCHMARKS", 2)
    for benchmark in ("a", "b"):
        await said.documents.take("score", score(benchmark=benchmark))
    with pytest.raises(RefusedError, match=r"^run 7 has scores on 2 benchmarks: there is no room$"):
        await said.documents.take("score", score(benchmark="c"))
    assert await said.documents.take("score", score(0.75, benchmark="a", measured=int(START) + 1))
