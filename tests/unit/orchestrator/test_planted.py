"""An opened trap says nothing of its node: rejections for its planted rows decide no status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.contracts.masters import MasterRevealed
from muster.contracts.run_terms import Series
from muster.protocol.hashes import hex_hash
from muster.protocol.messages import OpenedTrap, PlantedRow, TrapMap, TrapTicket
from orchestrator import tables
from orchestrator.chain_projection import ChainProjection
from orchestrator.database import Database
from orchestrator.planted import KeptTicket
from orchestrator.queries import Queries
from orchestrator.statements import insert_once
from testbed.samples.messages import verdict_of
from testbed.samples.projection import ROOT, TERMS, VALIDATOR, WORKER, apply, history, place, put_verdict, status_of

OPENING = MasterRevealed(place(9), 1, Series.TRAPS, 1, b"\x08" * 32)
UNSIGNED = "0x" + "00" * 65
REJECTED = ("rejected", "sampling_mismatch")


@pytest.fixture
def queries(database: Database) -> Queries:
    traps = {"trap_every": 20, "trap_prize": 1, "trap_tip": b"\x01" * 32, "trap_epochs": 2, "trap_epoch_steps": 1}
    return Queries(database, 1, replace(TERMS, **traps), batch_groups=8, demand_batches=2)


async def put_ticket(database: Database, *, step: int = 0) -> None:
    """Keep a ticket of commitment 0, with row 2 planted."""
    about = {"run": 1, "node": WORKER, "index": 0, "root": ROOT, "map_root": hex_hash(bytes(32)), "stored_at": 1}
    ticket = TrapTicket(**about, signature=UNSIGNED)
    planted = TrapMap(salt=hex_hash(bytes(32)), rows=[PlantedRow(position=2, token=3)])
    kept = KeptTicket(step=step, trap=OpenedTrap(ticket=ticket, consent=ticket, map=planted))
    row = {"node": WORKER, "index": 0, "root": ROOT, "epoch": 1, "document": kept.model_dump_json(), "received": 0.0}
    await database.write(lambda connection: insert_once(connection, tables.tickets, row))


async def reject(database: Database, position: int, reason: str = "sampling_mismatch") -> None:
    named = {"node": WORKER, "index": 0, "root": ROOT, "validator": VALIDATOR, "accepted": False, "reason": reason}
    verdict = verdict_of(**named, step=0, position=position)
    await put_verdict(database, **named, document=verdict.model_dump_json())


async def test_rejection_for_a_planted_row_counts_until_its_trap_is_opened(database, queries):
    await put_ticket(database)
    await reject(database, 2)
    await apply(database, queries, *history()[:4])
    assert await status_of(database, 0) == REJECTED
    await apply(database, queries, OPENING)
    assert await status_of(database, 0) == ("pending", None)
    book = ChainProjection(queries)
    await database.write(lambda connection: book.roll_back(connection, 8))
    assert await status_of(database, 0) == REJECTED, "a reorg took the master"


async def test_new_database_leaves_out_what_was_opened(database, queries):
    await put_ticket(database)
    await reject(database, 2)
    await apply(database, queries, *history()[:4], OPENING)
    assert await status_of(database, 0) == ("pending", None)


@pytest.mark.parametrize(
    ("position", "reason", "step"),
    [(3, "sampling_mismatch", 0), (2, "wrong_reward", 0), (2, "sampling_mismatch", 1)],
    ids=["true row", "other reason", "ticket of another step"],
)
async def test_other_rejections_of_a_trap_count(database, queries, position, reason, step):
    await put_ticket(database, step=step)
    await reject(database, position, reason)
    await apply(database, queries, *history()[:4], OPENING)
    assert await status_of(database, 0) == ("rejected", reason)
