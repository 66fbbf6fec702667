"""A worker's decisions and its journal: one root per index, across every interruption."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.contracts.registry import Node, Role, Status
from muster.contracts.runs import Phase, RunState, Work
from muster.errors import ConfigError, FinishedError, MusterError, StorageError
from muster.protocol.hashes import content_hash
from muster.protocol.messages import Demand
from muster.runtime.loop import AGAIN
from testbed.samples.messages import HASH, receipt_of
from worker.committer import Committer
from worker.decisions import (
    PASSING,
    STALE,
    Entry,
    NodeState,
    next_to_make,
    retired_status,
    still_counts,
    unwanted_reason,
    waiting_reason,
)
from worker.journal import WorkJournal

ZERO = "0x" + "00" * 20
HOUR = 500_000
NODE = Node(ZERO, 1, Role.WORKER, 0, Status.ACTIVE, 0, 10, 0, bytes(32))
WORK = Work(
    pay=5,
    next=7,
    settled=2,
    last_step=4,
    joined_step=1,
    last_hour=HOUR,
    count_in_hour=3,
    operator=ZERO,
    run=1,
    work_class=0,
    left=False,
    open_cases=0,
    cover=9,
)
STATE = RunState(
    balance=100,
    reserved=50,
    steps=8,
    validators=4,
    async_level=2,
    commitments_per_hour=4,
    phase=Phase.OPEN,
    sealed_through=0,
)
FACTS = NodeState(NODE, WORK, STATE, run=1, pay=5, min_validators=4, now=HOUR * 3600 + 10)
ANCHOR = b"\x05" * 32
ENTRY = Entry(7, 5, ANCHOR, b"\x01" * 32, "0x" + "ab" * 32, "saved")


def but(**changes: Any) -> NodeState:
    """FACTS with these fields of node, work or state changed."""
    parts = {"node": NODE, "work": WORK, "state": STATE}
    for name, value in changes.items():
        owner = next(part for part, of in parts.items() if hasattr(of, name) and name != "run")
        parts[owner] = replace(parts[owner], **{name: value})  # type: ignore[type-var]
    return replace(FACTS, **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "joined", "steps", "new"),
    [
        (Status.NONE, 0, 8, True),
        (Status.ACTIVE, 9, 8, True),
        (Status.ACTIVE, 8, 8, True),
        (Status.ACTIVE, 7, 8, False),
        (Status.ACTIVE, 0, 0, True),
    ],
)
def test_a_newcomer_s_engine_may_start_before_its_first_step(
    status: Status, joined: int, steps: int, new: bool
) -> None:
    facts = replace(
        FACTS,
        node=replace(NODE, status=status),
        work=replace(WORK, joined_step=joined),
        state=replace(STATE, steps=steps),
    )
    assert facts.is_new == new


def test_work_can_begin() -> None:
    assert waiting_reason(FACTS) == ""
    assert waiting_reason(replace(but(cover=5), is_withheld=True)) == ""


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (but(status=Status.NONE), "not registered yet"),
        (but(steps=1), "the newest is step 0"),
        (but(validators=3), "3 validators"),
        (but(count_in_hour=4), "all 4 commitments of this hour"),
        (but(reserved=96), "escrow"),
        (but(cover=5), "5 commitments wait for their pay, and its stake covers no more: muster worker claim"),
    ],
)
def test_reasons_to_wait(facts: NodeState, why: str) -> None:
    assert why in waiting_reason(facts)


def test_an_hour_later_there_is_room_again() -> None:
    assert waiting_reason(replace(but(count_in_hour=4), now=(HOUR + 1) * 3600)) == ""


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (but(status=Status.JAILED), 3),
        (but(status=Status.RETIRED), 0),
        (but(status=Status.WITHDRAWN), 0),
        (but(left=True), 0),
        (but(phase=Phase.CLOSED), 0),
    ],
)
def test_the_end_is_the_end(facts: NodeState, code: int) -> None:
    with pytest.raises(MusterError) as caught:
        waiting_reason(facts)
    assert caught.value.exit_code == code


def test_late_worker_gets_the_reason_it_has_no_work() -> None:
    with pytest.raises(FinishedError, match="brought a file only when it was accused"):
        waiting_reason(but(left=True))
    with pytest.raises(FinishedError, match="this worker has retired"):
        waiting_reason(but(status=Status.RETIRED, left=True))


def test_a_retired_worker_says_what_it_waits_for() -> None:
    facts = replace(but(status=Status.RETIRED, lock=5), withdrawable_at=FACTS.now + 7 * 24 * 3600)
    text, hint = retired_status(facts)
    assert text.startswith("this worker has retired, with no open case against it; its stake can be withdrawn from ")
    assert hint.startswith("start it once a day until then")
    text, hint = retired_status(replace(facts, withdrawable_at=facts.now))
    assert text == "this worker has retired, with no open case against it; its stake can be withdrawn"
    assert hint == "muster worker withdraw --operator NAME"
    for cases, words in ((1, "1 open case against it"), (2, "2 open cases against it")):
        text, _ = retired_status(replace(facts, work=replace(facts.work, open_cases=cases)))
        assert text.startswith(f"this worker has retired, with {words}; ")
    assert retired_status(but(status=Status.WITHDRAWN, lock=0))[0].endswith(
        "its stake is out: nothing is left for it to do"
    )


def test_another_role_or_run_is_a_mistake() -> None:
    for facts in (but(role=Role.VALIDATOR), replace(FACTS, run=2)):
        with pytest.raises(ConfigError, match="the settings say run"):
            waiting_reason(facts)


def test_entry_counts_only_while_its_step_is_valid() -> None:
    assert FACTS.oldest_step == 5
    assert still_counts(ENTRY, FACTS, ANCHOR)
    assert not still_counts(ENTRY, but(steps=9), ANCHOR), "beyond the async level"
    just_now = replace(but(steps=9), closes_at=FACTS.now + 1)
    assert (just_now.oldest_step, just_now.oldest_open_step) == (6, 5)
    assert still_counts(ENTRY, just_now, ANCHOR), "the step that makes it too old has just been published"
    assert not still_counts(ENTRY, replace(just_now, now=just_now.closes_at), ANCHOR), "a step interval ago"
    assert not still_counts(ENTRY, replace(but(steps=10), closes_at=FACTS.now + 1), ANCHOR), "two steps too old"
    assert not still_counts(ENTRY, but(last_step=6), ANCHOR), "a later step was committed"
    assert not still_counts(ENTRY, but(joined_step=6), ANCHOR), "before the node joined"
    assert not still_counts(ENTRY, FACTS, b"\x06" * 32), "the step was republished"
    assert not still_counts(ENTRY, FACTS, None), "the step is gone"
    assert not still_counts(ENTRY, but(next=8), ANCHOR), "committed already"
    assert but(steps=2, last_step=0).oldest_step == 1


def test_work_is_made_a_little_ahead_and_gaps_first() -> None:
    assert next_to_make(7, set()) == 7
    assert next_to_make(7, {7}) == 8
    assert next_to_make(7, {7, 8}) is None
    assert next_to_make(7, {8}) == 7, "7 was discarded"
    assert next_to_make(8, {7, 8}) == 9


def test_reverts_are_stale_or_passing() -> None:
    assert not STALE & PASSING


RECEIPT = receipt_of(node=ZERO, index=7, root="0x" + "01" * 32, file_hash=HASH, size=4, stored_at=9)


def test_the_journal_survives_and_keeps_one_root_per_index(tmp_path: Path) -> None:
    journal = WorkJournal(tmp_path, "me")
    assert journal.entry(7) is None
    saved = journal.save(7, 5, ANCHOR, b"\x01" * 32, b"file")
    assert saved == replace(ENTRY, file_hash=content_hash(b"file"))
    with pytest.raises(StorageError, match="work for index 7 already"):
        journal.save(7, 5, ANCHOR, b"\x02" * 32, b"another file")
    journal.close()

    journal = WorkJournal(tmp_path, "me")
    entry = journal.entry(7)
    assert entry == saved
    assert journal.data(saved) == b"file"
    journal.uploaded(7, RECEIPT)
    entry = journal.entry(7)
    assert entry is not None
    assert (entry.state, entry.root, journal.receipt(7)) == ("uploaded", b"\x01" * 32, RECEIPT)
    assert journal.pending(8) == [entry]
    journal.committed(7, b"\x09" * 32, 100)
    assert journal.pending(8) == []
    assert journal.receipt(7) == RECEIPT
    journal.close()


def test_discarding_forgets_row_and_file(tmp_path: Path) -> None:
    journal = WorkJournal(tmp_path, "me")
    entry = journal.save(7, 5, ANCHOR, b"\x01" * 32, b"file")
    journal.discard(entry)
    assert journal.entry(7) is None
    assert list((tmp_path / "files").iterdir()) == []
    journal.close()


def test_files_are_kept_until_their_work_is_settled(tmp_path: Path) -> None:
    journal = WorkJournal(tmp_path, "me")
    for index in range(3):
        journal.save(index, 5, ANCHOR, bytes([index]) * 32, f"file {index}".encode())
        journal.committed(index, None, None)
    assert journal.indices(1) == {1, 2}
    assert journal.prune(settled=2) == 2
    assert [path.name for path in (tmp_path / "files").iterdir()] == [content_hash(b"file 2") + ".parquet"]
    journal.close()


def test_a_damaged_file_is_noticed(tmp_path: Path) -> None:
    journal = WorkJournal(tmp_path, "me")
    entry = journal.save(7, 5, ANCHOR, b"\x01" * 32, b"file")
    journal.close()
    journal = WorkJournal(tmp_path, "me")  # after a crash, say
    (tmp_path / "files" / f"{entry.file_hash}.parquet").write_bytes(b"fil")
    with pytest.raises(StorageError, match="damaged"):
        journal.data(entry)
    journal.close()


async def test_lost_file_is_discarded_and_not_committed(tmp_path: Path) -> None:
    """A commitment without an uploaded file has no receipt, so a case about missing data would convict its node."""
    journal, sent = WorkJournal(tmp_path, "me"), []

    async def facts() -> NodeState:
        return FACTS

    async def anchor(*_: object) -> bytes:
        return ANCHOR

    async def await_pending() -> None: ...

    async def call(_: object) -> Work:
        return WORK

    async def send(action: object) -> SimpleNamespace:
        sent.append(action)
        return SimpleNamespace(hash=bytes(32), block=100, gas_used=1)

    async def head() -> SimpleNamespace:
        return SimpleNamespace(timestamp=FACTS.now)

    chain = SimpleNamespace(await_pending=await_pending, call=call, send=send, head=head)
    context: Any = SimpleNamespace(
        facts=facts, anchor=anchor, chain=chain, journal=journal, node=ZERO, run=1, delivered=asyncio.Event()
    )
    entry = journal.save(7, 5, ANCHOR, b"\x01" * 32, b"file")
    (tmp_path / "files" / f"{entry.file_hash}.parquet").unlink()
    assert await Committer(context, None).poll() is AGAIN  # type: ignore[arg-type]
    assert (sent, journal.entry(7)) == ([], None)
    assert context.delivered.is_set()
    journal.close()


def test_a_journal_belongs_to_one_node(tmp_path: Path) -> None:
    WorkJournal(tmp_path, "me").close()
    with pytest.raises(ConfigError, match="is the journal of me, not of you"):
        WorkJournal(tmp_path, "you")


@pytest.mark.parametrize(
    ("index", "wanted", "waiting", "reason"),
    [
        (0, True, 0, ""),
        (1, True, 3, ""),
        (0, False, 24, ""),
        (0, False, 0, "no more work is wanted now: 0 groups wait for the trainer"),
        (1, False, 24, "no more work is wanted now: 24 groups wait for the trainer"),
    ],
)
def test_only_a_first_work_is_made_beyond_the_demand(index: int, wanted: bool, waiting: int, reason: str) -> None:
    demand = Demand(run=1, step=5, wanted=wanted, waiting_groups=waiting)
    assert unwanted_reason(index, demand) == reason
