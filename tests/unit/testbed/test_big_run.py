"""A synthetic run has the records of a real one: statuses follow from verdicts, tallies from statuses."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, create_engine, func, select

from explorer.log_reader import place_in
from explorer.series import BASE, LEVELS
from muster.chain.keys import Signer
from muster.ledger import tables
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.protocol.announcements import BenchmarkScore, NodeName, name_problem
from muster.protocol.messages import StepReport, Upload, Verdict
from testbed.big_run.fill import fill, fill_beside
from testbed.big_run.rows import Members, Rows, buckets_of
from testbed.big_run.shape import DAY_SECONDS, Shape, Work
from testbed.samples.terms import terms_of

SHAPE = Shape(steps=6_000, nodes=220, commitments=8_000, step_seconds=90, at_work=40)
"""Six days: long enough that work was claimed and cases were lost."""
NOW, BLOCK = 1_790_000_000, 60
TERMS = terms_of(accepts_required=1)
TRAINER = "0x" + "11" * 20
ABOUT = "a synthetic run"


def address(name: str) -> str:
    return str(Signer.from_key(name.encode().ljust(32, b"\x01")).address)


def make_rows(shape: Shape = SHAPE) -> Rows:
    workers, validators = ([address(f"{role} {i}") for i in range(many)] for role, many in roles(shape))
    operators = dict.fromkeys([*workers, *validators], address("operator"))
    members = Members(1, TRAINER, workers, validators, operators)
    return Rows(shape, Work(shape, NOW, BLOCK), members, TERMS)


def roles(shape: Shape) -> list[tuple[str, int]]:
    return [("worker", shape.workers), ("validator", shape.validators)]


@pytest.fixture(scope="module")
def orchestrators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "orchestrator.db"
    fill(path, "a run", (BLOCK, "0x" + "00" * 32), make_rows())
    return path


@pytest.fixture(scope="module")
def url(orchestrators: Path) -> str:
    """The explorer's database."""
    path = orchestrators.parent / "explorer" / "explorer.db"
    fill_beside(path, ABOUT, orchestrators, make_rows())
    return f"sqlite:///{path}"


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    engine = create_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def counted(connection: Connection, table: Any) -> int:
    return connection.execute(select(func.count()).select_from(table)).scalar() or 0


def test_rows_are_as_many_as_the_shape_says(connection: Connection) -> None:
    found = {
        name: counted(connection, tables.metadata.tables[name]) for name in ("nodes", "checkpoints", "commitments")
    }
    assert found == {"nodes": 220, "checkpoints": 6_001, "commitments": 8_000}
    assert counted(connection, tables.steps) == 6_001
    assert counted(connection, tables.uploads) == 8_000


def test_statuses_are_those_that_follow_from_verdicts_and_cases(url: str) -> None:
    commitments = tables.commitments
    every = select(*commitments.c["node", "index", "status", "reason"]).order_by(
        commitments.c.node, commitments.c.index
    )

    async def decide_again() -> tuple[list, list]:
        database = await Database.open(url, ABOUT)
        queries = Queries(database, 1, TERMS, groups_wanted=16)

        def again(connection: Connection) -> tuple[list, list]:
            before = connection.execute(every).all()
            for node, index, *_ in before:
                queries.update_status(connection, node, index)
            after = connection.execute(every).all()
            connection.rollback()
            return before, after

        try:
            return await database.read(again)
        finally:
            await database.close()

    before, after = asyncio.run(decide_again())
    assert before == after
    assert set(Counter(status for _, _, status, _ in before)) == {"accepted", "pending", "rejected", "void"}


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        (tables.tallies, ("node", "status", "reason")),
        (tables.hour_tallies, ("hour", "node", "status")),
        (tables.step_tallies, ("step", "status")),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_tallies_count_the_commitments(connection: Connection, table: Any, columns: tuple[str, ...]) -> None:
    kept = {tuple(row)[:-1]: row[-1] for row in connection.execute(select(*table.c[columns], table.c.count))}
    rows = connection.execute(select(*tables.commitments.c[columns]))
    assert kept == Counter(tuple("" if value is None else value for value in row) for row in rows)


