"""Decide what a commitment is worth to the trainer, given the verdicts and cases about it. Pure.

- A rejection holds a commitment out until the case *its own validator* opened about it has ended not guilty and no
  other is open. (Another challenger's lost case releases nothing: a friend of the accused could open it to lose.)
- A case that was dismissed shows the storage's receipt, and one that was cured that the file came late: from then on
  no "data missing" counts. Who gave such a verdict inspects the file, and gives another one.
- Verdicts of jailed validators count neither way.
- A jailed node's work is void, whatever the verdicts about it.
- Otherwise the run's required number of accepting validators makes it accepted; in a run with private tests, as many
  that have shown the same grades, while no other grades have as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

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
    trusted: bool = True
    grades: str | None = None
    """Hash of the grades that the validator has shown."""


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
    graded: bool = False,
) -> CommitmentStatus:
    """Judge one commitment. `opinions` in the order they arrived; `jailed` is about the node that made it.

    `graded`: whether the run has private tests.
    """
    contested = any(case.outcome == "open" for case in cases)
    cleared = set() if contested else {case.challenger for case in cases if case.outcome == "not_guilty"}
    received = any(case.outcome in ("dismissed", "cured") for case in cases)
    for opinion in opinions:
        answered = opinion.validator in cleared or (received and opinion.reason == "data_missing")
        if opinion.trusted and not opinion.accepted and not answered:
            return CommitmentStatus("rejected", opinion.reason)
    if jailed:
        return CommitmentStatus("void")
    accepts = {opinion.validator for opinion in opinions if opinion.trusted and opinion.accepted}
    if contested or len(accepts) < accepts_required:
        return CommitmentStatus("pending")
    if graded and agreed_grades(opinions, accepts_required) is None:
        return CommitmentStatus("pending")
    return CommitmentStatus("accepted")


def ended_status(ended: State, reason: str | None, *, jailed: bool) -> CommitmentStatus:
    """Return the status of a commitment whose verdicts are gone, by the status that its day's summary keeps."""
    return CommitmentStatus("void") if jailed and ended != "rejected" else CommitmentStatus(ended, reason)


def agreed_grades(opinions: Iterable[Opinion], accepts_required: int) -> str | None:
    """Return the hash of the grades that enough trusted accepting validators have shown, and more than any other."""
    shown = Counter(opinion.grades for opinion in opinions if opinion.trusted and opinion.accepted and opinion.grades)
    ranked = shown.most_common(2)
    if not ranked or ranked[0][1] < accepts_required or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]


def counts_of(rows: Iterable[tuple[str, int]]) -> Counts:
    """Add up commitments by their status. Pure."""
    found: Counter[str] = Counter()
    for status, count in rows:
        found[status] += count
    return Counts(total=found.total(), **{state: found[state] for state in STATES})
