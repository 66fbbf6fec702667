"""Stored counts equal the counted rows after any sequence of a run's events."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, select

from muster.contracts.court import AbsenceReported, Outcome, VoteCommitted, VoteRevealed
from muster.contracts.refutations import Flaw, Refuted
from muster.contracts.registry import Fined
from muster.contracts.runs import Claimed, HourSealed, Voided
from muster.ledger import tables
from muster.ledger.database import Database
from testbed.runs.recorded_run import TRAINER, VALIDATORS, WORKERS, Operation, ServedStory, ToldRun
from testbed.suite.examples import up_to

few = st.integers(0, 30)
commit = st.tuples(st.just("commit"), st.sampled_from(WORKERS), st.integers(0, 3), st.integers(100, 103))
reasons = st.sampled_from([None, None, "data_missing", "wrong_root"])
PROOF = st.just(1), st.just(Flaw.WRONG_TASK)
judges, workers = st.sampled_from(VALIDATORS), st.sampled_from(WORKERS)
OPERATIONS = st.lists(
    st.one_of(
        commit,
        commit,
        st.tuples(st.just("judge"), st.sampled_from(VALIDATORS), few, reasons),
        st.tuples(st.just("accuse"), st.sampled_from(VALIDATORS), few),
        st.tuples(st.just("resolve"), few, st.sampled_from(list(Outcome)[1:])),
        st.tuples(st.just("convict"), st.sampled_from(WORKERS + VALIDATORS)),
        st.tuples(st.just("pay"), st.sampled_from([Claimed, Voided, Fined]), st.sampled_from(WORKERS), few),
        st.tuples(st.just("happen"), st.just(VoteCommitted), few, judges, st.just(bytes(32))),
        st.tuples(st.just("happen"), st.just(VoteRevealed), few, judges, st.booleans()),
        st.tuples(st.just("happen"), st.just(AbsenceReported), few, judges, st.sampled_from(WORKERS), st.booleans()),
        st.tuples(st.just("happen"), st.just(HourSealed), st.just(1), few, judges, *[st.just(bytes(32))] * 2),
        st.tuples(st.just("happen"), st.just(Refuted), workers, few, judges, *PROOF),
        st.tuples(st.just("upload"), few, st.integers(0, 5)),
        st.tuples(st.just("report"), st.integers(0, 3), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5))),
        st.tuples(st.just("deliver again"), few),
        st.tuples(st.just("reorganise"), few),
    ),
    min_size=15,
    max_size=40,
)  # fmt: skip


def counted(connection: Connection) -> dict[str, Any]:
    """Count the rows, one by one."""
    work = [row._asdict() for row in connection.execute(select(tables.commitments))]
    classes = {row.address: row.work_class for row in connection.execute(select(tables.nodes))}
    paid: dict[str, Counter[str]] = defaultdict(Counter)
    for row in connection.execute(select(tables.payments)):
        paid[row.node][row.kind] += int(row.amount)
    credit: Counter[tuple] = Counter()
    for one in work:
        for part, groups in json.loads(one["drawn"] or "{}").items():
            credit[part, one["status"]] += groups
    given = Counter((v.validator, "accepts" if v.accepted else "rejections") for v in rows(connection, tables.verdicts))
    court = Counter((case.challenger, case.outcome) for case in rows(connection, tables.cases))
    court.update((proof.prover, "proofs") for proof in rows(connection, tables.proofs))
    court.update((seal.validator, "seals") for seal in rows(connection, tables.seals))
    for vote in rows(connection, tables.votes):
        court.update({(vote.judge, "votes"): vote.guilty is not None, (vote.judge, "absences"): vote.absent})
    spent = {row.file_hash: row for row in rows(connection, tables.spent)}
    gone = [row for row in rows(connection, tables.uploads) if row.file_hash in spent]
    given.update((row.node, "files") for row in gone if spent[row.file_hash].used)
    given[TRAINER, "updates"] = len({row.step for row in spent.values() if row.used})
    given.update(court)
    return {
        "tallies": Counter((one["node"], one["status"], one["reason"] or "") for one in work),
        "step_tallies": Counter((one["step"], classes[one["node"]], one["status"]) for one in work),
        "hour_tallies": Counter((one["hour"], one["node"], one["status"]) for one in work),
        "credit_tallies": credit,
        "deeds": +given,
        "spent": {(row.node, row.index, row.root) for row in gone}
        & {(one["node"], one["index"], one["root"]) for one in work},
        "nodes": {
            node: (
                len({one["hour"] for one in work if one["node"] == node}),
                *(paid[node][kind] for kind in tables.PAYMENTS),
            )
            for node in classes
        },
    }


def kept(connection: Connection) -> dict[str, Any]:
    """Return the stored counts."""
    names = ("tallies", "step_tallies", "hour_tallies", "credit_tallies")
    found: dict[str, Any] = {
        name: {tuple(row[:-1]): row[-1] for row in rows(connection, getattr(tables, name))} for name in names
    }
    found["deeds"] = {(row.address, row.kind): row[-1] for row in rows(connection, tables.deeds) if row[-1]}
    found["spent"] = {(row.node, row.index, row.root) for row in rows(connection, tables.commitments) if row.spent}
    columns = tables.nodes.c[("address", "hours", *tables.PAYMENTS)]
    found["nodes"] = {
        row[0]: (row[1], *(int(amount) for amount in row[2:])) for row in connection.execute(select(*columns))
    }
    return found


def rows(connection: Connection, table: Any) -> list[Any]:
    return list(connection.execute(select(table)))


@pytest.fixture(scope="module")
def shared_url(new_database_url: Callable[[], str]) -> str:
    return new_database_url()


ANNE, VERA = WORKERS[0], VALIDATORS[0]


@pytest.mark.parametrize("kind", [ToldRun, ServedStory])
@example([("commit", ANNE, 1, 103), ("deliver again", 0), ("reorganise", 1)])
@example([("pay", Claimed, ANNE, 5), ("deliver again", 0), ("pay", Claimed, ANNE, 7), ("pay", Fined, ANNE, 2)])
@example([("upload", 0, 1), ("report", 1, {1, 2}, {3}), ("upload", 1, 2), ("report", 1, [], [])])
@example([("upload", 0, 1), ("report", 1, {1}, {3}), ("report", 1, {2}, {1})])
@example([("report", 1, {1}, {2}), ("upload", 0, 1), ("upload", 1, 2), ("reorganise", 1)])
@example([("report", 1, {1}, {2}), ("upload", 0, 1), ("judge", VERA, 0, None), ("reorganise", 1)])
@example([("upload", 0, 1), ("judge", VERA, 0, None), ("report", 1, {1}, {3}), ("report", 1, {2}, {1})])
@example([("judge", VERA, 0, "data_missing"), ("judge", VERA, 0, None), ("judge", VERA, 1, "wrong_root")])
@example([("judge", VERA, 0, "wrong_root"), ("convict", VERA), ("deliver again", 0), ("convict", ANNE)])
@example([("accuse", VERA, 0), ("resolve", 0, Outcome.NOT_GUILTY), ("accuse", VERA, 0), ("deliver again", 2)])
@given(operations=OPERATIONS)
@settings(max_examples=up_to(15, few=5))
def test_tallies_equal_the_counted_rows(
    kind: type[ToldRun], shared_url: str, tmp_path_factory: pytest.TempPathFactory, operations: list[Operation]
) -> None:
    async def run() -> None:
        database = await Database.open(shared_url, "a test")
        try:
            emptied = [table for table in tables.metadata.sorted_tables if table is not tables.meta]
            await database.write(lambda connection: [connection.execute(delete(table)) for table in emptied])
            story = kind(database, tmp_path_factory.getbasetemp() / "tallies")
            await story.begin()
            for operation in operations:
                await story.do(operation)
            expected, found = await database.read(lambda connection: (counted(connection), kept(connection)))
            assert found == expected
        finally:
            await database.close()

    asyncio.run(run())
