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

from muster.protocol.messages import Verdict
from orchestrator import tables, tallies
from orchestrator.database import Database
from orchestrator.queries import Queries
from orchestrator.statements import insert_new
from orchestrator.verdicts import KeptCall, KeptVerdict, Verdicts
from testbed.samples.commitments import WHERE, rules
from testbed.samples.messages import NOTHING, verdict_of

WORKER, ANNE, BERT = ("0x" + digit * 40 for digit in "123")
VALIDATOR: dict[str, Any] = {"operator": WORKER, "role": "validator", "work_class": 0, "status": "active"}
VALIDATOR |= {"block": 1, "first_step": 0}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url, "a test")
    await opened.write(furnish)
    yield opened
    await opened.close()


def furnish(connection: Connection) -> None:
    """Write two validators, and two commitments of a worker."""
    insert_new(connection, tables.nodes, [{**VALIDATOR, "address": address} for address in (ANNE, BERT)])
    work = {"node": WORKER, "step": 0, "hour": 1, "block": 1, "root": NOTHING}
    tallies.put_commitments(connection, [{**work, "index": index} for index in (0, 1)])


@pytest.fixture
def verdicts(tmp_path: Path, database: Database) -> Verdicts:
    terms, unused = replace(rules().terms, accepts_required=2), None
    queries = Queries(database, 1, terms, batch_groups=8, demand_batches=2)
    return Verdicts(WHERE, queries, unused, database, unused, storage_url=f"file:{tmp_path}")  # type: ignore[arg-type]


def judged(validator: str, inspected: int = 0, index: int = 0, reason: str | None = None) -> Verdict:
    work = {"node": WORKER, "index": index, "root": NOTHING, "accepted": reason is None, "reason": reason}
    return verdict_of(**work, validator=validator, inspected=inspected)


def came(verdict: Verdict) -> KeptVerdict:
    call = KeptCall(block=2, hash=NOTHING, order=json.dumps([ANNE, BERT]), opens=100)
    return KeptVerdict(verdict=verdict, came=100, call=call)


async def rows(database: Database, table: Table, *columns: str) -> list[tuple[Any, ...]]:
    query = select(*table.c[columns]).order_by(*table.c[columns])
    return [tuple(row) for row in await database.read(lambda connection: connection.execute(query).all())]


BATCH = [
    (judged(ANNE, reason="data_missing"), True),
    (judged(ANNE, 1), True),  # in place of the one before
    (judged(ANNE, 1), False),  # the same again
    (judged(ANNE, 2), False),  # another one about the same work
    (judged(ANNE, reason="data_missing"), False),  # it had come
    (judged(BERT), True),
    (judged(BERT, index=1, reason="wrong_root"), True),
    (judged(ANNE, index=1, reason="wrong_reward"), True),
]


async def test_a_batch_leaves_what_single_verdicts_would(database: Database, verdicts: Verdicts) -> None:
    version = await database.current_version()
    found = await asyncio.gather(*(verdicts.record(came(verdict), 5.0) for verdict, _ in BATCH))
    assert found == [new for _, new in BATCH]
    assert await database.current_version() == version + 1, "one transaction"
    kept = [(ANNE, 0, True), (ANNE, 1, False), (BERT, 0, True), (BERT, 1, False)]
    assert await rows(database, tables.verdicts, "validator", "index", "accepted") == kept
    counts = [(ANNE, "accepts", 1), (ANNE, "rejections", 1), (BERT, "accepts", 1), (BERT, "rejections", 1)]
    assert await rows(database, tables.counts, "address", "kind", "count") == counts
    statuses = [(0, "accepted", None), (1, "rejected", "wrong_root")]
    assert await rows(database, tables.commitments, "index", "status", "reason") == statuses
    events = [json.loads(data) for (data,) in await rows(database, tables.events, "data")]
    numbers = sorted((one["validator"], one["index"], one["rejections"]) for one in events)
    assert numbers == [(ANNE, 0, 1), (ANNE, 1, 2), (BERT, 1, 1)]
    assert not await verdicts.record(came(BATCH[1][0]), 6.0)


async def test_a_verdict_that_cannot_be_kept_fails_alone(database: Database, verdicts: Verdicts) -> None:
    broken = judged(BERT).model_copy(update={"index": 1 << 70})
    good = [judged(ANNE), judged(BERT)]
    found = await asyncio.gather(
        *(verdicts.record(came(one), 5.0) for one in (good[0], broken, good[1])), return_exceptions=True
    )
    assert (found[0], isinstance(found[1], Exception), found[2]) == (True, True, True)
    assert await rows(database, tables.verdicts, "validator", "index") == [(ANNE, 0), (BERT, 0)]
