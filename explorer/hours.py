"""Compute what became of a worker's pay, hour by hour, as the chain does. Pure.

Every commitment of a node pays the same, indices rise with the hours, and a claim settles all up to an index
(`Runs.claim`). So three numbers say what was paid: how many commitments there are, below which index they are settled,
and how many of those were voided, which are the last ones: who loses unsettled pay commits no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from muster.constants import HOUR_SECONDS
from muster.ledger.read_model import Counts
from muster.protocol.messages import Message, Wei
from muster.protocol.windows import matures_at, payable_at

DAY_HOURS: Final = 24
"""Of what a node made in the last day: the hour that has begun, and those before it."""

HourState = Literal["maturing", "claimable", "settled", "frozen", "void"]


@dataclass(frozen=True)
class Account:
    """What the chain keeps of a worker's pay."""

    pay: int
    """Token wei of one commitment."""
    made: int
    """Commitments."""
    settled: int
    """Those below this index are claimed or voided."""
    voided: int
    """How many of these were voided."""


@dataclass(frozen=True)
class PayClock:
    """What decides when an hour's pay can be claimed."""

    now: int
    """The chain's seconds."""
    sealed_through: int
    phases: int
    """Seconds that voting takes, if a case against the node is open; else 0."""


class HourLine(Message):
    """One hour of the chain's clock."""

    hour: int
    """Hours since 1970."""
    counts: Counts
    unsettled: int
    """Commitments that are neither paid nor voided. Refuted ones pay as well, unless their node is convicted."""
    pay: Wei
    """Token wei: what is still to come of it; without that, what was voided, or else what was paid."""
    sealed: bool
    matures_at: int
    """The chain's seconds from which it can be claimed, as seals and cases are now (`Runs.payableAt`)."""
    if_sealed: int
    """The same were the hour sealed and no case open."""
    state: HourState


def first_hour_of_day(now: int) -> int:
    """Return the first of the DAY_HOURS hours, of which the last one has begun. `now`: the chain's seconds."""
    return now // HOUR_SECONDS - DAY_HOURS + 1


def pay_by_hour(counts: Mapping[int, Counts], account: Account, clock: PayClock) -> list[HourLine]:
    """Return the pay of hours, oldest first. `counts`: commitments by hour, of the last ones without a gap."""
    found = []
    first = account.made - sum(made.total for made in counts.values())  # index of the first hour's first commitment
    for hour, made in sorted(counts.items()):
        found.append(_hour_line(hour, made, first, account, clock))
        first += made.total
    return found


def _hour_line(hour: int, made: Counts, first: int, account: Account, clock: PayClock) -> HourLine:
    """Return the pay of an hour, whose first commitment has the index `first`."""
    end = first + made.total
    unsettled = max(0, end - max(first, account.settled))
    voided_from = account.settled - account.voided
    voided = max(0, min(end, account.settled) - max(first, voided_from))
    payable = payable_at(hour, clock.sealed_through, clock.phases)
    state: HourState
    if unsettled:
        state = "claimable" if clock.now >= payable else "frozen" if clock.phases else "maturing"
    else:
        state = "void" if voided else "settled"
    return HourLine(
        hour=hour,
        counts=made,
        unsettled=unsettled,
        pay=(unsettled or voided or made.total) * account.pay,
        matures_at=payable,
        if_sealed=matures_at(hour, hour),
        sealed=hour <= clock.sealed_through,
        state=state,
    )