def test_nodes_keep_their_hours_and_payments(connection: Connection) -> None:
    hours = select(tables.hour_tallies.c.node, func.count(tables.hour_tallies.c.hour.distinct()))
    busy = {row.node: row[1] for row in connection.execute(hours.group_by(tables.hour_tallies.c.node))}
    paid: Counter[tuple[str, str]] = Counter()
    for row in connection.execute(select(tables.payments)).mappings():
        paid[row["node"], row["kind"]] += int(row["amount"])
    for row in connection.execute(select(tables.nodes)).mappings():
        node = row["address"]
        assert row["hours"] == busy.get(node, 0)
        assert {kind: int(row[kind]) for kind in tables.PAYMENTS} == {
            kind: paid[node, kind] for kind in tables.PAYMENTS
        }
    assert {kind for _, kind in paid} == {"claim", "slash", "void"}


def test_member_actions_are_counted(connection: Connection) -> None:
    counts = tables.counts.c
    given = select(*counts["subject", "status", "count"]).where(counts.kind == tables.DEED, counts["count"] > 0)
    kept = {(row.subject, row.status): row[-1] for row in connection.execute(given)}
    counted: Counter[tuple[str, str]] = Counter()
    for validator, accepted in connection.execute(select(*tables.verdicts.c["validator", "accepted"])):
        counted[validator, "accepts" if accepted else "rejections"] += 1
    used = set(connection.execute(select(tables.spent.c.file_hash).where(tables.spent.c.used)).scalars())
    for node, name in connection.execute(select(*tables.uploads.c["node", "file_hash"])):
        if name in used:
            counted[node, "files"] += 1
    steps = connection.execute(select(tables.spent.c.step).where(tables.spent.c.used)).scalars()
    counted[TRAINER, "updates"] = len(set(steps))
    assert kept == counted


def test_an_explorer_has_read_the_log_and_knows_of_a_file_only_its_name(connection: Connection) -> None:
    assert place_in(connection) == counted(connection, tables.verdicts)
    assert connection.execute(select(tables.uploads.c["size", "document"]).distinct()).all() == [(0, "")]
    assert counted(connection, tables.events) > 0


def test_an_orchestrator_has_the_receipts_and_nothing_for_people(orchestrators: Path) -> None:
    with sqlite3.connect(orchestrators) as database:
        database.row_factory = sqlite3.Row
        rows = list(map(dict, database.execute("SELECT * FROM uploads LIMIT 50")))
        shown = [
            database.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in ("events", "node_names", "machines", "metric_buckets", "scores")
        ]
    for row in rows:
        receipt = Upload.model_validate_json(row["document"]).receipt
        assert receipt.model_dump(include={"node", "index", "root", "file_hash", "size"}).items() <= row.items()
    assert (len(rows), shown) == (50, [0] * 5)


def test_documents_say_what_the_rows_say(connection: Connection) -> None:
    verdicts = tables.verdicts
    for row in connection.execute(select(verdicts).order_by(verdicts.c.accepted).limit(50)).mappings():
        verdict = Verdict.model_validate_json(row["document"]).model_dump(exclude={"signature"})
        assert {name: verdict[name] for name in verdict.keys() & row.keys()}.items() <= row.items()
    for row in connection.execute(select(tables.node_names)).mappings():
        document = NodeName.model_validate_json(row["document"])
        assert (document.node, document.name, document.named) == (row["node"], row["name"], row["named"])
        assert name_problem(document.name) == ""
    for row in connection.execute(select(tables.scores)).mappings():
        document = BenchmarkScore.model_validate_json(row["document"])
        assert (document.step, document.benchmark, document.score) == (row["step"], row["benchmark"], row["score"])


