"""Documents of the log lead to what they say where their signer may say it, and else to nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection, select
from structlog.testing import capture_logs

from explorer import documents as module
from explorer.documents import MAX_BENCHMARKS, Documents
from explorer.series import read_series
from muster.contracts.registry import Registered, Role
from muster.contracts.run_terms import Keys, Tenure
from muster.contracts.runs import WorkCommitted
from muster.ledger import tables
from muster.ledger.database import Database
from muster.ledger.documents import KeptCall, Placed, newest_sums
from muster.ledger.summaries import DayOfWork, restore
from muster.protocol.announcements import BenchmarkScore, NodeName
from muster.protocol.eip712 import UNSIGNED, sign_message
from muster.protocol.hashes import hash_bytes
from muster.protocol.keys import RunKeys
from muster.protocol.messages import (
    LogEntry,
    LookList,
    MisbehaviourReport,
    RowCheck,
    ShownMaster,
    SignedText,
    StepReport,
    ValidatorTotal,
    Verdict,
)
from muster.protocol.receipts import sign_text
from testbed.runs.recorded_run import HOUR, RUN, SampleRun, hash_of
from testbed.samples.messages import ELSEWHERE, HERE, verdict_of
from testbed.signing import QuickSigner

FORMER, TRAINER, OWNER, VERA, VIKTOR, WANDA, OPERATOR, OTHER = (
    QuickSigner(f"{number:064x}", HERE) for number in range(1, 9)
)
ROOT, FILE = hash_of("root"), hash_of("file")
CLOSED, OPEN = 1, 0
"""Indices of Wanda's commitments: of one only a summary is left."""
CAME, RECEIVED = HOUR * 3600 + 60, 1_800_000_000.5
CALL = KeptCall(block=9, hash=hash_of("block"), order=json.dumps([VERA.address, VIKTOR.address]), opens=CAME - 1)
BESIDE = CALL.model_dump_json()


def verdict(key: QuickSigner = VERA, **changes: Any) -> Verdict:
    """A rejection of the open commitment."""
    work = {"run": RUN, "node": WANDA.address, "index": OPEN, "root": ROOT, "file_hash": FILE}
    said = {"validator": key.address, "accepted": False, "reason": "wrong_reward", "position": 3}
    return sign_message(key, HERE, verdict_of(**(work | said | changes)))


def report(key: QuickSigner = TRAINER, **changes: Any) -> SignedText:
    values: dict[str, Any] = {"run": RUN, "step": 3, "metrics": {"reward": 0.5}, "batch": [FILE], "finished": True}
    return sign_text(key, HERE, "report", StepReport(**(values | changes)))


def looks(hour: int, key: QuickSigner = TRAINER, **changes: Any) -> SignedText:
    check = RowCheck(validator=VERA.address, node=WANDA.address, index=0, root=ROOT, position=3, outcome="false")
    total = ValidatorTotal(validator=VERA.address, total=hour * 10, barred_until=7)
    values: dict[str, Any] = {"run": RUN, "hour": hour, "looks": [], "checks": [check], "totals": [total]}
    return sign_text(key, HERE, "looks", LookList(**(values | changes)))


def name(text: str = "Wanda #2", named: int = 6, key: QuickSigner = OPERATOR, **changes: Any) -> NodeName:
    fields = {"run": RUN, "node": WANDA.address, "name": text, "named": named, "signature": UNSIGNED}
    return sign_message(key, HERE, NodeName(**(fields | changes)))


def score(value: float = 0.5, measured: int = 6, key: QuickSigner = TRAINER, **changes: Any) -> BenchmarkScore:
    fields = {"run": RUN, "step": 0, "benchmark": "gsm8k", "score": value, "low": 0.25, "high": 0.75, "tasks": 9}
    fields |= {"samples": 1, "measured": measured, "signature": UNSIGNED}
    return sign_message(key, HERE, BenchmarkScore(**(fields | changes)))


