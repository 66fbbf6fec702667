"""The validator's journal: it writes promises to disk first, and uses no entry twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.chain.client import charge_of
from muster.contracts.court import CaseResolved, Outcome
from muster.contracts.registry import Convicted
from muster.errors import ConfigError
from muster.protocol.kinds import kind_of
from muster.protocol.looks import link_due_at
from muster.verification.pools import PooledRow, Unit
from muster.verification.rules import CommittedWork
from muster.verification.statistics import RowSums
from testbed.samples.validator import (
    ME,
    NODE,
    OTHER,
    ROOT,
    opened,
    pending,
    place,
    receive,
    reject,
    verdict,
    work,
)
from validator.journal import ValidatorJournal
from validator.outbox import closing_hour


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ValidatorJournal]:
    made = ValidatorJournal(tmp_path, "me", 1, ME)
    yield made
    made.close()


def test_a_journal_belongs_to_one_validator(tmp_path: Path) -> None:
    ValidatorJournal(tmp_path, "me", 1, ME).close()
    with pytest.raises(ConfigError, match="is the journal of me, not of you"):
        ValidatorJournal(tmp_path, "you", 1, OTHER)


# Commitments


def test_commitments_wait_until_they_are_judged(journal: ValidatorJournal) -> None:
    receive(journal, work(0), work(1, step=2), work(2, block=50))
    receive(journal, work(0), work(1, step=2))
    assert [c.index for c in pending(journal, before=50)] == [1, 0], "newest step first, known blocks only"
    first = pending(journal, before=50)[0]
    journal.judge(first, verdict(first), None, accuse_at=None)
    assert {c.index for c in pending(journal)} == {0, 2}
    assert journal.backlog() == 2
    journal.postpone(pending(journal)[0], 3000.0)
    assert journal.backlog() == 2
    assert len(pending(journal)) == 1


def test_a_pool_has_whole_steps_that_another_one_follows(journal: ValidatorJournal) -> None:
    """Three commitments a step. One that the journal does not have, or that a reorg took, leaves its step out."""
    works = [work(index, step=index // 3, block=10 + index) for index in range(13)]
    receive(journal, *(one for index, one in enumerate(works) if index != 7))
    about = next(c for c in pending(journal) if c.index == 5)

    def ends() -> list[tuple[int | None, int, int, int]]:
        return [
            (one.before.index if one.before else None, one.first.index, one.last.index, one.closing.index)
            for one in journal.pools.steps_around(about)
        ]

    assert ends() == [(None, 0, 2, 3)], "the third step has a gap, so nothing is known to follow the second"
    receive(journal, works[7])
    assert ends() == [(None, 0, 2, 3), (2, 3, 5, 6), (5, 6, 8, 9), (8, 9, 11, 12)]
    receive(journal, rewound_to=18)
    assert ends() == [(None, 0, 2, 3), (2, 3, 5, 6)]


def test_draws_that_a_reorg_may_change_are_forgotten(journal: ValidatorJournal) -> None:
    """Rows depend on the block after their commitment, a unit on the block after its last commitment."""
    works = [work(index, step=index, block=10 + index) for index in range(4)]
    receive(journal, *works)
    for c in pending(journal):
        journal.pools.keep(c, [PooledRow(bytes([c.index]), RowSums(5, 0.5, 0.25, 2.0, -1.0))])
    steps = journal.pools.steps_around(pending(journal)[0])
    for one in steps:
        [row] = journal.pools.rows_by_step(NODE, one.first.step, one.first.step)[one.first.step]
        journal.pools.keep_unit(one, Unit(one.first.step, one.first.index, one.last.index, (row,)))
    assert {step: [row.key[0] for row in rows] for step, rows in journal.pools.rows_by_step(NODE, 1, 2).items()} == {
        1: [1],
        2: [2],
    }
    receive(journal, rewound_to=12)
    assert list(journal.pools.rows_by_step(NODE, 0, 3)) == [0, 1]
    assert [journal.pools.unit(one) is not None for one in steps] == [True, False, False]


def test_a_reorg_takes_commitments_back_and_may_return_them(journal: ValidatorJournal) -> None:
    receive(journal, work(0, block=10), work(1, block=20, hour=5))
    receive(journal, rewound_to=15)
    assert [c.index for c in pending(journal)] == [0]
    receive(journal, work(1, block=21, root=b"\x02" * 32))
    assert {(c.index, c.root) for c in pending(journal)} == {(0, ROOT), (1, b"\x02" * 32)}
    receive(journal, work(1, block=22, hour=6))
    back = next(c for c in pending(journal) if (c.index, c.root) == (1, ROOT))
    assert (back.block, back.hour) == (22, 6), "its sample is drawn by the link of that hour"


def test_what_a_lost_block_drew_is_looked_at_again(journal: ValidatorJournal) -> None:
    """The block after a commitment draws rows and calls. Work that is accused stays so: its evidence holds."""
    receive(journal, *(work(index, block=10 + index) for index in range(4)), work(4, block=14), work(5, block=14))
    for c in pending(journal):
        if c.index == 4:
            journal.pass_over(c)
        elif c.index == 5:
            reject(journal, c, accuse_at=0.0)
        else:
            journal.judge(c, verdict(c), None, accuse_at=None)
            journal.verdicts.sent(c)
    assert (pending(journal), len(journal.vouched(5))) == ([], 4)
    receive(journal, rewound_to=13)
    assert [c.index for c in pending(journal)] == [3], "its own block is still there"
    receive(journal, work(4, block=14), work(5, block=14))
    assert {c.index for c in pending(journal)} == {3, 4}
    assert [c.index for c in journal.vouched(5)] == [0, 1, 2]
    [again] = [c for c in pending(journal) if c.index == 3]
    journal.judge(again, verdict(again, drawn_by="0x" + "07" * 32), None, accuse_at=None)
    [item] = [one for one in journal.verdicts.due(2000.0, 9) if one.commitment.index == 3]
    assert item.document.drawn_by == "0x" + "07" * 32, "it is reported anew"


def test_work_of_the_convicted_is_not_inspected(journal: ValidatorJournal) -> None:
    receive(journal, work(0), work(0, node=OTHER), Convicted(place(30), NODE, 1, 5, 1, ME))
    assert [c.node for c in pending(journal)] == [OTHER]


# Verdicts and accusations


def send(journal: ValidatorJournal, c: CommittedWork, accuse_at: float = 0.0) -> None:
    """Reject a commitment, and report that."""
    reject(journal, c, accuse_at)
    journal.verdicts.sent(c)


def test_verdicts_are_reported_until_they_are_taken(journal: ValidatorJournal) -> None:
    receive(journal, work(0))
    (c,) = pending(journal)
    made = reject(journal, c, accuse_at=None)
    (item,) = journal.verdicts.due(2000.0, 10)
    assert (item.document, journal.evidence(c), item.refusals) == (made, b"bundle", 0)
    journal.verdicts.refused(c, retry_at=2500.0)
    assert journal.verdicts.due(2000.0, 10) == []
    assert journal.verdicts.due(2500.0, 10)[0].refusals == 1
    journal.verdicts.sent(c)
    assert journal.verdicts.due(9000.0, 10) == []
    assert journal.accusations(9000.0) == []


def test_reorged_commitment_is_not_reported(journal: ValidatorJournal) -> None:
    receive(journal, work(0, block=20))
    reject(journal, pending(journal)[0], accuse_at=None)
    receive(journal, rewound_to=15)
    assert journal.verdicts.due(9000.0, 10) == []
    receive(journal, work(0, block=21))
    assert len(journal.verdicts.due(9000.0, 10)) == 1


@pytest.mark.parametrize("challenger", [ME, OTHER])
def test_a_rejection_that_accuses_waits_for_a_case(journal: ValidatorJournal, challenger: str) -> None:
    receive(journal, work(0), work(1, node=OTHER))
    for c in pending(journal):
        reject(journal, c, accuse_at=3000.0)
    assert journal.verdicts.due(2000.0, 9, closing=4) == [], "who reads it could open the case first"
    assert journal.verdicts.unsent(5) == 2
    receive(journal, opened(1, challenger=challenger, index=7))
    assert [one.commitment.node for one in journal.verdicts.due(2000.0, 9, closing=4)] == [NODE]
    receive(journal, CaseResolved(place(40), 1, NODE, Outcome.NOT_GUILTY, 1, 2, 3))
    assert journal.verdicts.due(2000.0, 9, closing=4) == []
    assert len(journal.verdicts.due(2000.0, 9, closing=5)) == 2, "the link of their hour is nearly due"


@pytest.mark.parametrize("why", ["opened", "withdrawn", "moot"])
def test_a_rejection_is_reported_once_its_accusation_is_closed(journal: ValidatorJournal, why: str) -> None:
    receive(journal, work(0))
    reject(journal, pending(journal)[0], accuse_at=0.0)
    journal.close_accusation(journal.accusations(1.0)[0], why)
    assert len(journal.verdicts.due(2000.0, 9, closing=4)) == 1


def test_a_link_closes_its_hour_a_quarter_before_it_is_due() -> None:
    due = link_due_at(5)
    assert due == 8 * 3600
    assert [closing_hour(now) for now in (due - 901, due - 900, due, due + 2700)] == [4, 5, 5, 6]


def test_an_accusation_waits_for_its_turn(journal: ValidatorJournal) -> None:
    receive(journal, work(0))
    (c,) = pending(journal)
    made = reject(journal, c, accuse_at=3000.0)
    assert journal.accusations(2999.0) == []
    (accusation,) = journal.accusations(3000.0)
    assert (accusation.kind, accusation.verdict, accusation.evidence) == (
        kind_of("sampling_mismatch"),
        made,
        b"bundle",
    )
    assert (accusation.commitment.node, accusation.position) == (NODE, 3)
    journal.delay_accusations(NODE, 5000.0)
    assert journal.accusations(4000.0) == []
    receive(journal, opened(1, challenger=ME))
    assert journal.accusations(9000.0) == [], "a crash after opening does not open twice"


def test_case_about_a_pool_names_no_row(journal: ValidatorJournal) -> None:
    receive(journal, work(0))
    (c,) = pending(journal)
    pooled = verdict(c, accepted=False, reason="sampling_mismatch", evidence="0x" + "09" * 32)
    journal.judge(c, pooled, b"bundle", accuse_at=1000.0)
    journal.verdicts.sent(c)
    assert [case.position for case in journal.accusations(1000.0)] == [2**32 - 1]


def test_a_case_without_a_quorum_is_opened_once_more(journal: ValidatorJournal) -> None:
    receive(journal, work(0))
    send(journal, pending(journal)[0])
    for number in (1, 2):
        assert len(journal.accusations(9000.0)) == 1
        receive(journal, opened(number, challenger=ME))
        receive(journal, CaseResolved(place(40), number, NODE, Outcome.NO_QUORUM, 0, 0, 3))
        receive(journal, opened(number, challenger=ME))  # again, as a cursor may
        receive(journal, CaseResolved(place(40), number, NODE, Outcome.NO_QUORUM, 0, 0, 3))
    assert journal.accusations(9000.0) == []


def test_a_case_that_ended_not_guilty_is_not_opened_again(journal: ValidatorJournal) -> None:
    receive(journal, work(0))
    send(journal, pending(journal)[0])
    receive(journal, opened(1, challenger=ME), CaseResolved(place(40), 1, NODE, Outcome.NOT_GUILTY, 1, 2, 3))
    assert journal.accusations(9000.0) == []


def missing(journal: ValidatorJournal) -> None:
    """Judge commitment 0 to have no file."""
    c = pending(journal)[0]
    made = verdict(c, accepted=False, reason="data_missing", evidence="0x" + "09" * 32)
    journal.judge(c, made, b"bundle", accuse_at=0.0)
    journal.verdicts.sent(c)


@pytest.mark.parametrize("outcome", [Outcome.CURED, Outcome.DISMISSED])
@pytest.mark.parametrize("challenger", [ME, OTHER])
def test_a_file_that_came_late_is_inspected_again(journal: ValidatorJournal, outcome: Outcome, challenger: str) -> None:
    receive(journal, work(0), work(1))
    missing(journal)
    about = opened(1, challenger=challenger, kind=kind_of("data_missing"))
    receive(journal, about, CaseResolved(place(40), 1, NODE, outcome, 0, 2, 3))
    other, again = sorted(pending(journal), key=lambda c: -c.index)
    assert (other.index, again.index) == (1, 0)
    reject(journal, again, accuse_at=None)
    assert [c.index for c in pending(journal)] == [1]
    assert [one.document.reason for one in journal.verdicts.due(2000.0, 9)] == ["sampling_mismatch"]


def test_commitment_not_missing_or_void_is_not_inspected_again(journal: ValidatorJournal) -> None:
    receive(journal, work(0))
    missing(journal)
    receive(journal, opened(1), CaseResolved(place(40), 1, NODE, Outcome.CURED, 0, 2, 3))
    assert pending(journal) == [], "the case was about something else"
    receive(journal, opened(2, kind=kind_of("data_missing")), CaseResolved(place(40), 2, NODE, Outcome.GUILTY, 2, 2, 3))
    assert pending(journal) == []


def test_a_missing_file_that_no_quorum_judged_is_taken_to_court_again_first(journal: ValidatorJournal) -> None:
    receive(journal, work(0))
    missing(journal)
    for number, waiting in ((1, 0), (2, 1)):
        receive(journal, opened(number, challenger=ME, kind=kind_of("data_missing")))
        receive(journal, CaseResolved(place(40), number, NODE, Outcome.NO_QUORUM, 0, 0, 3))
        assert len(pending(journal)) == waiting


def test_anothers_case_does_not_end_an_accusation_but_a_conviction_does(journal: ValidatorJournal) -> None:
    receive(journal, work(0))
    send(journal, pending(journal)[0])
    receive(journal, opened(1))
    assert len(journal.accusations(9000.0)) == 1
    receive(journal, Convicted(place(30), NODE, 1, 5, 1, OTHER))
    assert journal.accusations(9000.0) == []


def test_a_node_is_accused_of_one_thing_at_a_time(journal: ValidatorJournal) -> None:
    receive(journal, work(0), work(1), work(0, node=OTHER))
    for number, c in enumerate(pending(journal)):
        send(journal, c, float(number))
    found = {accusation.commitment.node: accusation for accusation in journal.accusations(9000.0)}
    assert set(found) == {NODE, OTHER}
    journal.close_accusation(found[NODE], "opened")
    assert len(journal.accusations(9000.0)) == 2, "there is another one against the same node"


def test_work_of_nodes_that_were_rejected_comes_last(journal: ValidatorJournal) -> None:
    receive(journal, work(0), work(1, step=9), work(0, node=OTHER, step=1))
    reject(journal, pending(journal)[0], accuse_at=None)
    assert [(c.node, c.index) for c in pending(journal)] == [(OTHER, 0), (NODE, 0)]


# Cases


def test_a_ballot_is_remembered_over_a_crash(tmp_path: Path) -> None:
    journal = ValidatorJournal(tmp_path, "me", 1, ME)
    receive(journal, work(0), opened(1))
    assert [(case.case_id, case.ballot, case.salt) for case in journal.cases()] == [(1, "none", None)]
    journal.seal_ballot(journal.cases()[0], True, b"\x05" * 32)
    journal.close()
    journal = ValidatorJournal(tmp_path, "me", 1, ME)
    (case,) = journal.cases()
    assert (case.ballot, case.guilty, case.salt) == ("sealed", True, b"\x05" * 32)
    receive(journal, opened(1))
    assert journal.cases()[0].salt == b"\x05" * 32, "the same event again forgets nothing"
    journal.set_ballot(journal.cases()[0], "revealed")
    receive(journal, CaseResolved(place(40), 1, NODE, Outcome.NOT_GUILTY, 1, 2, 3))
    assert [case.outcome for case in journal.cases()] == [Outcome.NOT_GUILTY], "there is something to collect"
    journal.set_ballot(journal.cases()[0], "done")
    assert journal.cases() == []
    journal.close()


def test_ended_cases_are_counted(journal: ValidatorJournal) -> None:
    for number, (challenger, outcome) in enumerate(
        [
            (ME, Outcome.NOT_GUILTY),
            (ME, Outcome.NO_QUORUM),
            (ME, Outcome.GUILTY),
            (ME, Outcome.MOOT),
            (OTHER, Outcome.NOT_GUILTY),
        ]
    ):
        receive(journal, opened(number, challenger=challenger), CaseResolved(place(40), number, NODE, outcome, 0, 0, 3))
    assert journal.cases_ended(Outcome.NOT_GUILTY) == 1
    assert journal.cases_ended(Outcome.NO_QUORUM) == 1


def test_a_reorg_forgets_cases_in_which_nothing_was_done(journal: ValidatorJournal) -> None:
    receive(journal, opened(1, block=20), opened(2, block=21))
    journal.seal_ballot(journal.cases()[0], True, b"\x05" * 32)
    receive(journal, rewound_to=15)
    assert [case.case_id for case in journal.cases()] == [1]


def test_accusation_whose_case_or_conviction_a_reorg_drops_is_brought_again(journal: ValidatorJournal) -> None:
    receive(journal, work(0), work(1), work(0, node=OTHER))
    for c in pending(journal):
        send(journal, c)
    kept = next(case for case in journal.accusations(2000.0) if case.commitment.node == OTHER)
    receive(journal, opened(1, challenger=ME, block=20), opened(2, challenger=ME, block=12, node=OTHER))
    journal.close_accusation(kept, "opened")
    receive(journal, Convicted(place(21), NODE, 1, 5, 1, ME))
    assert journal.accusations(2000.0) == []
    receive(journal, rewound_to=15)
    assert [(case.commitment.node, case.commitment.index) for case in journal.accusations(2000.0)] == [(NODE, 0)]
    receive(journal, opened(1, challenger=ME, block=22))
    assert [(case.commitment.node, case.commitment.index) for case in journal.accusations(2000.0)] == [(NODE, 1)], (
        "moot for as long as its node is convicted, which the challenger asks the chain"
    )


OTHER_CONTENTS = [
    {"node": OTHER},
    {"index": 1},
    {"step": 1},
    {"root": b"\x02" * 32},
    {"kind": kind_of("data_missing")},
    {"position": 4},
    {"evidence_hash": b"\x08" * 32},
]


@pytest.mark.parametrize("change", OTHER_CONTENTS, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("announced", [True, False])
def test_a_number_that_names_another_case_has_no_vote_yet(
    journal: ValidatorJournal, change: dict[str, Any], announced: bool
) -> None:
    receive(journal, opened(1))
    (before,) = journal.cases()
    journal.seal_ballot(before, True, b"\x05" * 32)
    receive(journal, opened(1, block=21, **change), rewound_to=15 if announced else None)
    (after,) = journal.cases()
    assert (after.ballot, after.guilty, after.salt) == ("none", None, None)
    assert after.charge == charge_of(opened(1, **change)) != before.charge
    journal.set_ballot(before, "committed")
    assert journal.cases()[0].ballot == "none", "what was meant for the other case does not count"
    journal.seal_ballot(after, False, b"\x06" * 32)
    assert [(c.guilty, c.salt) for c in journal.cases()] == [(False, b"\x06" * 32)]
    receive(journal, opened(1, block=22), rewound_to=15)
    assert [(c.ballot, c.guilty, c.salt) for c in journal.cases()] == [("sealed", True, b"\x05" * 32)], (
        "its vote may be on chain, and only the salt opens it"
    )


def test_the_same_case_opened_again_keeps_its_vote_and_takes_over_its_times(journal: ValidatorJournal) -> None:
    receive(journal, opened(1))
    journal.seal_ballot(journal.cases()[0], True, b"\x05" * 32)
    journal.set_ballot(journal.cases()[0], "committed")
    receive(journal, opened(1, block=22, commit_ends=107, reveal_ends=207, jury=4, challenger=ME), rewound_to=15)
    (case,) = journal.cases()
    assert (case.ballot, case.guilty, case.salt) == ("committed", True, b"\x05" * 32)
    assert (case.commit_ends, case.reveal_ends, case.jury, case.challenger) == (107, 207, 4, ME)


def test_ballot_resets_when_a_case_moves_to_another_block(journal: ValidatorJournal) -> None:
    receive(journal, opened(1, challenger=ME))
    journal.set_ballot(journal.cases()[0], "no judge")
    receive(journal, opened(1, challenger=ME))
    assert journal.cases()[0].ballot == "no judge", "the same event again"
    receive(journal, opened(1, block=22), rewound_to=15)
    assert journal.cases()[0].ballot == "none", "somebody else opened it first this time"
    journal.seal_ballot(journal.cases()[0], True, b"\x05" * 32)
    journal.set_ballot(journal.cases()[0], "late")
    receive(journal, opened(1, block=23, commit_ends=900), rewound_to=15)
    assert [(c.ballot, c.salt) for c in journal.cases()] == [("sealed", b"\x05" * 32)], "not late any more"


# Sealing


def test_an_hour_is_sealed_that_has_a_verdict_or_work_that_waits(journal: ValidatorJournal) -> None:
    receive(journal, *(work(index, hour=hour) for index, hour in enumerate((5, 6, 7, 9))))
    for c in pending(journal):
        if c.index == 0:
            journal.judge(c, verdict(c), None, accuse_at=None)
        elif c.index == 1:
            journal.pass_over(c)
    assert [journal.open_hour(after=after, before=9) for after in (0, 5, 7)] == [5, 7, None], "hour 9 has not ended"
    assert [(journal.count(hour, "judged"), journal.count(hour, "pending")) for hour in (5, 6, 7)] == [
        (1, 0),
        (0, 0),
        (0, 1),
    ]
    reject(journal, pending(journal)[-1], accuse_at=None)
    assert [c.index for c in journal.vouched(5)] == [0]
    assert journal.vouched(7) == []
    journal.first_hour = 6
    assert journal.open_hour(after=0, before=8) == 7, "of earlier ones this validator has no links"


def test_reorged_commitment_is_not_vouched_for_again(journal: ValidatorJournal) -> None:
    receive(journal, work(0, hour=5), work(1, hour=5))
    for c in pending(journal):
        journal.judge(c, verdict(c), None, accuse_at=None)
    assert len(journal.vouched(5)) == 2
    receive(journal, work(0, hour=5), rewound_to=0)
    assert journal.vouched(5) == [], "its draws are others now"
    assert journal.count(5, "pending") == 1
