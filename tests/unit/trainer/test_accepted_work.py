"""What the trainer takes for accepted: what its own copy of log and chain says, file by file, across restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.chain.cursor import EventBatch
from muster.contracts.codec import Place
from muster.contracts.court import CaseOpened, CaseResolved, Outcome
from muster.contracts.registry import Convicted
from muster.errors import NotFoundError, RefusedError, UnreachableError
from muster.protocol.counting import Tally
from muster.protocol.hashes import content_hash
from muster.protocol.messages import LeftOut, SignedText
from testbed.samples.trainer import (
    BLOCK,
    FORGED,
    NODE,
    RUN,
    STEP,
    VALIDATORS,
    Orchestrator,
    accepted_work_of,
    commit,
    journal_in,
    judge,
)
from trainer.accepted_work import accepted_files
from trainer.batches import FileRef
from trainer.look_journal import DueCheck, LookJournal

FIRST, SECOND = VALIDATORS
ROOT = "0x" + "01" * 32


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[LookJournal]:
    with journal_in(tmp_path) as opened:
        yield opened


def names(journal: LookJournal, *, oldest: int = 0, spent: tuple[str, ...] = (), required: int = 1) -> list[str]:
    """Return the files that a journal lists as accepted."""
    terms = accepted_work_of(Orchestrator(), journal, required).terms
    return [ref.file_hash for ref in accepted_files(journal, oldest, spent, terms)]


def happen(journal: LookJournal, kind: Any, *values: Any, block: int = BLOCK + 5) -> None:
    journal.record(EventBatch((kind(Place(block, b"", b"", 0), *values),), block, block), {})


def open_case(journal: LookJournal, challenger: str, number: int = 7, block: int = BLOCK + 5) -> None:
    values = RUN, 0, STEP, b"\1" * 32, 0, 0, bytes(32), 3, 0, 0
    happen(journal, CaseOpened, number, NODE, challenger, *values, block=block)


# What is listed


def test_accepted_work_names_the_verdicts_that_accepted_it(journal: LookJournal) -> None:
    commit(journal)
    assert names(journal) == []
    first = judge(journal)
    assert names(journal, required=2) == []
    second = judge(journal, validator=SECOND)
    terms = accepted_work_of(Orchestrator(), journal, 2).terms
    given = tuple(content_hash(one.to_bytes()) for one in (first, second))
    assert accepted_files(journal, STEP, (), terms) == [FileRef(STEP, NODE, 0, FORGED, ROOT, verdicts=given)]
    assert names(journal, oldest=STEP + 1) == [], "it is too old"
    assert names(journal, spent=(FORGED,)) == []


def test_work_is_listed_by_step_then_block_and_no_more_than_a_batch_can_use(
    journal: LookJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["0x" + f"{number:02x}" * 32 for number in range(4)]
    for index, step in enumerate((STEP + 1, STEP, STEP + 1, STEP)):
        commit(journal, index, step)
        judge(journal, index, file_hash=files[index])
    assert names(journal) == [files[1], files[3], files[0], files[2]]
    monkeypatch.setattr("trainer.accepted_work.MAX_ACCEPTED", 2)
    assert names(journal) == [files[1], files[3]]
    assert names(journal, spent=(files[1],)) == [files[3], files[0]]


def test_who_takes_no_place_or_looked_at_other_rows_decides_nothing(journal: LookJournal) -> None:
    commit(journal)
    judge(journal, validator=SECOND)
    assert names(journal) == []
    judge(journal, drawn_by="0x" + "ee" * 32)
    assert names(journal) == []
    judge(journal, drawn_by="0x" + "02" * 32)
    assert names(journal) == [FORGED]


def test_a_rejection_and_a_case_hold_work_out_until_they_end(journal: LookJournal) -> None:
    commit(journal)
    judge(journal)
    open_case(journal, SECOND)
    assert names(journal) == []
    happen(journal, CaseResolved, 7, NODE, Outcome.NOT_GUILTY, 0, 3, 3)
    assert names(journal) == [FORGED]
    judge(journal, validator=SECOND, accepted=False, reason="wrong_reward")
    assert names(journal) == [FORGED], "its own case cleared it"
    open_case(journal, SECOND, 8)
    assert names(journal) == []


def test_a_refuted_rejection_takes_no_place(journal: LookJournal) -> None:
    commit(journal)
    judge(journal, accepted=False, reason="wrong_reward", position=3)
    judge(journal, validator=SECOND)
    assert names(journal) == []
    check = DueCheck(FIRST, NODE, 0, ROOT, 3, hour=5, step=STEP, kind="rejection")
    journal.add([check])
    journal.conclude(check, "refuted")
    assert journal.refuted(journal.known(5, 5)[0].work) == {FIRST}
    assert names(journal) == [], "a place that lapsed opens an hour later"


@pytest.mark.parametrize("convict", [NODE, FIRST], ids=["worker", "validator"])
def test_what_a_convict_made_or_accepted_is_not_used(journal: LookJournal, convict: str) -> None:
    commit(journal)
    judge(journal)
    happen(journal, Convicted, convict, RUN, 1, 1, NODE)
    assert names(journal) == []
    journal.record(EventBatch((), BLOCK + 5, BLOCK + 5, rewound_to=BLOCK + 4), {})
    assert names(journal) == [FORGED], "a reorg took the conviction"


def list_hour(journal: LookJournal, hour: int) -> None:
    journal.keep_list(hour, SignedText(run=RUN, kind="looks", text="{}", signature="0x" + "00" * 65), Tally({}), ())


def test_work_that_waits_longer_than_its_looks_is_still_trained_on(journal: LookJournal) -> None:
    """Hours are listed and counted while a step takes half a day, or no trainer runs."""
    journal.keep_from(STEP)
    commit(journal)
    judge(journal)
    commit(journal, 1)
    judge(journal, 1, accepted=False, validator=SECOND)
    hour = journal.first_open
    assert hour is not None
    list_hour(journal, hour)
    assert (names(journal), journal.first_open) == ([FORGED], None)
    assert journal.rejections(1 << 40) == [], "its looks are counted: they are not looked into any more"
    commit(journal, 2)
    judge(journal, 2)
    assert len(names(journal)) == 2, "read again, as of a journal that was lost"
    journal.keep_from(STEP + 1)
    list_hour(journal, hour + 1)
    assert (names(journal), journal.commitment(NODE, 0)) == ([], None)
    assert journal.rows("SELECT * FROM verdicts") == []


def test_a_reorg_reopens_a_case_and_takes_one(journal: LookJournal) -> None:
    commit(journal)
    judge(journal)
    open_case(journal, SECOND)
    happen(journal, CaseResolved, 7, NODE, Outcome.NOT_GUILTY, 0, 3, 3, block=BLOCK + 6)
    journal.record(EventBatch((), BLOCK + 6, BLOCK + 6, rewound_to=BLOCK + 5), {})
    assert names(journal) == []
    journal.record(EventBatch((), BLOCK + 5, BLOCK + 5, rewound_to=BLOCK + 4), {})
    assert names(journal) == [FORGED]


# Files


async def test_a_file_of_no_use_is_refused_once_and_stays_so_after_a_restart(tmp_path: Path) -> None:
    client, left_out = Orchestrator(), LeftOut(step=STEP, file_hash=FORGED, reason="unfit")
    with journal_in(tmp_path) as journal:
        commit(journal)
        judge(journal)
        work = accepted_work_of(client, journal)
        looked = await work.poll(0, ())
        assert (looked.fresh, looked.refused, work.files) == (0, (left_out,), [])
        assert (await work.poll(0, ())).refused == ()
    with journal_in(tmp_path) as journal:
        work = accepted_work_of(client, journal)
        assert (await work.poll(0, ())).refused == ()
        assert (work.journal.left_out(), client.fetched) == ([left_out], [FORGED])
        work.forget((), oldest_step=STEP)
        assert work.journal.left_out() == [left_out]
        work.forget((), oldest_step=STEP + 1)
        assert work.journal.left_out() == []


async def test_a_used_file_is_never_fetched_again(journal: LookJournal) -> None:
    commit(journal)
    judge(journal)
    client = Orchestrator()
    work = accepted_work_of(client, journal)
    assert (await work.poll(0, {FORGED: STEP})).refused == ()
    assert client.fetched == []


async def test_silence_is_no_refusal(journal: LookJournal) -> None:
    client = Orchestrator()
    work, client.silent = accepted_work_of(client, journal), True
    with pytest.raises(UnreachableError):
        await work.poll(0, ())
    assert work.journal.left_out() == []


async def test_a_file_that_storage_lost_is_refused_after_a_while_and_until_then_asked_for(
    journal: LookJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Demand counts it: enough of them would keep all new work away."""
    commit(journal)
    judge(journal)
    client = Orchestrator()
    work = accepted_work_of(client, journal)

    async def missing(name: str) -> bytes:
        raise NotFoundError("no such file", status=404, title="Not found")

    async def busy(name: str) -> bytes:
        raise RefusedError("later", status=503, title="Busy")

    clock = [0.0]
    monkeypatch.setattr("trainer.accepted_work.time", SimpleNamespace(monotonic=lambda: clock[0]))
    for answer, now in ((missing, 0), (missing, 299), (busy, 300), (missing, 301), (missing, 600)):
        client.get_file, clock[0] = answer, now
        assert (await work.poll(0, ())).refused == (), now
    clock[0] = 602  # not found at every look since 301
    assert (await work.poll(0, ())).refused == (LeftOut(step=STEP, file_hash=FORGED, reason="gone"),)
