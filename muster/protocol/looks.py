"""Looks: which validators are called to a commitment, whose verdicts decide and count, and what a look is paid. Pure.

A *look* is a verdict with numbers of the rows that its validator replayed (`muster.verification.look`). Validators are
called by the hash of a block after the commitment, so no one chooses who looks. A called validator holds a *place* for
`hold_seconds`; then the place opens for the next of the order. Only verdicts that take a place decide, and count.

The owner pays looks, so its trainer checks some and counts (`muster.protocol.counting`): in the open, from lists that
it signs each hour (`muster.protocol.messages.LookList`). Orchestrator, trainer, validators and the simulation in
`benchmarks/` call these functions and have no copy of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from muster.constants import BASIS_POINTS, HOUR_SECONDS
from muster.protocol.hashes import keccak
from muster.protocol.merkle import LeafTree, leaf_of_words
from muster.protocol.terms import Terms

CALL_TAG: Final = b"muster.call.v2"
FIRST_COMMITMENTS: Final = 4
"""A node's first commitments, of which twice as many rows are replayed, for twice the wage."""
HOLD_SECONDS: Final = 60
"""A place is held for this long at least, however short the run's steps are."""
LAPSES: Final = 3
"""Lapsed places in a day (UTC) from which on a validator is called last for the rest of it."""
LINK_HOURS: Final = 2
"""Hours after the end of an hour by which its link is due: looks of a link that comes later are unpaid."""
SETTLE_HOURS: Final = 6
"""Hours after that in which looks are checked before they count."""
CHECK_EVERY: Final = 48
"""Of a validator's rows of an hour, one in so many is checked, to the nearest number, and one at least."""
VOIDED: Final = 7
"""Uncounted looks that a false row takes with its own, the nearest in time."""
SEARCHED: Final = 48
"""Uncounted rows of a validator that are replayed at once after a false one."""
BARRED_SECONDS: Final = 30 * 24 * HOUR_SECONDS
"""A validator of which one check and its search find false rows of two operators' nodes counts no more for so long."""
REFUTED: Final = 3
"""Rejections in BARRED_SECONDS that no arithmetic shares, from which on a validator counts no more."""


@dataclass(frozen=True)
class Seat:
    """A validator as calls see it, at the drawing block of a commitment."""

    address: str
    since: int
    """Second in which it registered."""
    rests: bool = False
    """Whether it is called last: its places lapsed LAPSES times today, its link is overdue, or it counts no more."""


def call_order(seats: Iterable[Seat], *, block_hash: bytes, node: str, index: int, at: int, terms: Terms) -> list[str]:
    """Return the validators in the order in which they are called to a commitment; the first hold its places.

    `block_hash`: of the block SAMPLE_BLOCKS after the commitment, whose second is `at`. Only those past jury seniority
    are called; while these are fewer than the run needs accepts, as many of all registered as it needs.
    """
    start = CALL_TAG + block_hash + bytes.fromhex(node[2:]) + index.to_bytes(4, "big")
    known = list(seats)
    senior = [seat for seat in known if seat.since + terms.jury_seniority <= at]
    few = len(senior) < terms.accepts_required
    drawn = sorted(known if few else senior, key=lambda seat: keccak(start + bytes.fromhex(seat.address[2:])))
    order = [seat.address for seat in sorted(drawn, key=lambda seat: seat.rests)]
    return order[: terms.accepts_required] if few else order


