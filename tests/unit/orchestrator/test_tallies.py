"""The counts are at any time what counting the rows gives: after any sequence of what can happen to a run."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, select

from muster.contracts.codec import Event, Place
from muster.contracts.court import CaseOpened, CaseResolved, Kind, Outcome
from muster.contracts.registry import Convicted, Fined, Registered, Role
from muster.contracts.runs import CheckpointPublished, Claimed, Voided, WorkCommitted
from muster.protocol.eip712 import UNSIGNED
from muster.protocol.messages import SignedRequest, StepReport, Upload, UploadReceipt, Verdict
from muster.settings.schema import OrchestratorSettings
from orchestrator import tables
from orchestrator.chain_projection import ChainProjection
from orchestrator.database import Database
from orchestrator.page import tallies
from orchestrator.queries import Queries
from orchestrator.reports import KeptReport, Reports
from orchestrator.uploads import Uploads
from orchestrator.verdicts import Verdicts
from tests.support.commitment_samples import rules

WORKERS = ["0x" + digit * 40 for digit in "123"]
VALIDATORS = ["0x" + digit * 40 for digit in "789"]
OPERATOR = "0x" + "c" * 40
BEGINNING = len(WORKERS) + len(VALIDATORS) + 4
"""Events by which nodes register and steps are published."""
TERMS = rules().terms

Operation = tuple[Any, ...]
few = st.integers(0, 30)
commit = st.tuples(st.just("commit"), st.sampled_from(WORKERS), st.integers(0, 3), st.integers(100, 103))
reasons = st.sampled_from([None, None, "data_missing", "wrong_root"])
OPERATIONS = st.lists(
    st.one_of(
        commit,
        commit,
        st.tuples(st.just("judge"), st.sampled_from(VALIDATORS), few, reasons),
        st.tuples(st.just("accuse"), st.sampled_from(VALIDATORS), few),
        st.tuples(st.just("resolve"), few, st.sampled_from(list(Outcome)[1:])),
        st.tuples(st.just("convict"), st.sampled_from(WORKERS + VALIDATORS)),
        st.tuples(st.just("pay"), st.sampled_from([Claimed, Voided, Fined]), st.sampled_from(WORKERS), few),
        st.tuples(st.just("upload"), few, st.integers(0, 5)),
        st.tuples(st.just("report"), st.integers(0, 3), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5))),
        st.tuples(st.just("deliver again"), few),
        st.tuples(st.just("reorganise"), few),
    ),
    min_size=15,
    max_size=40,
)  # fmt: skip


class TwoParts:
    """In place of an Attribution: what commitments drew follows from their indices."""

    def attribute(self, connection: Connection, node: str, index: int, step: int) -> None:
        tallies.credit(connection, node, index, "first", 1 + index % 3)
        tallies.credit(connection, node, index, "second", 1 + step)


@dataclass
class RunOfEvents:
    """A run, its database, and what happened to it."""

    database: Database
    folder: Path
    happened: list[Event] = field(default_factory=list)
    verdicts_given: int = 0
    reports: int = 0

    def __post_init__(self) -> None:
        nobody: Any = None
        two_parts: Any = TwoParts()
        self.queries = Queries(self.database, 1, TERMS, batch_groups=8, demand_batches=2)
        self.projection = ChainProjection(self.queries, two_parts)
        self.verdicts = Verdicts(nobody, self.queries, nobody, self.database, storage_url=f"file:{self.folder}")
        self.reports_of = Reports(self.queries, self.database, storage_url=f"file:{self.folder}")
        self.uploads = Uploads(nobody, nobody, self.queries, self.database, OrchestratorSettings())

    async def do(self, operation: Operation) -> None:
        what, *how = operation
        await getattr(self, what.replace(" ", "_"))(*how)

    async def deliver(self, *events: Event) -> None:
        times = {number: 3_600 * number for number in self.projection.timed_blocks(events)}
        await self.database.write(lambda c: [self.projection.apply(c, event, times) for event in events])

    async def happen(self, make: Callable[..., Event], *values: Any) -> None:
        number = len(self.happened) + 1
        event = make(Place(number, bytes(32), number.to_bytes(32), 0), *values)
        self.happened.append(event)
        await self.deliver(event)

    def committed(self, which: int) -> WorkCommitted | None:
        found = [event for event in self.happened if isinstance(event, WorkCommitted)]
        return found[which % len(found)] if found else None

    async def begin(self) -> None:
        for number, node in enumerate(WORKERS):
            await self.happen(Registered, node, OPERATOR, 1, Role.WORKER, number % 2, 100, bytes(32))
        for node in VALIDATORS:
            await self.happen(Registered, node, OPERATOR, 1, Role.VALIDATOR, 0, 100, bytes(32))
        for step in range(4):
            await self.happen(CheckpointPublished, 1, step, *(bytes([step]) * 32,) * 4)
        for node in WORKERS:
            for hour in (100, 101):
                await self.commit(node, 0, hour)

    async def commit(self, node: str, step: int, hour: int) -> None:
        index = sum(isinstance(event, WorkCommitted) and event.node == node for event in self.happened)
        root = bytes.fromhex(node[2:4]) + index.to_bytes(31)
        await self.happen(WorkCommitted, 1, node, step, index, hour, root)

    async def judge(self, validator: str, which: int, reason: Any) -> None:
        work = self.committed(which)
        if work is None:
            return
        self.verdicts_given += 1
        verdict = Verdict(
            run=1, step=work.step, node=work.node, index=work.index, root="0x" + work.root.hex(),
            file_hash=file_hash(0), validator=validator, accepted=reason is None, reason=reason,
            draw_index=self.verdicts_given, preimage=file_hash(0), inspected=1, signature=UNSIGNED,
        )  # fmt: skip
        await self.verdicts.record(verdict, 0.0)

    async def accuse(self, validator: str, which: int) -> None:
        work = self.committed(which)
        if work is not None:
            number = sum(isinstance(event, CaseOpened) for event in self.happened)
            about = (1, work.index, work.step, work.root, Kind.WRONG_REWARD, 0, bytes(32), 3, 0, 0)
            await self.happen(CaseOpened, number, work.node, validator, *about)

    async def resolve(self, which: int, outcome: Outcome) -> None:
        found = [event for event in self.happened if isinstance(event, CaseOpened)]
        if found:
            case = found[which % len(found)]
            await self.happen(CaseResolved, case.case_id, case.node, outcome, 1, 2, 3)

    async def convict(self, node: str) -> None:
        await self.happen(Convicted, node, 1, 50, 10, OPERATOR)

    async def pay(self, kind: Any, node: str, amount: int) -> None:
        amount *= 10**25
        values = {Claimed: (1, node, 0, amount), Voided: (1, node, 0, 1, amount), Fined: (node, 1, amount)}
        await self.happen(kind, *values[kind])

    async def upload(self, which: int, file: int) -> None:
        work = self.committed(which)
        if work is None:
            return
        name = file_hash(file)
        receipt = UploadReceipt(
            run=1, node=work.node, index=work.index, root="0x" + work.root.hex(), file_hash=name, size=1,
            stored_at=0, signature=UNSIGNED,
        )  # fmt: skip
        request = SignedRequest(
            method="PUT", host="", path="", query="", body_hash=name, nonce=name, expiry=0, signature=UNSIGNED
        )
        await self.uploads.record(Upload(receipt=receipt, request=request), 0.0)

    async def report(self, step: int, used: Iterable[int], dropped: Iterable[int]) -> None:
        self.reports += 1
        names = [[file_hash(file) for file in sorted(files)] for files in (used, dropped)]
        report = StepReport(run=1, step=step, metrics={}, batch=names[0], dropped=names[1])
        await self.reports_of.record(KeptReport(report=report, received=self.reports))

    async def deliver_again(self, which: int) -> None:
        await self.deliver(self.happened[-1 - which % len(self.happened)])

    async def reorganise(self, lost: int) -> None:
        """Lose what happened last, but not who registered, and read the rest anew."""
        self.happened = self.happened[: max(BEGINNING, len(self.happened) - lost % 8)]
        await self.database.write(self.projection.forget)
        await self.deliver(*self.happened)


def file_hash(number: int) -> str:
    return "0x" + f"{number:064x}"


def counted(connection: Connection) -> dict[str, Any]:
    """Count the rows, one by one."""
    work = [row._asdict() for row in connection.execute(select(tables.commitments))]
    classes = {row.address: row.work_class for row in connection.execute(select(tables.nodes))}
    status = {(one["node"], one["index"]): one["status"] for one in work}
    paid: dict[str, Counter[str]] = defaultdict(Counter)
    for row in connection.execute(select(tables.payments)):
        paid[row.node][row.kind] += int(row.amount)
    credit: Counter[tuple] = Counter()
    for row in connection.execute(select(tables.credits)):
        credit[row.part, status[row.node, row.index]] += row.groups
    given = Counter((v.validator, "accepts" if v.accepted else "rejections") for v in rows(connection, tables.verdicts))
    spent = {row.file_hash: row for row in rows(connection, tables.spent)}
    files = [row for row in rows(connection, tables.uploads) if row.file_hash in spent and spent[row.file_hash].used]
    given.update((row.node, "files") for row in files)
    given[TERMS.trainer, "updates"] = len({row.step for row in spent.values() if row.used})
    return {
        "tallies": Counter((one["node"], one["status"], one["reason"] or "") for one in work),
        "step_tallies": Counter((one["step"], classes[one["node"]], one["status"]) for one in work),
        "hour_tallies": Counter((one["hour"], one["node"], one["status"]) for one in work),
        "credit_tallies": credit,
        "counts": +given,
        "nodes": {
            node: (
                len({one["hour"] for one in work if one["node"] == node}),
                *(paid[node][kind] for kind in tables.PAYMENTS),
            )
            for node in classes
        },
    }


def kept(connection: Connection) -> dict[str, Any]:
    """Return what is kept instead."""
    names = ("tallies", "step_tallies", "hour_tallies", "credit_tallies", "counts")
    found: dict[str, Any] = {
        name: {tuple(row[:-1]): row[-1] for row in rows(connection, tables.metadata.tables[name])} for name in names
    }
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


@example([("commit", ANNE, 1, 103), ("deliver again", 0), ("reorganise", 1)])
@example([("pay", Claimed, ANNE, 5), ("deliver again", 0), ("pay", Claimed, ANNE, 7), ("pay", Fined, ANNE, 2)])
@example([("upload", 0, 1), ("report", 1, {1, 2}, {3}), ("upload", 1, 2), ("report", 1, [], [])])
@example([("upload", 0, 1), ("report", 1, {1}, {3}), ("report", 1, {2}, {1})])
@example([("judge", VERA, 0, "data_missing"), ("judge", VERA, 0, None), ("judge", VERA, 1, "wrong_root")])
@example([("judge", VERA, 0, "wrong_root"), ("convict", VERA), ("deliver again", 0), ("convict", ANNE)])
@example([("accuse", VERA, 0), ("resolve", 0, Outcome.NOT_GUILTY), ("accuse", VERA, 0), ("deliver again", 2)])
@given(operations=OPERATIONS)
@settings(max_examples=15)
def test_tallies_are_what_counting_gives(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, operations: list[Operation]
) -> None:
    async def run() -> None:
        database = await Database.open(shared_url, "a test")
        try:
            emptied = [table for table in tables.metadata.sorted_tables if table is not tables.meta]
            await database.write(lambda connection: [connection.execute(delete(table)) for table in emptied])
            story = RunOfEvents(database, tmp_path_factory.getbasetemp() / "tallies")
            await story.begin()
            for operation in operations:
                await story.do(operation)
            expected, found = await database.read(lambda connection: (counted(connection), kept(connection)))
            assert found == expected
        finally:
            await database.close()

    asyncio.run(run())
