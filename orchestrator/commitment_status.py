"""Decide what a commitment is worth to the trainer, given the verdicts and cases about it. Pure.

- Only verdicts that take a place of its call decide (`muster.protocol.looks`), and rejections of who opened a case
  about it. Verdicts of another drawing block and those of jailed validators count neither way.
- A rejection that decides holds a commitment out until the case *its own validator* opened about it has ended not
  guilty and no other is open. (Another challenger's lost case releases nothing: a friend of the accused could open it
  to lose.)
- Any open case holds a commitment out.
- A case that was dismissed shows the storage's receipt, and one that was cured that the file came late: from then on
  no "data missing" counts. Who gave such a verdict inspects the file, and gives another one.
- A jailed node's work is void, whatever the verdicts about it.
- Otherwise it is accepted once as many that took places accept as the run requires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from muster.protocol.looks import Seating
from muster.protocol.messages import Message

State = Literal["pending", "accepted", "rejected", "void"]
STATES: Final[tuple[State, ...]] = get_args(State)
UNREFUTED: Final[tuple[State, ...]] = ("pending", "accepted")
"""States of commitments that were not refuted."""


class Counts(Message):
    """Commitments by what became of them."""

    total: int = 0
    accepted: int = 0
    pending: int = 0
    rejected: int = 0
    void: int = 0


@dataclass(frozen=True)
class Opinion:
    """A verdict, reduced to what counts here. `trusted` is false once its validator is jailed."""

    validator: str
    accepted: bool
    reason: str | None
    came: int
    """The chain's second of its arrival."""
    trusted: bool = True


@dataclass(frozen=True)
class CaseState:
    """A case about the commitment."""

    challenger: str
    outcome: str
    """Of `muster.contracts.court.Outcome`, in lower case."""


@dataclass(frozen=True)
class CommitmentStatus:
    state: State
    reason: str | None = None
    """Why it is rejected: the reason of the earliest rejection that counts."""


def commitment_status(
    opinions: Sequence[Opinion],
    cases: Sequence[CaseState],
    *,
    jailed: bool,
    accepts_required: int,
    call: Seating | None,
) -> CommitmentStatus:
    """Judge one commitment. `opinions` in the order they arrived; `jailed` is about the node that made it.

    `call`: None while its drawing block is not known.
    """
    contested = any(case.outcome == "open" for case in cases)
    cleared = set() if contested else {case.challenger for case in cases if case.outcome == "not_guilty"}
    received = any(case.outcome in ("dismissed", "cured") for case in cases)
    valid = [
        opinion
        for opinion in opinions
        if opinion.trusted
        and (opinion.accepted or opinion.validator not in cleared)
        and not (received and opinion.reason == "data_missing")
    ]
    takers = call.takers((opinion.validator, opinion.came) for opinion in valid) if call else []
    deciding = {*takers, *(case.challenger for case in cases)}
    for opinion in valid:
        if opinion.validator in deciding and not opinion.accepted:
            return CommitmentStatus("rejected", opinion.reason)
    if jailed:
        return CommitmentStatus("void")
    accepts = {opinion.validator for opinion in valid if opinion.accepted} & {*takers}
    return CommitmentStatus("pending" if contested or len(accepts) < accepts_required else "accepted")


def ended_status(ended: State, reason: str | None, *, jailed: bool) -> CommitmentStatus:
    """Return the status of a commitment whose verdicts are gone, by the status that its day's summary keeps."""
    return CommitmentStatus("void") if jailed and ended != "rejected" else CommitmentStatus(ended, reason)


def counts_of(rows: Iterable[tuple[str, int]]) -> Counts:
    """Add up commitments by their status. Pure."""
    found: Counter[str] = Counter()
    for status, count in rows:
        found[status] += count
    return Counts(total=found.total(), **{state: found[state] for state in STATES})
