"""A small history of a chain, projected into an orchestrator's database, and what stands there then."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from muster.contracts.codec import Event, Place
from muster.contracts.court import CaseOpened, CaseResolved, Outcome, VoteCommitted, VoteRevealed
from muster.contracts.refutations import Flaw, Refuted
from muster.contracts.registry import Convicted, Registered, Retired, Role, StepDoubted, Withdrawn
from muster.contracts.runs import CheckpointPublished, Claimed, HourSealed, RunClosed, Voided, WorkCommitted
from muster.protocol.kinds import Kind
from muster.protocol.terms import Terms, WorkClass
from orchestrator import tables
from orchestrator.chain_projection import ChainProjection
from orchestrator.database import Database
from orchestrator.queries import Queries
from orchestrator.statements import insert_once

WORKER, VALIDATOR, OPERATOR = ("0x" + digit * 40 for digit in "abc")
ROOT = "0x" + "0d" * 32
TERMS = Terms(
    *(1, 1_000, 1, 1, 1),
    slash_bps=10_000,
    bounty_bps=1,
    group_size=2,
    groups_per_commitment=4,
    commitments_per_hour=9,
    async_level=2,
    accepts_required=1,
    seal_quorum=2,
    min_step_interval=1,
    commit_phase=1,
    reveal_phase=1,
    jury_seniority=1,
    temperature_micro=1,
    max_prompt_tokens=1,
    max_completion_tokens=1,
    task_count=1,
    task_root=b"",
    model_hash=b"",
    tokenizer_hash=b"",
    profile=b"",
    classes=(WorkClass(10_000, (8,)),),
)


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
        lambda at: HourSealed(at, 1, 5, VALIDATOR, bytes(32), bytes(32), bytes(32)),
        lambda at: CaseOpened(
            at, 9, WORKER, VALIDATOR, 1, 1, 0, b"\x0e" * 32, Kind.WRONG_REWARD, 2, b"\x05" * 32, 3, 60, 90
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
        lambda at: StepDoubted(at, 1, 0, VALIDATOR),
    ]
    return [make(place(number)) for number, make in enumerate(makers, 1)]


async def apply(database: Database, queries: Queries, *events: Event) -> None:
    book = ChainProjection(queries)
    times = {number: 1_000 + number for number in book.timed_blocks(events)}
    await database.write(lambda connection: book.apply(connection, events, times))


async def rows_of(database: Database, query: Any) -> list[Any]:
    return list(await database.read(lambda connection: connection.execute(query).all()))


async def put_verdict(database: Database, **changes: Any) -> None:
    await database.write(lambda connection: insert_once(connection, tables.verdicts, a_verdict(**changes)))


def a_verdict(**changes: Any) -> dict[str, Any]:
    row = {"validator": VALIDATOR, "node": WORKER, "index": 0, "root": ROOT, "accepted": True, "reason": None}
    return row | {"document": "{}", "received": 0.0} | changes


async def status_of(database: Database, index: int) -> tuple[str, str | None]:
    query = select(tables.commitments.c.status, tables.commitments.c.reason)
    ((status, reason),) = await rows_of(database, query.where(tables.commitments.c.index == index))
    return status, reason
