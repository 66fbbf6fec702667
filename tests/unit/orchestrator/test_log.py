"""The log gives each signed document one place for ever: without gaps, whatever processes, kills and stores do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete

from muster.clients.storage import SegmentStore
from muster.errors import RefusedError, StorageError
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.run_facts import ChainState
from muster.ledger.statements import upsert
from muster.ledger.tables import entries, meta
from muster.protocol.announcements import NodeName
from muster.protocol.eip712 import UNSIGNED, sign_message
from muster.protocol.messages import LogDocument, LogEntry, LogPage, SignedText, StepReport
from muster.protocol.receipts import sign_text
from muster.runtime import failpoints, problems
from orchestrator.log import Kind, Log, Offered, Placed, Taken, head_of
from testbed.samples.messages import HERE, KEY, OTHER
from testbed.samples.terms import keys_of, terms_of

NOW = 1_800_000_000


class Note(LogDocument):
    """A kind that a change adds: this message, and a row (`note_kind`)."""

    topic: str
    words: str


def note_kind() -> Kind[Note]:
    def fits(_connection: Connection, offered: Offered[Note]) -> str:
        if not offered.document.words:
            raise problems.malformed("a note of no words")
        return f"signed by {offered.signer}"

    def project(connection: Connection, found: Sequence[Placed[Note]]) -> None:
        for one in found:
            upsert(connection, meta, {"key": f"note {one.document.topic}", "value": one.document.words})

    return Kind(
        name="note",
        message=Note,
        noun="note",
        key=lambda note: note.topic,
        may_sign=lambda _connection, _note: {KEY.address},
        fits=fits,
        replaces=lambda new, earlier: len(new.words) > len(earlier.words),
        about=lambda note: (OTHER.address, len(note.topic)),
        project=project,
    )


def note(words: str, topic: str = "a", signer: Any = KEY, run: int = 1, kind: str = "note") -> SignedText:
    return sign_text(signer, HERE, kind, Note(run=run, topic=topic, words=words))


def log_of(database: Database, folder: Path) -> Log:
    queries = Queries(database, 1, terms_of(), keys_of(KEY.address), groups_wanted=16)
    queries.chain = ChainState(now=NOW)
    log = Log(HERE, database, queries, storage_url=f"file:{folder}", clock=lambda: NOW + 0.5)
    log.add_kind(note_kind())
    return log


@pytest.fixture
def log(database: Database, tmp_path: Path) -> Log:
    return log_of(database, tmp_path)


async def texts(log: Log, after: int = 0) -> list[tuple[int, str]]:
    return [(one.place, log.document_of(one.kind, one.text).words) for one in (await log.page(after)).entries]


async def test_a_document_of_a_new_kind_is_taken_told_and_projected(log: Log, database: Database) -> None:
    assert await log.take("note", note("one")) == Taken(True, 0)
    assert await log.take("note", note("one")) == Taken(False, 0)
    assert await log.take("note", note("three")) == Taken(True, 1)
    page = await log.page(0)
    assert page.cursor == 2
    assert page.entries[1] == LogEntry(
        place=1,
        kind="note",
        came=NOW,
        received=NOW + 0.5,
        text=note("three").to_bytes().decode(),
        beside=f"signed by {KEY.address}",
    )
    assert (await log.page(2)).entries == []
    assert (await log.page(0, kind="note", subject=OTHER.address, number=1)).entries == page.entries
    assert (await log.page(1, subject=OTHER.address, number=None)).entries == page.entries[1:]
    assert (await log.page(0, subject=OTHER.address, number=2)).entries == []
    assert await kept(database) == "three"


async def kept(database: Database, topic: str = "a") -> Any:
    query = meta.select().where(meta.c.key == f"note {topic}")
    row = await database.read(lambda connection: connection.execute(query).one_or_none())
    return None if row is None else row.value


@pytest.mark.parametrize(
    ("offered", "status", "why"),
    [
        (note("ab", signer=OTHER), 403, "not by 0x"),
        (note("ab", run=2), 404, "serves run 1, not 2"),
        (note(""), 422, "a note of no words"),
        (note("x"), 409, "as late or later"),
        (note("ab", kind="other"), 403, "signed as a other, not as a note"),
        (sign_text(KEY, HERE, "note", StepReport(run=1, step=0, metrics={})), 403, "does not parse"),
        (note("ab").model_copy(update={"text": note("cd").text}), 403, "not by 0x"),
    ],
)
async def test_what_does_not_fit_is_refused_and_leaves_no_gap(
    log: Log, offered: SignedText, status: int, why: str
) -> None:
    assert await log.take("note", note("one"))
    with pytest.raises(RefusedError, match=why) as refused:
        await log.take("note", offered)
    assert refused.value.status == status
    assert await log.take("note", note("one", topic="b"))
    assert [place for place, _ in await texts(log)] == [0, 1]


async def test_documents_that_come_together_have_places_in_a_row_and_share_a_file(log: Log, tmp_path: Path) -> None:
    taken = await asyncio.gather(*(log.take("note", note("words", topic=f"{n}")) for n in range(40)))
    assert taken == [Taken(True, place) for place in range(40)]
    assert [place for place, _ in await texts(log)] == list(range(40))
    firsts = await SegmentStore(f"file:{tmp_path}", "log").firsts()
    assert firsts[0] == 0
    assert len(firsts) < 10


async def test_of_two_about_the_same_at_one_moment_one_waits(log: Log) -> None:
    outcomes = await asyncio.gather(
        log.take("note", note("first")), log.take("note", note("another")), return_exceptions=True
    )
    assert outcomes[0] == Taken(True, 0) or isinstance(outcomes[0], RefusedError)
    assert await log.take("note", note("the longest one"))
    assert (await texts(log))[-1][1] == "the longest one"


async def test_two_processes_never_give_a_place_twice(
    new_database_url: Callable[[], str], database_url: str, tmp_path: Path
) -> None:
    """They share a database and storage. Whoever finds a place taken reads what is there, then goes on behind it."""
    databases = [await Database.open(database_url, "a test") for _ in range(2)]
    try:
        both = [log_of(database, tmp_path) for database in databases]
        taken = await asyncio.gather(*(both[n % 2].take("note", note("words", topic=f"{n}")) for n in range(60)))
        assert all(one.is_new for one in taken)
        assert {one.place for one in taken} == set(range(60))
        for log in both:
            assert [place for place, _ in await texts(log)] == list(range(60))
    finally:
        for database in databases:
            await database.close()
    fresh = await Database.open(new_database_url(), "a test")
    try:
        again = log_of(fresh, tmp_path)
        assert await again.catch_up(lambda _: False, ()) == 60
        assert await texts(again) == [(place, "words") for place in range(60)]
    finally:
        await fresh.close()


async def test_nobody_sends_another_s_document_again(log: Log) -> None:
    """The log is open: an older report of a step would take the place of a newer one."""
    with pytest.raises(RefusedError, match="the request by") as refused:
        await log.take("note", note("one"), sender=OTHER.address)
    assert refused.value.status == 403
    assert await log.take("note", note("one"), sender=KEY.address)


@pytest.mark.parametrize("kind", ["name", "other"])
async def test_a_signed_text_of_another_form_is_refused(log: Log, kind: str) -> None:
    log.add_kind(Kind(name="name", message=NodeName, noun="name", key=lambda named: named.node))
    with pytest.raises(RefusedError, match=f"no signed text is a {kind}") as refused:
        await log.take(kind, note("one", kind=kind))
    assert (refused.value.status, refused.value.hint) == (422, "kinds of signed texts: note")


async def test_what_a_killed_process_left_in_storage_is_taken_in_as_it_stands(
    log: Log, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_name: str) -> None:
        raise StorageError("the process is killed here")

    monkeypatch.setattr("orchestrator.log.failpoint", killed)
    with pytest.raises(StorageError):
        await log.take("note", note("lost?"))
    monkeypatch.setattr("orchestrator.log.failpoint", failpoints.failpoint)
    assert await texts(log) == []
    assert await log.take("note", note("next", topic="b"))
    assert await texts(log) == [(0, "lost?"), (1, "next")]
    assert not await log.take("note", note("lost?"))
    assert await kept(database) == "lost?"


async def test_a_file_that_is_taken_in_twice_counts_once(log: Log) -> None:
    """Two processes may find the same file at the same moment."""
    projected = list[Any]()
    log.add_kind(replace(note_kind(), project=lambda _connection, found: projected.extend(found)))
    assert await log.take("note", note("one"))
    await log.take_in(0)
    assert ([one.document.words for one in projected], await texts(log)) == (["one"], [(0, "one")])


async def test_a_store_that_keeps_and_says_it_failed_loses_and_doubles_nothing(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = log.segments.create

    async def fails(first: int, documents: Sequence[bytes]) -> bool:
        await create(first, documents)
        raise StorageError("500")

    monkeypatch.setattr(log.segments, "create", fails)
    with pytest.raises(StorageError):
        await log.take("note", note("kept"))
    monkeypatch.setattr(log.segments, "create", create)
    assert not await log.take("note", note("kept"))
    assert await texts(log) == [(0, "kept")]


async def test_an_older_database_is_filled_and_what_is_forgotten_stays_so(
    log: Log, database: Database, new_database_url: Callable[[], str], tmp_path: Path
) -> None:
    for n in range(5):
        assert await log.take("note", note("words", topic=f"{n}"))
    await log.segments.delete(1)
    await log.segments.delete(4)
    fresh = await Database.open(new_database_url(), "a test")
    try:
        again = log_of(fresh, tmp_path)
        assert await again.catch_up(lambda one: one.at.place in {1, 2, 4}, {1, 2, 4}) == 5
        assert [place for place, _ in await texts(again)] == [0, 3]
        assert await again.take("note", note("words", topic="5"))
        assert [place for place, _ in await texts(again)] == [0, 3, 5]
        assert await log.catch_up(lambda _: False, {4}) == 1
        assert [place for place, _ in await texts(log)] == list(range(6))
    finally:
        await fresh.close()


async def test_a_damaged_line_and_another_runs_leave_only_themselves_out(log: Log, tmp_path: Path) -> None:
    mine = LogEntry(place=1, kind="note", came=1, received=1.0, text=note("mine").to_bytes().decode())
    other = mine.model_copy(update={"place": 2, "text": note("other", run=2).to_bytes().decode()})
    forged = mine.model_copy(update={"place": 3, "kind": "unknown"})
    lines = [b"{}", mine.to_bytes(), other.to_bytes(), forged.to_bytes()]
    assert await SegmentStore(f"file:{tmp_path}", "log").create(0, lines)
    assert await log.take("note", note("words", topic="b"))
    assert await texts(log) == [(1, "mine"), (4, "words")]


async def test_a_page_is_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        assert await log.take("note", note("w" * 100, topic=f"{n}"))
    monkeypatch.setattr("orchestrator.log.MAX_PAGE_CHARACTERS", 10)
    page = await log.page(0)
    assert ([one.place for one in page.entries], page.cursor) == ([0], 1)
    assert await log.page(7) == LogPage(entries=[], cursor=7)
    assert await log.page((1 << 53) - 1) == LogPage(entries=[], cursor=(1 << 53) - 1)


async def test_a_kind_with_a_signature_of_its_own_travels_as_it_is(log: Log, database: Database) -> None:
    log.add_kind(Kind(name="name", message=NodeName, noun="name", key=lambda named: named.node))
    said = NodeName(run=1, node=OTHER.address, name="a node", named=1, signature=UNSIGNED)
    assert await log.take("name", sign_message(KEY, HERE, said))
    [entry] = (await log.page(0)).entries
    assert entry.text == sign_message(KEY, HERE, said).to_bytes().decode()
    signer = entries.select().with_only_columns(entries.c.signer)
    assert await database.read(lambda connection: connection.execute(signer).scalar()) == KEY.address
    await database.write(lambda connection: connection.execute(delete(entries)))
    assert await database.read(head_of) == 1, "a place is given once, also where its document is forgotten"
