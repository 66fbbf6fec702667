"""A small history of a chain, projected into an explorer's database, and what stands there then."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, func, select

from muster.contracts.codec import Event, Place
from muster.contracts.court import CaseOpened, CaseResolved, Outcome, VoteCommitted, VoteRevealed
from muster.contracts.refutations import Flaw, Refuted
from muster.contracts.registry import Convicted, Registered, Retired, Role, Withdrawn
from muster.contracts.runs import CheckpointPublished, Claimed, HourSealed, RunClosed, Voided, WorkCommitted
from muster.ledger import tables
from muster.ledger.chain_projection import ChainProjection
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.statements import insert_once
from muster.protocol.kinds import kind_of
from testbed.samples.terms import terms_of

WORKER, VALIDATOR, OPERATOR = ("0x" + digit * 40 for digit in "abc")
ROOT = "0x" + "0d" * 32
TERMS = terms_of(pay=1, worker_stake=1_000, accepts_required=1, commitments_per_hour=9)


def place(number: int) -> Place:
    return Place(block=number, block_hash=bytes(32), transaction=bytes([number]) * 32, log_index=0)


def history() -> list[Event]:
    """Return one event of each kind, one a block."""
    makers = [
        lambda at: Registered(at, WORKER, OPERATOR, 1, Role.WORKER, 0, 100, bytes(32)),
        lambda at: Registered(at, VALIDATOR, OPERATOR, 1, Role.VALIDATOR, 0, 100, b"\x07" * 32),
        lambda at: CheckpointPublished(at, 1, 0, b"\x01" * 32, b"\x02" * 32, b"\x03" * 32, b"\x04" * 32),
        lambda at: WorkCommitted(at, 1, WORKER, 0, 0, 5, bytes.fromhex(ROOT[2:])),
        lambda at: WorkCommitted(at, 1, WORKER, 0, 1, 5, b"\x0e" * 32),
        lambda at: Claimed(at, 1, WORKER, 0, 10**20),
        lambda at: HourSealed(at, 1, 5, VALIDATOR, bytes(32), bytes(32)),
        lambda at: CaseOpened(
            at, 9, WORKER, VALIDATOR, 1, 1, 0, b"\x0e" * 32, kind_of("wrong_reward"), 2, b"\x05" * 32, 3, 60, 90
        ),
        lambda at: VoteCommitted(at, 9, OPERATOR, bytes(32)),
        lambda at: VoteRevealed(at, 9, OPERATOR, True),
        lambda at: Refuted(at, WORKER, 1, VALIDATOR, 1 << 255, Flaw.POSITION_BEYOND),
        lambda at: Convicted(at, WORKER, 1, 50, 10, OPERATOR),
        lambda at: Voided(at, 1, WORKER, 1, 1, 7),
        lambda at: CaseResolved(at, 9, WORKER, Outcome.GUILTY, 2, 2, 3),
        lambda at: Retired(at, VALIDATOR, 1, 0),
        lambda at: Withdrawn(at, VALIDATOR, OPERATOR, 1),
        lambda at: RunClosed(at, 1, 0),
    ]
    return [make(place(number)) for number, make in enumerate(makers, 1)]


async def apply(database: Database, queries: Queries, *events: Event) -> None:
    book = ChainProjection(queries, tells=True)
    times = {number: 1_000 + number for number in book.timed_blocks(events)}
    await database.write(lambda connection: book.apply(connection, events, times))


async def rows_of(database: Database, query: Any) -> list[Any]:
    return list(await database.read(lambda connection: connection.execute(query).all()))


async def put_verdict(database: Database, **changes: Any) -> None:
    """Write a verdict of the only validator that is called."""
    row = a_verdict(**changes)
    call = {"node": WORKER, "index": row["index"], "block": 0, "hash": ROOT, "order": json.dumps([VALIDATOR])}

    def write(connection: Connection) -> None:
        insert_once(connection, tables.calls, {**call, "opens": 0, "lapsed": ""})
        number = connection.execute(select(func.count()).select_from(tables.verdicts)).scalar_one()
        insert_once(connection, tables.verdicts, {"id": number, **row})

    await database.write(write)


def a_verdict(**changes: Any) -> dict[str, Any]:
    row = {"validator": VALIDATOR, "node": WORKER, "index": 0, "root": ROOT, "accepted": True, "reason": None}
    return row | {"document": "{}", "received": 0.0, "came": 0} | changes


async def status_of(database: Database, index: int) -> tuple[str, str | None]:
    query = select(tables.commitments.c.status, tables.commitments.c.reason)
    ((status, reason),) = await rows_of(database, query.where(tables.commitments.c.index == index))
    return status, reason
