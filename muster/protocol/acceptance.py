"""Decide what became of a commitment, from the verdicts about it and facts of the chain. Pure, and the only place.

- Only verdicts that take a place of its call decide (`muster.protocol.looks`), and rejections of who opened a case
  about it. Verdicts of another drawing block and those of jailed validators count neither way.
- A rejection that the trainer refuted counts neither way, unless there is a case: then a court decides.
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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, Literal, Self, get_args

from muster.protocol.looks import Seating
from muster.protocol.messages import Verdict
from muster.protocol.reasons import Reason, explain

State = Literal["pending", "accepted", "rejected", "void"]
STATES: Final[tuple[State, ...]] = get_args(State)
UNREFUTED: Final[tuple[State, ...]] = ("pending", "accepted")
"""States of commitments that were not refuted."""


@dataclass(frozen=True)
class Opinion:
    """A verdict, reduced to what counts here."""

    validator: str
    accepted: bool
    reason: Reason | None
    came: int
    """The chain's second of its arrival."""
    trusted: bool = True
    """False once its validator is jailed."""
    position: int | None = None
    drawn_by: str | None = None
    """Hash of the block that drew its rows; None where none were drawn."""
    refuted: bool = False
    """Whether it is a rejection that the trainer refuted."""

    @classmethod
    def of(cls, verdict: Verdict, came: int, *, trusted: bool = True, refuted: bool = False) -> Self:
        """Reduce a verdict. `refuted`: whether its validator's rejection was, in whose place it may have come."""
        said = verdict.validator, verdict.accepted, verdict.reason, came
        return cls(*said, trusted, verdict.position, verdict.drawn_by, refuted and not verdict.accepted)


@dataclass(frozen=True)
class CaseState:
    """A case about the commitment."""

    challenger: str
    outcome: str
    """Of `muster.contracts.court.Outcome`, in lower case."""
    number: int = 0


@dataclass(frozen=True)
class Decision:
    """What became of a commitment, and why."""

    state: State
    reason: Reason | None = None
    """Why it is rejected: the reason of the earliest rejection that counts."""
    rejection: Opinion | None = None
    accepted_by: tuple[str, ...] = ()
    """Who took places and accepts."""
    accepts: int = 0
    """Validators that accept it, called or not."""
    required: int = 0
    case: int | None = None
    """The number of an open case."""
    day: int | None = None
    """The day, counted from 1970, whose summary is all that is kept."""

    def sentence(self, *, has_file: bool = True, names: Mapping[str, str] | None = None) -> str:
        """Return what became of it and why. `names`: of validators, by address."""
        if self.day is not None:
            ended = self.state.capitalize() + (f", {self.reason.replace('_', ' ')}" if self.reason else "")
            return f"{ended}: its file and verdicts are gone, kept in the summary of {date_of(self.day)}."
        if self.state == "accepted":
            return f"Accepted: {len(self.accepted_by)} validators inspected it and found nothing wrong."
        if self.state == "void":
            return "Void: no validator found it wrong, but its node was convicted, and all of its work is void."
        if self.rejection is not None:
            one, row = self.rejection, self.rejection.position
            means = "it gives no reason" if one.reason is None else explain(one.reason, row)
            who = (names or {}).get(one.validator) or one.validator
            return f"Rejected by {who}: {means}{'' if row is None else f' (row {row})'}."
        if not has_file:
            return "Pending: storage does not have its file, so it cannot be inspected."
        if self.case is not None:
            return f"Pending: case {self.case} about it is open."
        if self.accepts >= self.required:
            return "Pending: enough validators accepted it, but not as many that were called to look at it."
        return f"Pending: {self.accepts} of the {self.required} validators that must accept it have accepted."


def decide(
    opinions: Sequence[Opinion],
    cases: Sequence[CaseState],
    *,
    jailed: bool,
    accepts_required: int,
    call: Seating | None,
) -> Decision:
    """Judge one commitment. `opinions` in the order they arrived; `jailed` is about the node that made it.

    `call`: None while its drawing block is not known.
    """
    contested = next((case.number for case in cases if case.outcome == "open"), None)
    cleared = set() if contested is not None else {one.challenger for one in cases if one.outcome == "not_guilty"}
    received = any(case.outcome in ("dismissed", "cured") for case in cases)
    valid = [
        opinion
        for opinion in eligible(opinions, call, cases)
        if opinion.trusted
        and (opinion.accepted or opinion.validator not in cleared)
        and not (received and opinion.reason == "data_missing")
    ]
    takers = call.takers((opinion.validator, opinion.came) for opinion in valid) if call else []
    deciding = {*takers, *(case.challenger for case in cases)}
    for opinion in valid:
        if opinion.validator in deciding and not opinion.accepted:
            return Decision("rejected", opinion.reason, opinion)
    if jailed:
        return Decision("void")
    accepts = {opinion.validator for opinion in valid if opinion.accepted}
    counted = tuple(validator for validator in takers if validator in accepts)
    state: State = "pending" if contested is not None or len(counted) < accepts_required else "accepted"
    return Decision(state, None, None, counted, len(accepts), accepts_required, contested)


def eligible(opinions: Sequence[Opinion], call: Seating | None, cases: Sequence[CaseState] = ()) -> list[Opinion]:
    """Return the opinions about rows that the call's block drew, without rejections that the trainer refuted."""
    drawn = (None, call.drawn_by if call else None)
    return [one for one in opinions if one.drawn_by in drawn and (cases or not one.refuted)]


def ended_decision(state: State, reason: Reason | None, day: int, *, jailed: bool) -> Decision:
    """Return what became of a commitment whose verdicts are gone, by what the summary of its day keeps."""
    return Decision("void", day=day) if jailed and state != "rejected" else Decision(state, reason, day=day)


def date_of(day: int) -> str:
    """Write a day, counted from 1970."""
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()
