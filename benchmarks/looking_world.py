"""A run whose validators look in different ways, played hour by hour without a chain.

Commitments come at random seconds. Validators are called, take places, are checked, barred and paid by the functions
that orchestrator, trainer and validators call (`muster/protocol/looks.py`, `counting.py`). What is made up is who does
what: a *strategy* says when a verdict comes, what its look costs, and which of its rows are false.
`benchmarks/incentives_looks.py` says what comes of it.

Money is in *c*, the cost of a look: the replay of 12 of 128 rows, 1/24 of a commitment's pay. A *call* is a place that
an honest validator in the same seat would hold.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Final, Literal

from muster.constants import HOUR_SECONDS
from muster.protocol.counting import Tally, count_hour, key_of
from muster.protocol.draws import shared_rows
from muster.protocol.incentives import Looking as Economy
from muster.protocol.looks import (
    LAPSES,
    LINK_HOURS,
    SEARCHED,
    SETTLE_HOURS,
    PlacedLook,
    Seat,
    Seating,
    call_order,
    checked_rows,
    hold_seconds,
    link_due_at,
    rows_of_look,
    wage,
    weight,
)
from muster.protocol.messages import RowCheck
from muster.protocol.terms import Terms, WorkClass
from muster.protocol.terms_file import PUBLIC_DEFAULTS
from testbed.samples.terms import made_terms

TERMS: Final = made_terms(PUBLIC_DEFAULTS, classes=(WorkClass(10_000, (8, 12, 16)),))
LOOK: Final = Economy.of(TERMS, 0).cost
"""c in pay."""
USUAL: Final = 40
"""Commitments an hour, of all nodes."""
OPERATORS: Final = 10
NODE_HOURS: Final = 120
"""After which an operator begins again with another node, so that there are first commitments."""
START: Final = 480_000
"""The first hour: a day's first."""
AFTER: Final = 20
"""Seconds until a verdict comes, by default."""
DAY: Final = 24 * HOUR_SECONDS
PROMPT, MEDIAN, SPREAD, LONGEST = 100, 300, 0.7, 1_024
"""Tokens of a prompt; those of completions are lognormal."""


@dataclass(frozen=True)
class Looking:
    """How a validator looks."""

    name: str
    false: float = 0.0
    """Share of its looks of which rows are false."""
    rows: float = 1.0
    """Share of the rows of these that are, one at least."""
    cost: float = 0.0
    """Of these, in c."""
    passes: bool = False
    """No check tells its numbers from true ones."""
    operator: int | None = None
    """The only one whose rows are false."""
    answers: float = 1.0
    """Share of its calls that it answers."""
    turns: bool = True
    """Takes places that opened."""
    newcomers: bool = True
    """Looks at a node's first commitments."""
    dearest: float = math.inf
    """Looks only where the rows that it draws cost less, in c."""
    after: int = AFTER
    """Seconds from the time at which it may look until its verdict comes."""
    uncalled: bool = False
    """Looks at everything at once."""
    unlinked: bool = False
    """Shows its links too late."""
    own: int = 0
    """Operators whose workers are its own: it has their states."""
    rejects: bool = False
    """Rejects all, without a case."""
    returns: int | None = None
    """Seconds after which it looks again with another stake and key, once it counts no more."""


@cache
def draw_costs() -> list[float]:
    """Return what looks by drawn rows cost, in c."""
    source, rows = random.Random(0), TERMS.look_rows
    made = [
        sum(PROMPT + min(LONGEST, source.lognormvariate(math.log(MEDIAN), SPREAD)) for _ in range(rows))
        for _ in range(10_000)
    ]
    mean = statistics.mean(made)
    return [one / mean for one in made]


@cache
def cheap_draws(dearest: float) -> float:
    """Return what looks by rows that cost less cost, on average."""
    return 1.0 if dearest == math.inf else statistics.mean(cost for cost in draw_costs() if cost < dearest)


def new_address(source: random.Random) -> str:
    return "0x" + source.randbytes(20).hex()


@dataclass
class Played:
    """What came of one validator. Money in c."""

    calls: int = 0
    """Seating of the first round that it held; at first commitments each is two."""
    cost: float = 0.0
    paid: float = 0.0
    rows: int = 0
    """Of its looks that took places."""
    checked: int = 0
    false: Counter[str] = field(default_factory=Counter[str])
    """By key: false looks that it made, and that were paid."""
    false_paid: Counter[str] = field(default_factory=Counter[str])
    found: dict[str, float] = field(default_factory=dict[str, float])
    """Hours from a key's first look until it counted no more."""


