"""Public queries cost the same for a long run as for a short one, at every step and node."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, text

from explorer.rollouts import accepted_files
from explorer.source import PageSource
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.statements import insert_once
from muster.ledger.tables import nodes
from orchestrator.log import page_of
from testbed.samples.commitments import rules
from testbed.samples.messages import verdict_of
from testbed.sql_costs import CountedDatabase, Reads, reads_of

NODE, VALIDATOR, HASH = ("0x" + digit * 40 for digit in "12f")
ROOT = HASH + "f" * 24
A_STEP = 20
"""Commitments of each step, all accepted. Reports have used the files of nine in ten."""
LEVEL = 2
VERDICT = verdict_of(node=NODE, root=ROOT, file_hash=ROOT, validator=VALIDATOR, inspected=1)

FILL = """
INSERT INTO commitments (node, "index", step, hour, root, block, status, spent)
    {rows} SELECT :node, i, i / :a_step, 0, :root, i, 'accepted', i % 10 <> 0 FROM n;
INSERT INTO uploads (node, "index", root, file_hash, size, document, received)
    {rows} SELECT :node, i, :root, {file}, 1, '', 0 FROM n;
INSERT INTO spent (file_hash, step, used)
    {rows} SELECT {file}, i / :a_step + 1, i > 0 FROM n WHERE i % 10 <> 0;
INSERT INTO verdicts (id, validator, node, "index", root, accepted, document, received, came, refuted)
    {rows} SELECT i, :validator, :node, i, :root, i > 0, :verdict, 0, 0, FALSE FROM n;
INSERT INTO calls (node, "index", block, hash, "order", opens)
    {rows} SELECT :node, i, 0, :root, :order, 0 FROM n;
INSERT INTO checkpoints (step, manifest_root, batch_root, anchor, block, "transaction", entropy)
    {rows} SELECT i / :a_step, :root, :root, :root, i, :root, :root FROM n WHERE i % :a_step = 0;
INSERT INTO counts (kind, subject, number, status, reason, count)
    {rows} SELECT 'hour', :node, i / :a_step, 'accepted', '', :a_step FROM n WHERE i % :a_step = 0;
INSERT INTO counts (kind, subject, number, status, reason, count) VALUES ('work', :node, 0, 'accepted', '', :last)
    ON CONFLICT (kind, subject, number, status, reason) DO UPDATE SET count = excluded.count
"""
FILE = f"'0x' || substr('{'0' * 64}' || i, 1 + length(CAST(i AS TEXT)))"
ROWS = "WITH RECURSIVE n(i) AS (SELECT CAST(:first AS INTEGER) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :last)"


async def cost(database: Database, ask: Callable[[], Awaitable[Any]]) -> Reads:
    """Return what one call reads when no answer is kept."""
    await database.write(lambda _: None)  # drops the kept answers
    return await reads_of(ask)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await CountedDatabase.open(database_url, "a test")
    yield opened
    await opened.close()


@pytest.fixture
async def queries(database: Database) -> Queries:
    member = {"operator": NODE, "work_class": 0, "status": "active", "block": 1, "first_step": 0}
    for address, role in ((NODE, "worker"), (VALIDATOR, "validator")):
        row = {**member, "address": address, "role": role}
        await database.write(lambda connection, row=row: insert_once(connection, nodes, row))
    terms = replace(rules().terms, async_level=LEVEL)
    return Queries(database, 1, terms, groups_wanted=16)


async def fill(database: Database, first: int, last: int) -> None:
    """Add steps to the run, at once."""
    given = {"first": first * A_STEP, "last": last * A_STEP, "a_step": A_STEP, "node": NODE, "root": ROOT}
    given |= {"validator": VALIDATOR, "verdict": VERDICT.model_dump_json(), "order": json.dumps([VALIDATOR])}

    def write(connection: Connection) -> None:
        for statement in FILL.format(rows=ROWS, file=FILE).split(";"):
            wanted = {name: value for name, value in given.items() if f":{name}" in statement}
            connection.execute(text(statement), wanted)

    await database.write(write)


async def test_an_answer_costs_the_same_when_the_run_is_eight_times_as_long(
    database: Database, queries: Queries
) -> None:
    unused: Any = None
    source = PageSource(database, queries, unused)
    questions: dict[str, Callable[[], Awaitable[Any]]] = {
        "demand": queries.demand,
        "node": lambda: queries.node_report(NODE),
        "verdicts": lambda: database.read(lambda connection: page_of(connection, 0, {"kind": "verdict"})),
        "files": lambda: database.read(lambda connection: accepted_files(connection, source, None, NODE, 40, 50)),
    }
    await fill(database, 0, 50)
    before = {name: await cost(database, ask) for name, ask in questions.items()}
    await fill(database, 50, 400)
    after = {name: await cost(database, ask) for name, ask in questions.items()}
    assert {name: len(reads.statements) for name, reads in after.items()} == {
        "demand": 11, "node": 17, "verdicts": 1, "files": 3,
    }  # fmt: skip
    for name, reads in after.items():
        most = before[name].hundreds + len(reads.statements)
        assert reads.hundreds <= most, f"{name}: each statement is counted to a hundred"
