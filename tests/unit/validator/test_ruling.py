"""The next action on a case, for each of its states and both questions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.contracts.court import BallotState, Outcome
from muster.protocol.kinds import kind_of
from muster.verification.rules import CommittedWork
from testbed.samples.validator import ME, NODE, OTHER, ROOT
from validator.records import Ballot, CaseRecord
from validator.ruling import RETRY_SECONDS, Action, CaseSnapshot, challenger_ruling, juror_ruling, turn_of

RECORD = CaseRecord(
    case_id=1,
    charge=bytes(32),
    commitment=CommittedWork(1, 0, NODE, 0, ROOT, hour=0, block=20),
    kind=kind_of("wrong_reward"),
    challenger=OTHER,
    evidence=bytes(32),
    jury=3,
    commit_ends=100,
    reveal_ends=200,
    block=7,
    outcome=Outcome.OPEN,
    ballot="none",
    guilty=None,
    salt=None,
)
MISSING: dict[str, Any] = {"kind": kind_of("data_missing")}
SEALED: dict[str, Any] = {"ballot": "sealed", "guilty": True, "salt": bytes(32)}
INNOCENT: dict[str, Any] = SEALED | {"guilty": False}
COMMITTED: dict[str, Any] = SEALED | {"ballot": "committed"}
REVEALED: dict[str, Any] = SEALED | {"ballot": "revealed"}
ON_CHAIN: dict[str, Any] = {"ballot": BallotState.COMMITTED}


@pytest.mark.parametrize(
    ("record", "state", "expected"),
    [
        # A vote is decided by evidence, in time, by a judge.
        ({}, {}, "no judge"),
        ({}, {"judge": True, "mine": True}, "no judge"),
        ({}, {"judge": True}, Action.VERIFY),
        ({}, {"judge": True, "now": 99}, Action.VERIFY),
        ({}, {"judge": True, "now": 100}, "late"),
        ({}, {"judge": True, "paused": True}, Action.WAIT),
        ({}, {"judge": True, "paused": True, "now": 100}, "late"),
        # Missing data can be shown until the last part of the commit phase.
        (MISSING, {"judge": True, "cure_seconds": 25, "now": 74}, Action.WAIT),
        (MISSING, {"judge": True, "cure_seconds": 25, "now": 75}, Action.VERIFY),
        (MISSING, {"judge": True, "cure_seconds": 25, "now": 75, "paused": True}, Action.WAIT),
        (MISSING, {"judge": True, "cure_seconds": 25, "now": 100}, "late"),
        (MISSING, {"cure_seconds": 25, "now": 74}, "no judge"),
        # A sealed vote is committed once, in time.
        (SEALED, {}, Action.COMMIT),
        (INNOCENT, {}, Action.COMMIT),
        (SEALED, {"paused": True}, Action.WAIT),
        (SEALED, {"now": 99}, Action.COMMIT),
        (SEALED, {"now": 100}, "late"),
        (SEALED, {"now": 100, "paused": True}, "late"),
        (SEALED, ON_CHAIN, "committed"),
        (SEALED, ON_CHAIN | {"now": 100}, "committed"),
        (SEALED, {"ballot": BallotState.VOTED_GUILTY}, "committed"),
        # A committed vote is revealed once, after the commit phase or when all have voted.
        (COMMITTED, ON_CHAIN, Action.WAIT),
        (COMMITTED, ON_CHAIN | {"commits": 2}, Action.WAIT),
        (COMMITTED, ON_CHAIN | {"commits": 3}, Action.REVEAL),
        (COMMITTED, ON_CHAIN | {"commits": 3, "paused": True}, Action.REVEAL),
        (COMMITTED | MISSING, ON_CHAIN | {"commits": 3}, Action.WAIT),
        (COMMITTED | MISSING, ON_CHAIN | {"now": 100}, Action.REVEAL),
        (COMMITTED, ON_CHAIN | {"now": 100}, Action.REVEAL),
        (COMMITTED, ON_CHAIN | {"now": 199}, Action.REVEAL),
        (COMMITTED, ON_CHAIN | {"now": 200}, "late"),
        (COMMITTED, {}, "sealed"),
        (COMMITTED, {"now": 100}, "sealed"),
        (COMMITTED, {"now": 200}, "late"),
        (COMMITTED, {"now": 100, "ballot": BallotState.VOTED_GUILTY}, "revealed"),
        (COMMITTED, {"now": 100, "ballot": BallotState.VOTED_NOT_GUILTY}, "revealed"),
        # What a reorg took back is revealed again.
        (REVEALED, ON_CHAIN, "committed"),
        (REVEALED, {}, "committed"),
        # Nothing is left to vote.
        *[({"ballot": ballot}, {"judge": True}, Action.WAIT) for ballot in ("done", "no judge", "late")],
        (REVEALED, {"ballot": BallotState.VOTED_GUILTY}, Action.WAIT),
        (REVEALED, {"ballot": BallotState.VOTED_NOT_GUILTY, "now": 200}, Action.WAIT),
    ],
)
def test_the_next_step_of_a_juror(record: dict[str, Any], state: dict[str, Any], expected: Action | Ballot) -> None:
    assert juror_ruling(CaseSnapshot(**({"record": replace(RECORD, **record), "now": 0} | state))) == expected


@pytest.mark.parametrize(
    ("record", "state", "expected"),
    [
        # A case of one's own, or in which one votes guilty, makes another needless.
        ({}, {"mine": True}, Action.WAIT),
        *[(vote, {}, Action.WAIT) for vote in (SEALED, COMMITTED, SEALED | {"ballot": "revealed"})],
        (INNOCENT, {}, Action.OPEN),
        (INNOCENT | {"ballot": "revealed"}, {}, Action.OPEN),
        (SEALED, {"opinion": False}, Action.WAIT),
        # The juror first verifies the evidence of a case it may vote on. Unverifiable evidence blocks no new case.
        ({}, {}, Action.WAIT),
        ({}, {"opinion": True}, Action.WAIT),
        ({}, {"tried": True}, Action.OPEN),
        ({}, {"tried": True, "opinion": True}, Action.OPEN),
        # A validator without a vote still verifies the evidence.
        *[({"ballot": ballot}, {}, Action.VERIFY) for ballot in ("no judge", "late")],
        *[({"ballot": ballot}, {"tried": True}, Action.VERIFY) for ballot in ("no judge", "late")],
        *[({"ballot": ballot}, {"opinion": True}, Action.WAIT) for ballot in ("no judge", "late")],
        *[({"ballot": ballot}, {"opinion": False}, Action.OPEN) for ballot in ("no judge", "late")],
        # Missing data may be shown at any time: such a case makes only one about the same needless.
        (MISSING, {}, Action.OPEN),
        (MISSING, {"mine": True}, Action.OPEN),
        (MISSING | SEALED, {}, Action.OPEN),
        (MISSING, {"opinion": True}, Action.OPEN),
        (MISSING, {"same_charge": True}, Action.VERIFY),
        (MISSING, {"same_charge": True, "tried": True}, Action.VERIFY),
        (MISSING, {"same_charge": True, "opinion": True}, Action.WAIT),
        (MISSING, {"same_charge": True, "opinion": False}, Action.OPEN),
        (MISSING, {"same_charge": True, "mine": True}, Action.WAIT),
        (MISSING | SEALED, {"same_charge": True}, Action.WAIT),
        # An overdue case was removed by a reorg, or is never resolved.
        ({}, {"mine": True, "now": 200 + RETRY_SECONDS - 1}, Action.WAIT),
        ({}, {"mine": True, "now": 200 + RETRY_SECONDS}, Action.OPEN),
        (SEALED, {"now": 200 + RETRY_SECONDS}, Action.OPEN),
        ({"ballot": "no judge"}, {"now": 200 + RETRY_SECONDS}, Action.OPEN),
    ],
)
def test_whether_a_challenger_opens_a_case_beside_it(
    record: dict[str, Any], state: dict[str, Any], expected: Action
) -> None:
    assert challenger_ruling(CaseSnapshot(**({"record": replace(RECORD, **record), "now": 0} | state))) == expected


def test_validators_take_turns_in_an_order_of_the_matter() -> None:
    validators = [ME, NODE, OTHER]
    for matter in ("accuse a", "accuse b", "resolve 1"):
        assert sorted(turn_of(me, validators, matter) for me in validators) == [0, 1, 2]
    assert len({turn_of(ME, validators, f"matter {number}") for number in range(30)}) == 3
    assert turn_of(ME, [], "alone") == 0