@dataclass
class Validator:
    """A validator while it plays."""

    looking: Looking
    address: str
    since: int
    played: Played = field(default_factory=Played)
    lapses: Counter[int] = field(default_factory=Counter[int])
    """By day. The next commitment knows of them, a minute or two early."""
    first: int | None = None
    """Second of this key's first look."""


@dataclass(frozen=True)
class Made:
    """A look that took a place."""

    by: Validator
    placed: PlacedLook
    rows: int
    false: int
    """Rows that are: the first ones, which are drawn like any others."""


@dataclass
class World:
    """A run with some validators, hour by hour. The same seed makes the same commitments, however they look."""

    looking: Sequence[Looking]
    per_hour: int = USUAL
    hours: int = 30 * 24
    seed: int = 0
    terms: Terms = TERMS
    friends: int = 0
    """The first so many validators replay together what both are called to."""
    validators: list[Validator] = field(init=False)
    tally: Tally = field(default_factory=Tally)
    made: dict[int, list[Made]] = field(default_factory=dict[int, list[Made]])
    """Looks that are not counted yet, by hour."""
    refuted: list[RowCheck] = field(default_factory=list[RowCheck])
    work: int = 0
    waited: int = 0
    """Commitments of which a place lapsed."""
    late: int = 0
    """Those that were not decided while they were fresh."""
    blocked: Counter[int] = field(default_factory=Counter[int])
    """Those that a false rejection held back, by day since the start."""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed} {self.per_hour} {len(self.looking)}")
        self.luck = random.Random(self.seed)
        self.hold = hold_seconds(self.terms)
        since = START * HOUR_SECONDS - self.terms.jury_seniority
        self.validators = [Validator(one, new_address(self.random), since) for one in self.looking]

    def play(self) -> list[Played]:
        """Return what came of each validator once all its looks are counted."""
        nodes, indices = [""] * OPERATORS, [0] * OPERATORS
        for hour in range(START, START + self.hours):
            for operator in range(OPERATORS):
                if not nodes[operator] or (hour + 12 * operator) % NODE_HOURS == 0:
                    nodes[operator], indices[operator] = new_address(self.random), 0
            for second in sorted(self.random.randrange(HOUR_SECONDS) for _ in range(self.per_hour)):
                operator = self.random.randrange(OPERATORS)
                self.commit(operator, nodes[operator], indices[operator], hour * HOUR_SECONDS + second)
                indices[operator] += 1
            self.list_hour(hour + 1)
        for hour in range(self.hours, self.hours + LINK_HOURS + SETTLE_HOURS + 1):
            self.list_hour(START + hour + 1)
        return [one.played for one in self.validators]

    def commit(self, operator: int, node: str, index: int, now: int) -> None:
        """Let the called validators look at a commitment, and those who follow them."""
        seats = [Seat(one.address, one.since, self._rests(one, now)) for one in self.validators]
        block_hash = self.random.randbytes(32)
        order = call_order(seats, block_hash=block_hash, node=node, index=index, at=now, terms=self.terms)
        call = Seating(order, now, self.hold, self.terms.accepts_required)
        by = {one.address: one for one in self.validators}
        came = [(one.address, now + AFTER) for one in self.validators if one.looking.uncalled]
        number = 0
        while (round_ := next(islice(call.rounds(came), number, None), None)) is not None:
            for address in round_.holders:
                looking = by[address].looking
                by[address].played.calls += 0 if number else weight(index)
                if not looking.uncalled and self._answers(looking, number, index):
                    came.append((address, round_.start + looking.after))
            number += 1
        takers = call.takers(came)
        for one in call.lapsed(came, now + len(order) * self.hold):
            by[one].lapses[now // DAY] += 1
        friends = {one.address for one in self.validators[: self.friends]}
        for place, (address, second) in enumerate(came):
            look = PlacedLook(
                address, node, index, now // HOUR_SECONDS, str(operator), second, wage(self.terms, 0, index)
            )
            helped = address in friends and any(other in friends for other, _ in came[:place])
            self._look(by[address], look, operator, takes=address in takers, helped=helped)
        self._decide(call, [by[one] for one in takers], [second for one, second in came if one in takers])

    def _rests(self, one: Validator, now: int) -> bool:
        record = self.tally.records.get(one.address)
        # A late link comes half an hour after it was due.
        owes = one.looking.unlinked and one.first is not None and now >= link_due_at(one.first // HOUR_SECONDS)
        return (
            one.lapses[now // DAY] >= LAPSES
            or (record is not None and record.barred_until > now)
            or (owes and now % HOUR_SECONDS < HOUR_SECONDS // 2)
        )

    def _answers(self, looking: Looking, number: int, index: int) -> bool:
        return (
            (looking.answers == 1 or self.luck.random() < looking.answers)
            and (looking.turns or number == 0)
            and (looking.newcomers or weight(index) == 1)
            and (looking.dearest == math.inf or self.luck.choice(draw_costs()) < looking.dearest)
        )

    def _look(self, one: Validator, look: PlacedLook, operator: int, *, takes: bool, helped: bool) -> None:
        """Let a validator look, and give its verdict."""
        looking, played = one.looking, one.played
        one.first = look.came if one.first is None else one.first
        if looking.rejects:
            self.refuted += [row_check(look, "refuted")] if takes else []
            return
        is_false = looking.operator in (None, operator) and self.luck.random() < looking.false
        rows = rows_of_look(self.terms, look.index)
        false = max(1, round(looking.rows * rows)) if is_false else 0
        cost = looking.cost if is_false else cheap_draws(looking.dearest)
        if operator < looking.own:
            cost = 0.0
        if helped:
            cost *= 1 - shared_rows(self.terms) / self.terms.look_rows
        played.cost += cost * weight(look.index)
        played.false[one.address] += is_false
        if takes and not looking.unlinked:
            played.rows += rows
            self.made.setdefault(look.hour, []).append(Made(one, look, rows, 0 if looking.passes else false))

    def _decide(self, call: Seating, takers: Sequence[Validator], came: Sequence[int]) -> None:
        self.work += 1
        in_time = [second for second in came if second < call.opens + 2 * self.hold]
        self.late += len(in_time) < call.places
        self.waited += sum(second < call.opens + self.hold for second in came) < call.places
        self.blocked[call.opens // DAY - START * HOUR_SECONDS // DAY] += any(one.looking.rejects for one in takers)

    def list_hour(self, hour: int) -> None:
        """Check the looks whose links are due as an hour begins, and count those of the hour that settles then."""
        now, due = hour * HOUR_SECONDS, hour - 1 - LINK_HOURS
        done = due - SETTLE_HOURS
        pending = [look for one in range(done, due + 1) for look in self.made.get(one, ())]
        checks = [row for one in self.validators for row in self._check(one, due, pending)] + self.refuted
        self.refuted = []
        counted = count_hour(self.tally, done, [look.placed for look in pending], checks, left=10**40)
        for look in self.made.pop(done, ()):
            if counted[key_of(look.placed)] is None:
                look.by.played.paid += look.placed.wage / (LOOK * self.terms.pay_of(0))
                look.by.played.false_paid[look.placed.validator] += look.false > 0
        for one in self.validators:
            if one.first is not None and self.tally.record(one.address).barred_until > now:
                one.played.found[one.address] = (now - one.first) / HOUR_SECONDS
                one.first = None
                if one.looking.returns is not None:
                    one.address = new_address(self.luck)
                    one.since = now + one.looking.returns - self.terms.jury_seniority

    def _check(self, one: Validator, due: int, pending: Sequence[Made]) -> list[RowCheck]:
        """Return the false rows that a check of an hour finds, and the search after it."""
        own = [look for look in pending if look.by is one and look.placed.validator == one.address]
        fresh = [look for look in own if look.placed.hour == due]
        count = checked_rows(sum(look.rows for look in fresh))
        one.played.checked += count
        if not any(look.false for look in fresh):
            return []
        rows = [(look, row) for look in fresh for row in range(look.rows)]
        self.luck.shuffle(rows)
        false = [look for look, row in rows[:count] if row < look.false]
        if false:
            left = rows[count:] + [(look, row) for look in own if look not in fresh for row in range(look.rows)]
            searched = self.luck.sample(left, min(SEARCHED, len(left)))
            one.played.checked += len(searched)
            false += [look for look, row in searched if row < look.false]
        return [row_check(look.placed, "false") for look in false]


def row_check(look: PlacedLook, outcome: Literal["false", "refuted"]) -> RowCheck:
    """Return what the trainer's check of a row says; which row it is makes no difference here."""
    root = "0x" + "00" * 32
    return RowCheck(validator=look.validator, node=look.node, index=look.index, root=root, position=0, outcome=outcome)
