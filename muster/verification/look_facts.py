"""Which verdicts about a commitment are looks that count unless a check says no: by arrival, place, link and numbers.

Pure. The trainer counts by it, and `muster look verify` counts again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from muster.protocol.acceptance import Opinion, eligible
from muster.protocol.draws import draw_rows
from muster.protocol.hashes import hex_hash
from muster.protocol.looks import PlacedLook, Seating, hold_seconds, link_due_at, rows_of_look, wage
from muster.protocol.messages import Verdict
from muster.protocol.reasons import Why
from muster.protocol.terms import Terms
from muster.verification.look import LookSeeds, decode_look
from muster.verification.profiles import Profile
from muster.verification.rules import CommittedWork


@dataclass(frozen=True)
class CalledWork:
    """A commitment, and who is called to it (`muster.clients.looks.read_call`)."""

    work: CommittedWork
    order: tuple[str, ...]
    opens: int
    drawn_by: bytes
    """Hash of the drawing block."""
    operator: str
    """Of its node."""
    work_class: int

    def call(self, terms: Terms) -> Seating:
        places = terms.accepts_required
        return Seating(self.order, self.opens, hold_seconds(terms), places, hex_hash(self.drawn_by))


@dataclass(frozen=True)
class ShownLink:
    """The link that a validator's seal of an hour shows."""

    link: bytes
    second: int
    """In which it was sealed."""


@dataclass(frozen=True)
class ArrivedLook:
    """One verdict that came."""

    verdict: Verdict
    placed: PlacedLook
    known: CalledWork
    link: ShownLink | None
    why: Why | None
    """Why it is not counted, whatever checks say."""

    @property
    def seeds(self) -> LookSeeds:
        """Return what its numbers follow from; its link is shown."""
        assert self.link is not None
        c = self.known.work
        return LookSeeds(self.placed.validator, self.link.link, self.known.drawn_by, c.node, c.index, c.root)

    def rows(self, terms: Terms) -> list[int]:
        """Return the positions that it replayed; its link is shown."""
        s = self.seeds
        return draw_rows(
            block_hash=s.block_hash, link=s.link, validator=s.validator, node=s.node, index=s.index, terms=terms
        )


def named_row(verdict: Verdict, terms: Terms) -> int | None:
    """Return the row that a rejection names; None where it names none."""
    return None if verdict.position is None or verdict.position >= terms.positions else verdict.position


def takers_of(
    known: CalledWork, came: Sequence[tuple[Verdict, int]], refuted: Collection[str], terms: Terms
) -> list[str]:
    """Return whose verdicts about a commitment take places. Arguments as of `judge_arrived`."""
    call = known.call(terms)
    opinions = [Opinion.of(one, second, refuted=one.validator in refuted) for one, second in came]
    return call.takers((one.validator, one.came) for one in eligible(opinions, call))


def judge_arrived(
    known: CalledWork,
    came: Sequence[tuple[Verdict, int]],
    links: Mapping[str, ShownLink],
    refuted: Collection[str],
    profile: Profile,
    terms: Terms,
) -> list[ArrivedLook]:
    """Judge the verdicts about a commitment, in order of arrival.

    came: with the second of each. links: that validators have shown for its hour. refuted: whose rejections of it are;
    a verdict that came in place of one is not.
    """
    c, drawn_by = known.work, hex_hash(known.drawn_by)
    takers = takers_of(known, came, refuted, terms)
    found = []
    for verdict, second in sorted(came, key=lambda one: one[1]):
        who, link = verdict.validator, links.get(verdict.validator)
        paid = wage(terms, known.work_class, c.index)
        placed = PlacedLook(who, c.node, c.index, c.hour, known.operator, second, paid)
        why: Why | None = None
        if who in refuted and not verdict.accepted:
            why = "refuted"
        elif who not in takers:
            why = "late" if who in known.order else "uncalled"
        elif not verdict.look or verdict.reason == "data_missing":
            why = "unread"
        elif verdict.drawn_by != drawn_by or not _is_whole(verdict, profile, terms):
            why = "incomplete"
        elif link is None or link.second >= link_due_at(c.hour):
            why = "unlinked"
        elif second >= link.second:
            why = "late"
        found.append(ArrivedLook(verdict, placed, known, link, why))
    return found


def _is_whole(verdict: Verdict, profile: Profile, terms: Terms) -> bool:
    return decode_look(verdict.look, rows_of_look(terms, verdict.index), profile) is not None