def hold_seconds(terms: Terms) -> int:
    """Return how long a place is held: half of the time in which work is fresh."""
    return max(HOLD_SECONDS, (terms.async_level + 1) * terms.min_step_interval // 2)


@dataclass(frozen=True)
class Round:
    """Seconds from `start` to before `end` in which some validators hold a place each, and those that took it."""

    start: int
    end: int
    holders: Sequence[str]
    takers: Sequence[str]
    """In order of arrival."""


@dataclass(frozen=True)
class Seating:
    """The places of one commitment, and who may take them."""

    order: Sequence[str]
    """Of `call_order`."""
    opens: int
    """Second of the commitment or, if later, of its file's arrival."""
    hold: int
    places: int
    """`accepts_required`."""
    drawn_by: str | None = None
    """Hash of the drawing block."""

    def rounds(self, came: Iterable[tuple[str, int]]) -> Iterator[Round]:
        """Yield the rounds in which places are held, until all are taken or the order ends.

        `came`: validator and second of each verdict. A place that lapses opens for the next of the order.
        """
        arrived: dict[str, int] = {}
        for validator, second in came:
            arrived[validator] = min(second, arrived.get(validator, second))
        taken, first, start = 0, 0, self.opens
        while taken < self.places and first < len(self.order):
            holders = self.order[first : first + self.places - taken]
            # Before the round began no one knew that its holders were to look, unless they were the first.
            in_time = [one for one in holders if one in arrived and arrived[one] < start + self.hold]
            takers = [one for one in in_time if start == self.opens or arrived[one] >= start]
            yield Round(start, start + self.hold, holders, sorted(takers, key=lambda one: arrived[one]))
            taken, first, start = taken + len(takers), first + len(holders), start + self.hold

    def takers(self, came: Iterable[tuple[str, int]]) -> list[str]:
        """Return the validators whose verdicts take places. Only these decide, and count."""
        return [validator for one in self.rounds(came) for validator in one.takers]

    def may_look(self, validator: str, came: Iterable[tuple[str, int]], now: int) -> bool:
        """Return whether a verdict of this validator that comes now takes a place."""
        return validator in self.takers([*came, (validator, now)])

    def asks_again(self, validator: str, came: Iterable[tuple[str, int]], now: int) -> int | None:
        """Return the second at which a place may open for a validator that holds none now; None: none ever will."""
        came = list(came)
        for one in self.rounds(came) if len(self.takers(came)) < self.places else ():
            if validator in one.holders:
                return one.start if now < one.start else None
            if now < one.end:
                return one.end if validator in self.order else None
        return None

    def lapsed(self, came: Iterable[tuple[str, int]], now: int) -> list[str]:
        """Return the validators whose places have lapsed."""
        over = [one for one in self.rounds(came) if one.end <= now]
        return [validator for one in over for validator in one.holders if validator not in one.takers]


def rows_of_look(terms: Terms, index: int) -> int:
    """Return how many rows a paid look at a node's commitment number `index` replays, at most all."""
    return min(terms.positions, terms.look_rows * weight(index))


def weight(index: int) -> int:
    """Return how many looks a look at a node's commitment counts as: its first ones twice."""
    return 2 if index < FIRST_COMMITMENTS else 1


def wage(terms: Terms, work_class: int, index: int) -> int:
    """Return the token wei of a counted look."""
    return terms.pay_of(work_class) * terms.wage_bps // BASIS_POINTS * weight(index)


def settles_at(hour: int) -> int:
    """Return the second from which the looks at an hour's commitments count: its list is published."""
    return (hour + 1 + LINK_HOURS + SETTLE_HOURS) * HOUR_SECONDS


def link_due_at(hour: int) -> int:
    """Return the second from which the link of an hour is late."""
    return (hour + 1 + LINK_HOURS) * HOUR_SECONDS


def checked_rows(rows: int) -> int:
    """Return how many of a validator's rows of an hour are checked."""
    return max(1, (rows + CHECK_EVERY // 2) // CHECK_EVERY) if rows else 0


@dataclass(frozen=True)
class PlacedLook:
    """A look that took a place, with a link in time and numbers for each drawn row: it counts unless checks say no."""

    validator: str
    node: str
    index: int
    hour: int
    """Of the commitment."""
    operator: str
    """Of the node."""
    came: int
    """Second of the verdict's arrival."""
    wage: int


@dataclass
class Record:
    """What is remembered of one validator beyond an hour."""

    total: int = 0
    """Token wei of all that was counted."""
    refuted_at: list[int] = field(default_factory=list)
    """Seconds of rejections that were refuted."""
    barred_until: int = 0

    def find(self, operators: Iterable[str], now: int) -> None:
        """Take in the false rows of one check and of its search: the operators of their nodes.

        Finds of another check are not remembered: in bfloat16 one honest row in a thousand, written by a worker, may be
        called false, and in 30 days each honest validator would have had two.
        """
        if len(set(operators)) >= 2:
            self.barred_until = now + BARRED_SECONDS

    def refute(self, now: int) -> None:
        """Take in a rejection that was refuted."""
        self.refuted_at = [*(at for at in self.refuted_at if at > now - BARRED_SECONDS), now][-REFUTED:]
        if len(self.refuted_at) >= REFUTED:
            self.barred_until = now + BARRED_SECONDS


def voided_with(false: Sequence[int], looks: Sequence[PlacedLook]) -> set[int]:
    """Return which of `looks`, a validator's uncounted ones, the false ones take with them: the VOIDED nearest each."""
    gone: set[int] = set()
    for place in false:
        near = sorted(range(len(looks)), key=lambda one: (abs(looks[one].came - looks[place].came), one))
        gone |= set([one for one in near if one not in false][:VOIDED])
    return gone - set(false)


def wages_leaf(run: int, validator: str, total: int) -> bytes:
    """Return the leaf of a validator's total in a posted root, as `Wages.claim` has it."""
    return leaf_of_words((run, int(validator, 16), total))


def wages_tree(run: int, totals: Mapping[str, int]) -> LeafTree:
    """Return the tree over the totals, at least one, in the order of the addresses as numbers."""
    ordered = sorted(totals, key=lambda address: int(address, 16))
    return LeafTree.from_hashes([wages_leaf(run, address, totals[address]) for address in ordered])