def lie(key: QuickSigner = WANDA, **changes: Any) -> SignedText:
    values = {"run": RUN, "url": "https://relay.example/", "root": ROOT, "why": "shard 3 hashes to something else"}
    return sign_text(key, HERE, "misbehaviour", MisbehaviourReport(**(values | changes)))


ABOUT = "run 1 of 0xab on chain 31337"
OF_DATABASE = ("writes", "identity", "about", "version")


class Reader:
    """An explorer's database, and documents as the log has them."""

    def __init__(self, run: SampleRun) -> None:
        self.run, self.database = run, run.database
        self.documents = Documents(HERE, run.queries, OWNER.address)
        self.place = 0

    def open(self, kind: str, signed: Any, beside: str | None = None) -> Placed[Any] | None:
        """Open a document or a text at the next place."""
        text = signed if isinstance(signed, str) else signed.to_bytes().decode()
        beside = (BESIDE if kind == "verdict" else "") if beside is None else beside
        entry = LogEntry(place=self.place, kind=kind, came=CAME, received=RECEIVED, text=text, beside=beside)
        self.place += 1
        return self.documents.open(entry)

    async def take(self, kind: str, signed: Any, beside: str | None = None) -> bool:
        """Take in a document or a text; return whether it opens."""
        found = self.open(kind, signed, beside)
        await self.project([found] if found else [])
        return found is not None

    async def project(self, found: Sequence[Placed[Any]]) -> None:
        await self.database.write(lambda connection: self.documents.project(connection, found))

    async def rows(self, *columns: Any) -> list[tuple[Any, ...]]:
        query = select(*columns).order_by(*columns)
        return [tuple(row) for row in await self.database.read(lambda connection: connection.execute(query).all())]

    async def events(self, *kinds: str) -> list[tuple[str, float, Any]]:
        """Return events of these kinds in their order."""
        found = await self.rows(*tables.events.c["id", "kind", "time", "data"])
        return [(kind, at, json.loads(data)) for _, kind, at, data in found if kind in kinds]

    async def content(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row, but those of the database itself."""

        def read(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
            found = {table.name: connection.execute(select(table)).all() for table in tables.metadata.sorted_tables}
            return {
                table: sorted(tuple(row) for row in rows if row[0] not in OF_DATABASE) for table, rows in found.items()
            }

        return await self.database.read(read)


async def opened(database: Database, folder: Path) -> Reader:
    """Two commitments, of one only a summary; a name, a score and a list of looks that are not the first."""
    run = SampleRun(database, folder, accepts_required=1)
    keys = (Keys(key.address, OWNER.address, OWNER.address) for key in (FORMER, TRAINER))
    run.queries.keys = RunKeys(tuple(Tenure(one, since) for since, one in enumerate(keys)))
    run.at(HOUR * 3600)
    for node, role in ((WANDA, Role.WORKER), (VERA, Role.VALIDATOR), (VIKTOR, Role.VALIDATOR)):
        await run.happen(Registered, node.address, OPERATOR.address, RUN, role, 0, 1, bytes(32))
    await run.publish(0)
    for index, hour in ((OPEN, HOUR), (CLOSED, HOUR - 24)):
        await run.happen(WorkCommitted, RUN, WANDA.address, 0, index, hour, hash_bytes(ROOT))
    ended = DayOfWork(RUN, HOUR // 24 - 1, ROOT, {WANDA.address: [(CLOSED, CLOSED, "accepted", None, False)]}, {}, [])
    await database.write(lambda connection: restore(connection, ended, hash_of("summary")))
    reader = Reader(run)
    assert await reader.take("name", name("Wanda", 5))
    assert await reader.take("score", score(0.25, 5))
    assert await reader.take("looks", looks(7, FORMER))
    return reader


@pytest.fixture
async def reader(database: Database, tmp_path: Path) -> Reader:
    return await opened(database, tmp_path)


# What is taken


async def test_a_rejection_is_counted_with_its_file_and_who_was_called(reader: Reader) -> None:
    assert await reader.take("verdict", verdict())
    assert await reader.take("verdict", verdict(VIKTOR, reason="data_missing", position=None))
    assert await reader.rows(*tables.verdicts.c["id", "validator", "node", "index", "root", "reason", "received"]) == [
        (3, VERA.address, WANDA.address, OPEN, ROOT, "wrong_reward", RECEIVED),
        (4, VIKTOR.address, WANDA.address, OPEN, ROOT, "data_missing", RECEIVED),
    ]
    assert await reader.rows(*tables.verdicts.c["accepted", "position", "came"]) == [
        (False, None, CAME),
        (False, 3, CAME),
    ]
    called = tables.calls.c["node", "index", "block", "hash", "order", "opens", "lapsed"]
    assert await reader.rows(*called) == [(WANDA.address, OPEN, 9, CALL.hash, CALL.order, CALL.opens, "")]
    files = tables.uploads.c["node", "index", "root", "file_hash", "received"]
    assert await reader.rows(*files) == [(WANDA.address, OPEN, ROOT, FILE, RECEIVED)]
    status = tables.commitments.c["index", "status", "reason"]
    assert (OPEN, "rejected", "wrong_reward") in await reader.rows(*status)
    counted = await reader.rows(*tables.deeds.c["address", "kind", "count"])
    assert counted == sorted([(VERA.address, "rejections", 1), (VIKTOR.address, "rejections", 1)])
    about = {"node": WANDA.address, "index": OPEN}
    assert await reader.events("rejected") == [
        ("rejected", RECEIVED, about | {"reason": "wrong_reward", "rejections": 1, "validator": VERA.address}),
        ("rejected", RECEIVED, about | {"reason": "data_missing", "rejections": 2, "validator": VIKTOR.address}),
    ]


async def test_a_file_that_is_missing_is_named_by_a_later_verdict(reader: Reader) -> None:
    """Addresses count in any form; a later verdict of a validator takes the place of its earlier one."""
    forms: dict[str, Any] = {"validator": VERA.address.lower(), "node": WANDA.address.lower()}
    assert await reader.take("verdict", verdict(reason="data_missing", **forms))
    assert await reader.rows(tables.uploads.c.file_hash) == []
    assert await reader.take("report", report())
    assert await reader.take("verdict", verdict(accepted=True, reason=None, **forms))
    assert await reader.rows(tables.uploads.c.file_hash) == [(FILE,)]
    assert await reader.rows(*tables.verdicts.c["validator", "node", "accepted"]) == [
        (VERA.address, WANDA.address, True)
    ]
    status = tables.commitments.c["index", "status", "spent"]
    assert (OPEN, "accepted", True) in await reader.rows(*status)
    counted = await reader.rows(*tables.deeds.c["address", "kind", "count"])
    assert {row for row in counted if row[-1]} == {
        (VERA.address, "accepts", 1), (WANDA.address, "files", 1), (TRAINER.address, "updates", 1),
    }  # fmt: skip


async def test_a_report_leads_to_a_step_its_files_and_charts(reader: Reader) -> None:
    odd = {"reward": 0.5, "re\0ward": 1.0}
    assert await reader.take("report", report(metrics=odd, finished=False))
    with capture_logs() as lines:
        assert await reader.take("report", report(metrics={"held_out/reward": 0.75, "kl": None, "re\0ward": 1.0}))
        assert await reader.take("report", report(step=4, metrics={"reward": 0.25}, batch=[hash_of("another")]))
    assert [one for one in lines if "leave out" in one["event"]] == [], "it was said once"
    kept = [StepReport.model_validate_json(text) for (text,) in await reader.rows(tables.steps.c.document)]
    assert [(one.step, one.metrics, one.batch) for one in kept] == [
        (3, {"reward": 0.5, "held_out/reward": 0.75, "kl": None, "re\0ward": 1.0}, [FILE]),
        (4, {"reward": 0.25}, [hash_of("another")]),
    ]
    assert await reader.rows(*tables.spent.c["step", "file_hash", "used"]) == [
        (3, FILE, True),
        (4, hash_of("another"), True),
    ]
    charts = await reader.database.read(lambda c: read_series(c, RUN, ["reward", "held_out/reward"], 0, 9, 10))
    assert [(one.name, one.steps, one.mean) for one in charts.series] == [
        ("reward", [3, 4], [0.5, 0.25]),
        ("held_out/reward", [3], [0.75]),
    ]
    told = await reader.events("step", "finished")
    assert [(kind, at, data["step"]) for kind, at, data in told] == [
        ("step", RECEIVED, 3), ("finished", RECEIVED, 3), ("step", RECEIVED, 4), ("finished", RECEIVED, 4),
    ]  # fmt: skip
    assert told[0][2] == {"step": 3, "metrics": odd, "files": 1}


async def test_metrics_that_charts_leave_out_are_logged_once(reader: Reader) -> None:
    with capture_logs() as lines:
        for step in (3, 4):
            assert await reader.take("report", report(step=step, metrics={"re\0ward": 1.0, "größe 奖": 1.5}))
    assert [line["metrics"] for line in lines if "leave out" in line["event"]] == [["re\0ward"]]


async def test_a_report_of_too_many_files_leads_to_nothing(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 2)
    before = await reader.content()
    assert await reader.take("report", report(batch=[FILE], dropped=[ROOT, hash_of("third")]))
    assert await reader.content() == before
    assert await reader.take("report", report(batch=[FILE], dropped=[ROOT]))
    assert await reader.rows(*tables.spent.c["file_hash", "used"]) == sorted([(FILE, True), (ROOT, False)])


async def test_lists_of_looks_are_summed(reader: Reader) -> None:
    assert await reader.take("looks", looks(9))
    assert await reader.database.read(newest_sums) == {
        VERA.address: {"total": 90, "barred_until": 7, "checked": 2, "false": 2}
    }


async def test_a_later_name_takes_the_place_of_an_earlier(reader: Reader) -> None:
    assert await reader.take("name", name(node=WANDA.address.lower()))
    names = tables.node_names.c["node", "name", "named", "received"]
    assert await reader.rows(*names) == [(WANDA.address, "Wanda #2", 6, RECEIVED)]
    assert await reader.take("name", name("", 7))
    assert await reader.rows(tables.node_names.c.name) == [("",)]
    assert await reader.events("named") == [
        ("named", RECEIVED, {"node": WANDA.address, "name": text}) for text in ("Wanda", "Wanda #2", "")
    ]


async def test_a_later_score_takes_the_place_of_an_earlier(reader: Reader) -> None:
    assert await reader.take("score", score(0.75, key=OWNER))
    assert await reader.take("score", score(0.5, 1, FORMER, benchmark="aime24"))
    kept = tables.scores.c["step", "benchmark", "score", "measured"]
    assert await reader.rows(*kept) == [(0, "aime24", 0.5, 1), (0, "gsm8k", 0.75, 6)]
    ends = {"step": 0, "low": 0.25, "high": 0.75}
    assert await reader.events("scored") == [
        ("scored", RECEIVED, ends | {"benchmark": benchmark, "score": value})
        for benchmark, value in (("gsm8k", 0.25), ("gsm8k", 0.75), ("aime24", 0.5))
    ]


async def test_benchmarks_are_bounded(reader: Reader) -> None:
    for number in range(MAX_BENCHMARKS - 1):
        assert await reader.take("score", score(benchmark=f"b{number}"))
    before = await reader.content()
    assert await reader.take("score", score(benchmark="c"))
    assert await reader.content() == before
    assert await reader.take("score", score(0.75))
    assert (0, "gsm8k", 0.75) in await reader.rows(*tables.scores.c["step", "benchmark", "score"])
    assert len(await reader.rows(tables.scores.c.benchmark)) == MAX_BENCHMARKS


async def test_a_report_of_misbehaviour_is_told(reader: Reader) -> None:
    assert await reader.take("misbehaviour", lie())
    told = {"relay": "https://relay.example", "by": WANDA.address, "root": ROOT}
    told |= {"why": "shard 3 hashes to something else"}
    assert await reader.events("relay misbehaved") == [("relay misbehaved", RECEIVED, told)]


async def test_the_same_document_again_changes_nothing(reader: Reader) -> None:
    for kind, signed in (("verdict", verdict()), ("name", name()), ("score", score()), ("looks", looks(8))):
        before = await reader.content()
        assert await reader.take(kind, signed)
        assert (once := await reader.content()) != before, kind
        reader.place -= 1
        assert await reader.take(kind, signed)
        assert await reader.content() == once, kind


POOL = [
    ("verdict", verdict(accepted=True, reason=None)),
    ("verdict", verdict(accepted=True, reason=None, file_hash=hash_of("another"), inspected=7)),
    *[("verdict", verdict(key, accepted=True, reason=None)) for key in (VIKTOR, OTHER, WANDA)],
    *[("verdict", verdict(key, accepted=True, reason=None, index=index)) for key in (VERA, VIKTOR) for index in (1, 2)],
    ("verdict", verdict(accepted=True, reason=None, node=WANDA.address.lower(), validator=VERA.address.lower())),
    ("verdict", verdict(accepted=True, reason=None, root=hash_of("another"))),
    ("verdict", verdict()),
    ("verdict", verdict(VIKTOR, reason="data_missing")),
    ("report", report()),
    ("report", report(step=4, batch=[], dropped=[hash_of("another")])),
    ("name", name()),
]
"""Of the first two the later takes the place of the earlier, whose file counts."""


@pytest.mark.parametrize("seed", range(6))
async def test_a_page_leads_to_the_same_as_its_documents_one_by_one(
    reader: Reader, new_database_url: Callable[[], str], tmp_path: Path, seed: int
) -> None:
    database = await Database.open(new_database_url(), ABOUT)
    other = await opened(database, tmp_path / "other")
    assert await other.content() == await reader.content()
    chosen = [*POOL[:2], *Random(seed).choices(POOL, k=40)]
    for kind, signed in chosen:
        assert await reader.take(kind, signed)
    found = [other.open(kind, signed) for kind, signed in chosen]
    await other.project([one for one in found if one is not None])
    assert await other.content() == await reader.content()
    await database.close()


# What is not


def changed(signed: Any, **changes: Any) -> Any:
    """Return a message with other values than were signed."""
    return signed.model_copy(update=changes)


def beside(**changes: Any) -> str:
    return json.dumps(CALL.model_dump() | changes)


MASTER = sign_text(TRAINER, HERE, "master", ShownMaster(run=RUN, epoch=1, master=ROOT))
THERE = QuickSigner("4".zfill(64), ELSEWHERE[0])
"""Vera's key, for another chain."""

NEVER: dict[str, tuple[str, Any]] = {
    "another run's verdict": ("verdict", verdict(run=RUN + 1)),
    "another run's report": ("report", report(run=RUN + 1)),
    "another run's looks": ("looks", looks(8, run=RUN + 1)),
    "another run's name": ("name", name(run=RUN + 1)),
    "another run's score": ("score", score(run=RUN + 1)),
    "another run's misbehaviour": ("misbehaviour", lie(run=RUN + 1)),
    "a text of another run": (
        "report",
        sign_message(TRAINER, HERE, changed(report(), text=report().text.replace(f'"run":{RUN}', '"run":9'))),
    ),
    "a verdict in another's name": ("verdict", verdict(OTHER, validator=VERA.address)),
    "a changed verdict": ("verdict", changed(verdict(), index=5)),
    "a verdict of another chain": (
        "verdict",
        sign_message(THERE, ELSEWHERE[0], verdict()),
    ),
    "no signature": ("verdict", changed(verdict(), signature=UNSIGNED)),
    "a validator's report": ("report", report(VERA)),
    "the owner's report": ("report", report(OWNER)),
    "a changed report": ("report", changed(report(), text=report(step=4).text)),
    "a validator's looks": ("looks", looks(8, VERA)),
    "a validator's score": ("score", score(key=VERA)),
    "a changed score": ("score", changed(score(), score=0.75)),
    "a report as looks": ("looks", report()),
    "a report as a misbehaviour": ("misbehaviour", sign_message(WANDA, HERE, changed(report(), kind="misbehaviour"))),
    "no JSON": ("verdict", "{"),
    "no text": ("report", ""),
    "another message": ("verdict", score()),
    "text that does not parse": ("report", sign_message(TRAINER, HERE, changed(report(), text="{"))),
    "a kind that leads to nothing": ("master", MASTER),
}
"""Documents of a kind that do not open."""
NO_FACT: dict[str, tuple[str, Any]] = {
    "no validator's verdict": ("verdict", verdict(OTHER)),
    "a worker's verdict": ("verdict", verdict(WANDA)),
    "a verdict about a closed day": ("verdict", verdict(index=CLOSED)),
    "another operator's name": ("name", name(key=OTHER)),
    "the node's own name": ("name", name(key=WANDA)),
    "a stranger's name": ("name", name(node=OTHER.address)),
    "an older name": ("name", name(named=4)),
    "a name as old": ("name", name(named=5)),
    "a hostile name": ("name", name("<b>")),
    "a name that turns": ("name", name("\u202ename")),
    "an earlier score": ("score", score(measured=4)),
    "a score as early": ("score", score(measured=5, key=OWNER)),
    "a score of no step": ("score", score(step=1)),
    "looks of the same hour": ("looks", looks(7, totals=[])),
    "looks of an earlier hour": ("looks", looks(6)),
    "a stranger's misbehaviour": ("misbehaviour", lie(OTHER)),
    "an operator's misbehaviour": ("misbehaviour", lie(OPERATOR)),
}
"""Documents that open and lead to nothing."""


@pytest.mark.parametrize("case", [*NEVER, *NO_FACT])
async def test_what_its_signer_may_not_say_leads_to_nothing(reader: Reader, case: str) -> None:
    before = await reader.content()
    kind, signed = (NEVER | NO_FACT)[case]
    assert await reader.take(kind, signed) == (case in NO_FACT)
    assert await reader.content() == before


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"block": 9}',
        beside(hash="0x12"),
        beside(block=-1),
        beside(opens=1 << 37),
        beside(order="none"),
        beside(order='["0x12"]'),
        beside(order='{"a": 1}'),
        beside(more=1),
    ],
)
async def test_a_verdict_beside_which_no_call_stands_leads_to_nothing(reader: Reader, text: str) -> None:
    before = await reader.content()
    with capture_logs() as lines:
        assert not await reader.take("verdict", verdict(), beside=text)
    assert await reader.content() == before
    assert [(line["event"], line["kind"], line["place"]) for line in lines] == [("left out", "verdict", 3)]
    assert await reader.take("verdict", verdict(), beside=""), "who was called may not be known yet"
    assert await reader.rows(tables.calls.c.order) == []


@pytest.mark.parametrize(
    ("kind", "signed", "why"),
    [
        ("report", report(VERA), f"it is of run 1 and signed by {VERA.address}"),
        ("looks", report(), "the document is signed as a report, not as a looks"),
        ("verdict", "{", "1 validation error for Verdict"),
    ],
)
async def test_the_log_says_why_a_document_is_left_out(reader: Reader, kind: str, signed: Any, why: str) -> None:
    with capture_logs() as lines:
        assert not await reader.take(kind, signed)
        assert not await reader.take("master", MASTER), "which leads to nothing here"
    assert lines == [{"event": "left out", "log_level": "warning", "kind": kind, "place": 3, "reason": why}]