def test_each_batch_is_what_was_accepted_of_the_step_before(connection: Connection) -> None:
    accepted = select(tables.uploads.c.file_hash).join(
        tables.commitments,
        (tables.commitments.c.node == tables.uploads.c.node) & (tables.commitments.c.index == tables.uploads.c.index),
    )
    spent = connection.execute(accepted.where(tables.commitments.c.spent)).scalars()
    assert sorted(spent) == sorted(connection.execute(select(tables.spent.c.file_hash)).scalars())
    files = 0
    for step in (1, 2, 2_000, 6_000):
        document = connection.execute(select(tables.steps.c.document).where(tables.steps.c.step == step)).scalar()
        batch = StepReport.model_validate_json(document or "").batch
        where = (tables.commitments.c.step == step - 1) & (tables.commitments.c.status == "accepted")
        assert sorted(batch) == sorted(connection.execute(accepted.where(where)).scalars())
        used = select(tables.spent.c.file_hash).where(tables.spent.c.step == step)
        assert sorted(batch) == sorted(connection.execute(used).scalars())
        files += len(batch)
    assert files > 0


def test_claims_pay_for_every_commitment_up_to_the_settled_one(connection: Connection) -> None:
    claims = select(tables.payments.c.node, tables.payments.c.amount).where(tables.payments.c.kind == "claim")
    paid: Counter[str] = Counter()
    for node, amount in connection.execute(claims):
        paid[node] += int(amount)
    workers = connection.execute(select(tables.nodes).where(tables.nodes.c.role == "worker")).mappings().all()
    assert {row["address"]: row["settled"] * TERMS.pay_of(0) for row in workers if row["settled"]} == paid
    assert paid
    jailed = {row["address"] for row in workers if row["status"] == "jailed"}
    slashed = connection.execute(select(tables.payments.c.node).where(tables.payments.c.kind == "slash")).scalars()
    assert jailed == set(slashed)
    assert jailed


def test_buckets_hold_the_numbers_of_the_reports(connection: Connection) -> None:
    documents = connection.execute(select(tables.steps.c.document)).scalars()
    reports = [StepReport.model_validate_json(document) for document in documents]
    buckets = tables.metric_buckets
    for name in ("reward", "held_out/reward"):
        numbers = [(report.step, report.metrics[name]) for report in reports if report.metrics.get(name) is not None]
        for level in range(LEVELS):
            of = (buckets.c.name == name, buckets.c.level == level)
            rows = connection.execute(select(buckets).where(*of).order_by(buckets.c.bucket)).all()
            by_bucket: dict[int, list[float]] = {}
            for step, number in numbers:
                by_bucket.setdefault(step // BASE**level, []).append(number)  # type: ignore[arg-type]
            assert [row.bucket for row in rows] == sorted(by_bucket)
            for row in rows:
                inside = by_bucket[row.bucket]
                assert (row.count, row.low, row.high) == (len(inside), min(inside), max(inside))
                assert row.total == pytest.approx(math.fsum(inside))


def test_unreported_metric_has_no_bucket() -> None:
    assert list(buckets_of({"x": np.full(3, np.nan)})) == []


TABLES: list[Callable[[Rows], Any]] = [Rows.nodes, Rows.commitments, Rows.uploads, Rows.verdicts, Rows.payments]


@pytest.mark.parametrize("rows_of", TABLES, ids=lambda method: method.__name__)
def test_the_same_seed_gives_the_same_run(rows_of: Callable[[Rows], Any]) -> None:
    small = Shape(steps=40, nodes=60, commitments=300)
    assert list(rows_of(make_rows(small))) == list(rows_of(make_rows(small)))
    other = Shape(steps=40, nodes=60, commitments=300, seed=8)
    assert list(rows_of(make_rows(small))) != list(rows_of(make_rows(other)))


def test_six_days_have_claims_and_lost_cases() -> None:
    work = make_rows().work
    assert work.cleared.any()
    assert work.now - int(work.time[0]) > 6 * DAY_SECONDS
