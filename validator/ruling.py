"""What a validator does next about a case: a pure function each for the challenger and the juror.

The challenger asks whether an open case against a node makes its own case needless. The juror asks for its next
step on the way from the evidence to the revealed vote. Neither network nor clock is read here: a `CaseSnapshot` holds
what the answer depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from muster.contracts.court import BallotState
from muster.protocol.hashes import keccak
from muster.protocol.kinds import kind_of
from validator.records import Ballot, CaseRecord

RETRY_SECONDS: Final = 30.0
"""Pause after a failure that money or time may mend."""

MAX_LOST_CASES: Final = 3
"""Cases that may end not guilty before this validator stops accusing: its own machine is suspect. A cured one
does not count: the file was missing."""


class Action(Enum):
    """What to do next about a case."""

    WAIT = auto()
    VERIFY = auto()
    """Verify the evidence, then ask again or vote."""
    OPEN = auto()
    """Open another case: this one does not make it needless."""
    COMMIT = auto()
    REVEAL = auto()


@dataclass(frozen=True)
class CaseSnapshot:
    """An open case as this validator sees it at one moment."""

    record: CaseRecord
    now: int
    """Second of the chain."""
    mine: bool = False
    """This validator opened it."""

    # For the challenger

    same_charge: bool = False
    """It is about the commitment, and of the kind, of the accusation."""
    tried: bool = False
    """The juror has tried to verify the evidence, and could not."""
    opinion: bool | None = None
    """Whether the evidence shows guilt to this validator, where it has no vote; None: not verified yet."""

    # For the juror

    paused: bool = False
    """An attempt has just failed; another one is not due yet."""
    judge: bool = False
    """This validator is on the jury."""
    ballot: BallotState = BallotState.NONE
    """Its ballot on chain."""
    commits: int = 0
    """Votes committed so far, of all judges."""
    cure_seconds: int = 0
    """Until so many seconds before the end of the commit phase, missing data may still be shown."""


def challenger_ruling(case: CaseSnapshot) -> Action:
    """Return what a challenger does next about an open case.

    It waits for a case of this validator's own, or one in which it finds the node guilty, and opens one
    beside any other.

    An accomplice could open case after case on evidence that no juror can get, until it is too late to accuse. A second
    case beside a good one costs little: once the node is convicted it is moot, and its fee
    comes back.
    """
    record = case.record
    if case.now >= record.reveal_ends + RETRY_SECONDS:
        return Action.OPEN  # a reorg took it, or no transaction ends it
    if record.kind == kind_of("data_missing") and not case.same_charge:
        return Action.OPEN  # it may end as soon as the data is shown, whatever else the node did
    if case.mine:
        return Action.WAIT
    if record.guilty is not None:
        return Action.WAIT if record.guilty else Action.OPEN
    if record.ballot == "none" and record.kind != kind_of("data_missing"):
        return Action.OPEN if case.tried else Action.WAIT  # the next poll begins with verifying it
    if case.opinion is None:
        return Action.VERIFY
    return Action.WAIT if case.opinion else Action.OPEN


def juror_ruling(case: CaseSnapshot) -> Action | Ballot:
    """Return what a juror does next: verify, commit, reveal, each once, in its phase, and not in a failure's pause.

    A ballot: nothing is sent, the journal notes how far this validator is with the case.
    """
    record = case.record
    if record.ballot == "none":
        if case.mine or not case.judge:
            return "no judge"
        if case.now >= record.commit_ends:
            return "late"
        curable = record.kind == kind_of("data_missing") and case.now < record.commit_ends - case.cure_seconds
        return Action.WAIT if curable or case.paused else Action.VERIFY
    if record.ballot == "sealed":
        if case.ballot != BallotState.NONE:
            return "committed"
        if case.now >= record.commit_ends:
            return "late"
        return Action.WAIT if case.paused else Action.COMMIT
    if record.ballot == "committed":
        if case.now >= record.reveal_ends:
            return "late"
        if case.ballot == BallotState.NONE:
            return "sealed"  # a reorg took the vote back: it is to be committed again
        all_committed = record.kind != kind_of("data_missing") and case.commits >= record.jury
        if case.now < record.commit_ends and not all_committed:
            return Action.WAIT
        return Action.REVEAL if case.ballot == BallotState.COMMITTED else "revealed"
    if record.ballot == "revealed" and case.ballot in (BallotState.NONE, BallotState.COMMITTED):
        return "committed"
    return Action.WAIT


def turn_of(me: str, validators: Sequence[str], matter: str) -> int:
    """Return this validator's place, from 0, in the order in which validators take turns in a matter."""
    order = sorted({*validators, me}, key=lambda address: keccak(f"{matter} {address}".encode()))
    return order.index(me)
