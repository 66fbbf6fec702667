"""The orchestrator's projection and the trainer's journal say the same of the same history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, select

from muster.chain.cursor import EventBatch
from muster.chain.events import Event
from muster.contracts.court import Outcome
from muster.ledger import tables
from muster.ledger.database import Database
from muster.protocol.hashes import hash_bytes
from muster.protocol.messages import RowCheck, Verdict
from muster.verification.look_facts import CalledWork
from testbed.runs.recorded_run import TERMS, VALIDATORS, WORKERS, Operation, ServedStory
from testbed.suite.examples import up_to
from trainer.accepted_work import accepted_files
from trainer.look_journal import DueCheck, LookJournal

few, judges = st.integers(0, 8), st.sampled_from(VALIDATORS)
reasons = st.sampled_from([None, None, "data_missing", "wrong_reward"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from(WORKERS), st.integers(0, 3), st.integers(100, 103)),
        st.tuples(st.just("judge"), judges, few, reasons),
        st.tuples(st.just("judge"), judges, few, reasons),
        st.tuples(st.just("refute"), judges, few),
        st.tuples(st.just("accuse"), judges, few),
        st.tuples(st.just("resolve"), few, st.sampled_from(list(Outcome)[1:])),
        st.tuples(st.just("convict"), st.sampled_from(WORKERS + VALIDATORS)),
        st.tuples(st.just("deliver again"), few),
        st.tuples(st.just("reorganise"), few),
    ),
    min_size=10,
    max_size=40,
)
ANNE, VERA, VIKTOR = WORKERS[0], VALIDATORS[0], VALIDATORS[1]


class TwiceTold(ServedStory):
    """A run of which a journal is told as well."""

    def __init__(self, database: Database, folder: Path, journal: LookJournal) -> None:
        super().__init__(database, folder)
        self.journal, self.refuted = journal, list[RowCheck]()

    async def deliver(self, *events: Event) -> None:
        await super().deliver(*events)
        last = max(event.at.block for event in events)
        self.journal.record(EventBatch(events, last, last), {})

    async def reorganise(self, lost: int) -> None:
        await super().reorganise(lost)
        stayed = len(self.happened)
        self.journal.record(EventBatch((), stayed + 1, stayed, rewound_to=stayed), {})

    async def refute(self, validator: str, which: int) -> None:
        """Let the trainer find true what a validator rejected."""
        given = await self.database.read(verdicts_of)
        rejected = [one for one, _ in given if not one.accepted and one.validator == validator]
        if not rejected:
            return
        one = rejected[which % len(rejected)]
        about = one.validator, one.node, one.index, one.root
        check = DueCheck(*about, 3, hour=100, step=one.step, kind="rejection")
        self.journal.add([check])
        self.journal.conclude(check, "refuted")
        names = dict(zip(("validator", "node", "index", "root"), about, strict=True))
        self.refuted.append(RowCheck(**names, position=3, outcome="refuted"))
        await self.record_report(1.0, step=0, metrics={}, refuted=self.refuted)

    async def listen(self) -> None:
        """Tell the journal what validators said, and who was called."""
        self.journal.keep_verdicts(await self.database.read(verdicts_of), 1)
        for row in await self.database.read(lambda connection: connection.execute(select(tables.calls)).all()):
            c = self.journal.commitment(row.node, row.index)
            if c is not None:
                order = tuple(json.loads(row.order))
                self.journal.know(CalledWork(c, order, row.opens, hash_bytes(row.hash), row.node, work_class=0))


def verdicts_of(connection: Connection) -> list[tuple[Verdict, int]]:
    """Return all verdicts of the log, with their seconds."""
    query = select(tables.verdicts.c.document, tables.verdicts.c.came).order_by(tables.verdicts.c.id)
    return [(Verdict.model_validate_json(text), came) for text, came in connection.execute(query)]


def kept(connection: Connection) -> dict[tuple[str, int], tuple[str, str | None]]:
    """Return what the projection keeps of each commitment that validators are called to."""
    query = select(*tables.commitments.c["node", "index", "status", "reason"])
    called = {(row.node, row.index) for row in connection.execute(select(tables.calls))}
    rows = [tuple(row) for row in connection.execute(query)]
    return {(node, index): (status, reason) for node, index, status, reason in rows if (node, index) in called}


@pytest.fixture(scope="module")
def shared_url(new_database_url: Callable[[], str]) -> str:
    return new_database_url()


@example([("judge", VERA, 0, None)])
@example([("judge", VERA, 0, "wrong_reward"), ("refute", VERA, 0), ("accuse", VERA, 0), ("reorganise", 1)])
@example([("judge", VERA, 0, None), ("accuse", VIKTOR, 0), ("resolve", 0, Outcome.NOT_GUILTY), ("reorganise", 1)])
@example([("judge", VERA, 0, "data_missing"), ("accuse", VERA, 0), ("resolve", 0, Outcome.CURED)])
@example([("judge", VERA, 0, None), ("convict", ANNE), ("judge", VIKTOR, 2, None), ("convict", VIKTOR)])
@given(operations=OPERATIONS)
@settings(max_examples=up_to(40, few=10))
def test_projection_and_journal_decide_alike(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, operations: list[Operation]
) -> None:
    async def run() -> None:
        database = await Database.open(shared_url, "a test")
        folder = tmp_path_factory.mktemp("told")
        try:
            emptied: list[Any] = [one for one in tables.metadata.sorted_tables if one is not tables.meta]
            await database.write(lambda connection: [connection.execute(delete(table)) for table in emptied])
            with LookJournal(folder, "trainer", 1) as journal:
                story = TwiceTold(database, folder, journal)
                await story.begin()
                for operation in operations:
                    await story.do(operation)
                await story.listen()
                found = {}
                for known in journal.known(0, 1000):
                    decision = journal.decide(known, journal.came(known.work), journal.jailed, TERMS)
                    found[known.work.node, known.work.index] = decision.state, decision.reason
                assert found == await database.read(kept)
                listed = {(ref.node, ref.index) for ref in accepted_files(journal, 0, (), TERMS)}
                assert listed == {key for key, (state, _) in found.items() if state == "accepted"}
        finally:
            await database.close()

    asyncio.run(run())
