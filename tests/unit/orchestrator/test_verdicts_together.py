"""Verdicts that arrive at the same time are recorded in one transaction, with what they would leave one by one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, select

from muster.errors import RefusedError
from muster.ledger import tables, tallies
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.run_facts import ChainState
from muster.ledger.statements import insert_new, insert_once
from muster.protocol.eip712 import sign_message
from muster.protocol.messages import Verdict
from orchestrator.log import Log
from orchestrator.verdicts import Verdicts
from testbed.samples.commitments import WHERE, rules
from testbed.samples.messages import KEY, NOTHING, OTHER, verdict_of

WORKER, ANNE, BERT = "0x" + "11" * 20, OTHER.address, KEY.address
VALIDATOR: dict[str, Any] = {"operator": WORKER, "role": "validator", "work_class": 0, "status": "active"}
VALIDATOR |= {"block": 1, "first_step": 0}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url, "a test")
    await opened.write(furnish)
    yield opened
    await opened.close()


def furnish(connection: Connection) -> None:
    """Write two validators, and two commitments of a worker, each with its file and who was called."""
    insert_new(connection, tables.nodes, [{**VALIDATOR, "address": address} for address in (ANNE, BERT)])
    work = {"node": WORKER, "step": 0, "hour": 1, "block": 1, "root": NOTHING}
    tallies.put_commitments(connection, [{**work, "index": index} for index in (0, 1)])
    for index in (0, 1):
        about = {"node": WORKER, "index": index}
        kept = {"root": NOTHING, "file_hash": NOTHING, "size": 1, "document": "", "received": 0.0}
        insert_once(connection, tables.uploads, about | kept)
        called = {"block": 2, "hash": NOTHING, "order": json.dumps([ANNE, BERT]), "opens": 100}
        insert_once(connection, tables.calls, about | called)


@pytest.fixture
def documents(tmp_path: Path, database: Database) -> Log:
    terms, unused, url = replace(rules().terms, accepts_required=2), None, f"file:{tmp_path}"
    queries = Queries(database, 1, terms, groups_wanted=16)
    queries.chain = ChainState(now=100)
    documents = Log(WHERE, database, queries, storage_url=url)
    Verdicts(WHERE, queries, database, documents, unused, storage_url=url)  # type: ignore[arg-type]
    return documents


def judged(validator: str, inspected: int = 0, index: int = 0, reason: str | None = None) -> Verdict:
    work = {"node": WORKER, "index": index, "root": NOTHING, "accepted": reason is None, "reason": reason}
    verdict = verdict_of(**work, validator=validator, inspected=inspected)
    return sign_message(KEY if validator == BERT else OTHER, WHERE, verdict)


async def taken_of(documents: Log, *verdicts: Verdict) -> list[bool | int]:
    """Offer verdicts at the same time; return of each whether it is new, or the status of its refusal."""
    found = await asyncio.gather(*(documents.take("verdict", one) for one in verdicts), return_exceptions=True)
    return [one.status if isinstance(one, RefusedError) else bool(one) for one in found]  # type: ignore[misc]


async def rows(database: Database, table: Table, *columns: str) -> list[tuple[Any, ...]]:
    query = select(*table.c[columns]).order_by(*table.c[columns])
    return [tuple(row) for row in await database.read(lambda connection: connection.execute(query).all())]


MISSING = judged(ANNE, reason="data_missing")
FIRST = [
    (MISSING, True),
    (judged(ANNE, 1), 429),  # about the same, in the same moment
    (judged(BERT), True),
    (judged(BERT, index=1, reason="wrong_root"), True),
    (judged(ANNE, index=1, reason="wrong_reward"), True),
]
THEN = [
    (judged(ANNE, 1), True),  # in place of the one before
    (judged(BERT), False),  # the same again
    (judged(BERT, 2, index=1), 409),  # another one about the same work
]


async def test_a_batch_leaves_what_single_verdicts_would(database: Database, documents: Log) -> None:
    for batch in (FIRST, THEN):
        version = await database.current_version()
        assert await taken_of(documents, *(verdict for verdict, _ in batch)) == [found for _, found in batch]
        assert await database.current_version() == version + 1, "one transaction"
    assert await documents.segments.firsts() == [0, 4], "and one file"
    kept = [(ANNE, 0, True), (ANNE, 1, False), (BERT, 0, True), (BERT, 1, False)]
    assert await rows(database, tables.verdicts, "validator", "index", "accepted") == kept
    counts = [(ANNE, "accepts", 1), (ANNE, "rejections", 1), (BERT, "accepts", 1), (BERT, "rejections", 1)]
    assert await rows(database, tables.deeds, "address", "kind", "count") == counts
    statuses = [(0, "accepted", None), (1, "rejected", "wrong_root")]
    assert await rows(database, tables.commitments, "index", "status", "reason") == statuses
    assert await taken_of(documents, THEN[0][0]) == [False]
    assert await taken_of(documents, MISSING) == [409], "it had come"


async def test_a_verdict_that_cannot_be_kept_fails_alone(database: Database, documents: Log) -> None:
    broken = judged(BERT, index=1).model_copy(update={"index": 2})  # signed for another
    assert await taken_of(documents, judged(ANNE), broken, judged(BERT)) == [True, 403, True]
    broken = judged(BERT, index=2)
    assert await taken_of(documents, judged(ANNE, index=1), broken, judged(BERT, index=1)) == [True, 404, True]
    kept = [(ANNE, 0), (ANNE, 1), (BERT, 0), (BERT, 1)]
    assert await rows(database, tables.verdicts, "validator", "index") == kept
