"""What looking pays without a cheat: strategies that are played against honest validators, and the figures.

Part `looks` of `benchmarks/incentives.py`. `benchmarks/looking_world.py` plays a run, and says what *c* and a *call*
are.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any, Final

from benchmarks import report
from benchmarks.inspection_pools import rows_of_step
from benchmarks.looking_world import AFTER, LOOK, OPERATORS, TERMS, USUAL, Looking, Played, World
from muster.constants import BASIS_POINTS, HOUR_SECONDS
from muster.protocol.draws import draw_unit, shared_rows
from muster.protocol.incentives import GAS_PRICE
from muster.protocol.incentives import Looking as Economy
from muster.protocol.looks import SEARCHED, Record, checked_rows, hold_seconds, settles_at
from muster.protocol.terms import Terms
from muster.verification.pools import HONEST_SHARE, WINDOW, PooledRow, Unit, judge_pool, suspect_from, take_rows
from muster.verification.profiles import BF16

Row = dict[str, Any]

SIZES: Final = (4, 5, 6, 9)
SAVES: Final = 0.08
"""Share of a look from which on a deviation counts as one that saves work."""
HOSTILE: Final = (0.1, 2, 1e-3)
"""Share of the work that is hostile, its operators, and share of its rows that honest looks in bfloat16 fail."""
CLAIM_GAS: Final = 60_000
HONEST: Final = "honest"
HONEST_NET: Final = TERMS.wage_bps / BASIS_POINTS / LOOK - 1
"""c a call: where no one cheats and no row is called false, all honest looks are paid."""


def strategies() -> list[Looking]:
    """Return what a single validator may do, in float32."""
    hold = hold_seconds(TERMS)
    return [
        Looking(HONEST),
        Looking("answers no call", answers=0.0),
        Looking("answers half of its calls", answers=0.5),
        Looking("skips the dearest draws, above 1.3 c", dearest=1.3),
        Looking("takes no place that opened", turns=False),
        Looking("skips first commitments", newcomers=False),
        Looking("answers in the last second", after=hold - 1),
        Looking("answers after its replacement", after=hold + AFTER + 1),
        Looking("looks at everything at once, called or not", uncalled=True),
        Looking("shows its links late", unlinked=True),
        Looking("invents all, or copies another's numbers", false=1.0),
        Looking("invents all, with a new key each time", false=1.0, returns=TERMS.jury_seniority),
        Looking("invents half of its looks", false=0.5),
        Looking("invents a third of its looks", false=1 / 3),
        Looking("replays half of each row", false=1.0, cost=0.5),
        Looking("replays the six shortest rows", false=1.0, rows=0.5, cost=0.35),
        Looking("invents one row of twelve", false=1.0, rows=1 / 12, cost=11 / 12),
        Looking("replays without the head", false=1.0, cost=0.8),
        Looking("replays in int8", false=1.0, cost=0.5),
        Looking("replays by the weights of the step before", false=1.0, cost=1.0),
        Looking("invents all of one operator's", false=1.0, operator=0),
        Looking("invents a tenth of one operator's", false=0.1, operator=0),
        Looking("invents one row of 100", false=0.12, rows=1 / 12, cost=11 / 12),
        Looking("invents one row of 600", false=0.02, rows=1 / 12, cost=11 / 12),
        Looking("invents one look in 160", false=1 / 160),
        Looking(REJECTS, rejects=True),
    ]


MILD: Final = ("invents one row of 100", "invents one row of 600", "invents one look in 160")
"""Those whose gain depends on the rate, of all that save next to nothing."""
REJECTS: Final = "rejects all"
ONE_ACCEPT: Final = (HONEST, "invents half of its looks", "invents one row of twelve", "invents all of one operator's")
LAZY: Final = (
    ("all", Looking("all", false=1.0), 4, 0.0),
    ("half", Looking("half", false=0.5), 4, 0.0),
    ("one_row", Looking("one row of twelve", false=1.0, rows=1 / 12, cost=11 / 12), 7, 0.05),
)
"""What it invents; hours until it is found, and share of the false looks that are paid, at most."""
LAZY_NINE: Final = (8.5, 0.13)
"""The same of nine validators."""


@dataclass(frozen=True)
class Size:
    """How much is played."""

    days: int = 30
    sizes: tuple[int, ...] = SIZES
    mild: tuple[tuple[int, int, int], ...] = ((4, 4, 30), (9, 4, 30), (4, 400, 6), (9, 400, 6))
    """Validators, rate and days with which those that save next to nothing are played, beside USUAL."""
    months: int = 100_000
    """Of honest validators in bfloat16."""
    steps: int = 1_000
    """Of honest nodes' pools."""


FULL: Final = Size()
QUICK: Final = Size(days=4, sizes=(4, 9), mild=((4, 4, 4),), months=10_000, steps=50)


@cache
def honest_calls(size: int, per_hour: int, days: int, terms: Terms) -> list[int]:
    """Return the calls of each validator where all are honest."""
    return [one.calls for one in World([Looking(HONEST)] * size, per_hour, days * 24, terms=terms).play()]


def nets(played: Sequence[Played], calls: Sequence[int]) -> list[float]:
    """Return what each validator earned, in c a call."""
    return [(one.paid - one.cost) / count for one, count in zip(played, calls, strict=True)]


def alone(one: Looking, size: int, per_hour: int, days: int, terms: Terms = TERMS) -> Row:
    """Let one validator deviate among honest ones."""
    world = World([one] + [Looking(HONEST)] * (size - 1), per_hour, days * 24, terms=terms)
    played = world.play()
    own, *others = nets(played, honest_calls(size, per_hour, days, terms))
    return {
        "kind": "alone",
        "name": one.name,
        "validators": size,
        "per_hour": per_hour,
        "accepts": terms.accepts_required,
        "net": own,
        "saved": 1 - played[0].cost / played[0].calls,
        "others": statistics.mean(others),
        "waited": world.waited / world.work,
        "late": world.late / world.work,
        "blocked_first_day": world.blocked[0],
        "blocked": sum(count for day, count in world.blocked.items() if day) / world.work,
        "wages": sum(one.paid for one in played) * LOOK / world.work,
        "checks": sum(one.checked for one in played) / statistics.mean(one.rows for one in played[1:]),
        "day": (played[0].paid - played[0].cost) * LOOK / days,
    }


def found(one: Looking, size: int, per_hour: int, days: int) -> Row:
    """Let all validators invent, each again by a new key once it is found, and links come at the last moment."""
    played = World([replace(one, returns=0)] * size, per_hour, days * 24).play()
    keys = [(own, key) for own in played for key in own.found]
    return {
        "kind": "found",
        "name": one.name,
        "validators": size,
        "per_hour": per_hour,
        "keys": len(keys),
        "hours": statistics.mean(own.found[key] for own, key in keys),
        "paid": statistics.mean(own.false_paid[key] / own.false[key] for own, key in keys),
        "paid_of_all": sum(own.false_paid[k] for own, k in keys) / sum(own.false[k] for own, k in keys),
        "checks": sum(own.checked for own in played) / statistics.mean(own.rows for own in played),
    }


def lost(size: int, per_hour: int, months: int) -> Row:
    """Return the share of honest validators that count no more after 30 days in bfloat16, by a hostile tenth.

    What is drawn is which checked rows are found false; two of two operators bar (`Record.find`).
    """
    source = random.Random(f"{size} {per_hour}")
    share, operators, rate = HOSTILE
    each = checked_rows(round(per_hour * TERMS.accepts_required / size * TERMS.look_rows))
    barred = 0
    for _ in range(months):
        record = Record()
        for _ in range(binomial(source, 30 * 24 * each, share * rate)):
            more = binomial(source, each - 1 + SEARCHED, share * rate)
            record.find((str(source.randrange(operators)) for _ in range(1 + more)), 0)
        barred += record.barred_until > 0
    return {"kind": "lost", "validators": size, "per_hour": per_hour, "share": barred / months}


def binomial(source: random.Random, count: int, chance: float) -> int:
    """Return how many of so many come true, each with a small chance."""
    times, passed = 0, source.expovariate(-math.log1p(-chance))
    while passed < count:
        times, passed = times + 1, passed + source.expovariate(-math.log1p(-chance))
    return times


def helped(days: int) -> list[Row]:
    """Return what help, coalitions and cheaper arithmetic bring over honest looking, in c a call."""
    rows: list[Row] = []

    def world(name: str, looking: Sequence[Looking], members: int, **more: Any) -> None:
        played = World(looking, hours=days * 24, **more)
        earned = nets(played.play(), honest_calls(len(looking), USUAL, days, TERMS))
        gain, others = (statistics.mean(part) - HONEST_NET for part in (earned[:members], earned[members:]))
        who = {"name": name, "members": members, "validators": len(looking)}
        rows.append({"kind": "helped", **who, "gain": gain, "others": others, "late": played.late / played.work})

    honest = Looking(HONEST)
    for friends, size in ((2, 4), (2, 5), (2, 9), (3, 9)):
        world("share what they replay", [honest] * size, friends, friends=friends)
    for one in (
        Looking("has the states of a tenth of the work, its own workers'", own=1),
        Looking("has those of a third", own=3),
        Looking("has all: every worker helps it", own=OPERATORS),
        Looking("replays in int8, in bfloat16", false=1.0, cost=0.5, passes=True),
        Looking("is silent", answers=0.0),
    ):
        world(one.name, [one, *[honest] * 3], 1)
    replaced = Looking("answer after their replacement", after=hold_seconds(TERMS) + AFTER + 1)
    world(replaced.name, [replaced] * 2 + [honest] * 3, 2)
    return rows


@dataclass
class Watched:
    """A node's work, step by step, as one validator of several sees it (`muster.verification.pools`)."""

    seed: int
    size: int
    each: int
    """Commitments of a step."""
    mean: Callable[[random.Random, int], float]
    """Of a step's gaps, as a share of the pool limit."""
    units: list[Unit] = field(default_factory=list[Unit])
    own: list[dict[int, list[PooledRow]]] = field(init=False)
    """By validator and step: rows of its looks that all validators replay."""
    looks: int = 0
    replayed: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Validators and the steps of which they replayed what counts."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.own = [{} for _ in range(self.size)]

    def pass_step(self, step: int) -> bool:
        """Return whether a validator accuses the node as it looks at the work of a step."""
        shared, first = shared_rows(TERMS), step * self.each
        rows = rows_of_step(self.random, self.mean(self.random, step), self.each * shared)
        looked: set[int] = set()
        for number in range(self.each):
            for one in self.random.sample(range(self.size), TERMS.accepts_required):
                self.own[one].setdefault(step, []).extend(rows[number * shared : (number + 1) * shared])
                looked.add(one)
                self.looks += 1
        accused = sum(self._accuses(one, step, first) for one in sorted(looked))
        last, block_hash = first + self.each - 1, self.random.randbytes(32)
        drawn = draw_unit(block_hash=block_hash, node="0x" + "11" * 20, first=first, last=last, terms=TERMS)
        counted = take_rows((rows[(index - first) * shared + place] for index, place in drawn), tokens_of)
        self.units.append(Unit(step, first, last, tuple(counted)))
        return accused > 0

    def _accuses(self, one: int, step: int, first: int) -> bool:
        steps = [other for other in self.own[one] if other > step - WINDOW]
        suspect = suspect_from([list(take_rows(self.own[one][s], tokens_of)) for s in steps], BF16.pool)
        if suspect is None:
            return False
        self.replayed |= {(one, other) for other in range(steps[suspect], step)}
        found = judge_pool(self.units[steps[suspect] :], BF16, about=first)
        return found is not None and found.accuse


def tokens_of(row: PooledRow) -> int:
    return row.sums.tokens


def steps_until_accused(size: int, each: int, every: int) -> float:
    """Return in how many steps a node is accused of which one step of so many is false: the median of some nodes."""

    def steps(seed: int) -> int:
        watched = Watched(seed, size, each, lambda _, step: 0.5 if step % every else 1.5)
        return next(step + 1 for step in range(3 * WINDOW) if watched.pass_step(step))

    return statistics.median(steps(seed) for seed in range(3))


def pools(steps: int) -> list[Row]:
    """Return when nodes are accused whose steps are false, and what is replayed of honest ones, as a share of looks.

    As many of an honest node's steps lean as ever may.
    """
    rows: list[Row] = []
    for each, size in product((1, 5, 20), (4, 5, 9)):
        row: Row = {"kind": "pool", "each": each, "validators": size}
        row |= {f"one_of_{every}": steps_until_accused(size, each, every) for every in (1, 3)}
        honest = Watched(1, size, each, lambda source, _: 1.5 if source.random() < HONEST_SHARE else 0.5)
        for step in range(steps):
            honest.pass_step(step)
        more = sum(len(honest.units[step].rows) for _, step in honest.replayed)
        rows.append(row | {"replayed": more / honest.looks / TERMS.look_rows})
    return rows


def owners(size: int = 4) -> list[Row]:
    """Return what an honest validator has spent when it sees that its owner does not pay, in pay."""
    hours = settles_at(0) / HOUR_SECONDS
    spent = hours * USUAL * TERMS.accepts_required / size * LOOK
    return [
        {"kind": "owner", "name": name, "hours": hours, "spent": spent}
        for name in ("counts no look, or its friends' only", "calls true looks false, or early ones late")
    ] + [{"kind": "owner", "name": "takes its balance back after the notice", "hours": 0.0, "spent": 0.0}]


def study(size: Size) -> list[Row]:
    """Return all rows, each with its kind."""
    one_accept = replace(TERMS, accepts_required=1)
    every = strategies()
    rows = [alone(one, n, USUAL, size.days) for n in size.sizes for one in every]
    rows += [alone(one, n, rate, days) for n, rate, days in size.mild for one in every if one.name in MILD]
    rows += [alone(one, 4, 10, size.days) for one in every if one.name == HONEST]
    rows += [alone(one, n, USUAL, size.days, one_accept) for n in size.sizes for one in every if one.name in ONE_ACCEPT]
    rows += [found(one, n, rate, size.days) for _, one, _, _ in LAZY for n in size.sizes for rate in (4, USUAL)]
    rows += [lost(n, rate, size.months) for n in size.sizes for rate in (USUAL, 400)]
    rows += helped(size.days) + owners() + pools(size.steps)
    return rows


def figures(rows: Sequence[Row]) -> list[report.Figure]:
    """Return the figures of looking."""

    def of(kind: str, **only: Any) -> list[Row]:
        return [row for row in rows if row["kind"] == kind and all(row[k] == v for k, v in only.items())]

    usual = of("alone", accepts=TERMS.accepts_required, per_hour=USUAL)
    sizes = sorted({row["validators"] for row in usual})
    margins = [HONEST_NET - max(r["net"] for r in usual if r["validators"] == n and r["saved"] >= SAVES) for n in sizes]
    mild = [
        row["net"] - HONEST_NET
        for row in of("alone", accepts=TERMS.accepts_required)
        if row["saved"] < SAVES and row["name"] != HONEST
    ]
    small = [n for n in sizes if n <= 6]
    shown: list[tuple[str, list[float], float, str, bool]] = [
        ("honest_margin_zero", margins, 0.4, "c a call", False),
        ("mild_gain", mild, 0.002, "c a call", True),
    ]
    for name, one, hours, paid in LAZY:
        played = of("found", name=one.name, per_hour=USUAL)
        few = [row for row in played if row["validators"] in small]
        many = [row for row in played if row["validators"] == 9]
        shown += [
            (f"lazy_found_{name}", [row["hours"] for row in few], hours, "hours", True),
            (f"lazy_paid_{name}", [row["paid"] for row in few], paid, "of its false looks", True),
            (f"lazy_found_{name}_nine", [row["hours"] for row in many], LAZY_NINE[0], "hours", True),
            (f"lazy_paid_{name}_nine", [row["paid"] for row in many], LAZY_NINE[1], "of its false looks", True),
        ]
    base = [row for row in usual if row["name"] == HONEST]
    slow = of("alone", name=HONEST, per_hour=10)
    claim = CLAIM_GAS * GAS_PRICE / TERMS.pay_of(0)
    economy = Economy.of(TERMS, 0)

    def income(row: Row) -> float:
        return row["day"] - economy.day - claim

    shown += [
        ("seats_lost", [row["share"] for row in of("lost", per_hour=USUAL)], 0.002, "of the honest", True),
        ("seats_lost_400", [row["share"] for row in of("lost", per_hour=400)], 0.02, "of the honest", True),
        ("blocked", [row["blocked"] for row in usual if row["name"] == REJECTS], 0.01, "of the work", True),
        ("pool_called", [row["one_of_1"] for row in of("pool")], 14, "steps", True),
        ("pool_called_third", [row["one_of_3"] for row in of("pool")], 65, "steps", True),
        ("pool_replayed", [row["replayed"] for row in of("pool")], 0.01, "of the looks", True),
        ("owner_cost", [row["wages"] for row in base], 0.13, "of the pay", True),
        ("owner_checks", [row["checks"] for row in base], 0.2, "of one validator's work", True),
        ("honest_income", [income(row) for row in base if row["validators"] == 4], 0.0, "pay a day", False),
        ("honest_income_10", [income(row) for row in slow], 0.0, "pay a day", False),
    ]
    return [
        report.figure(name, values, target=target, unit=unit, part="looks", ratio=max if most else min, at_most=most)
        for name, values, target, unit, most in shown
        if values
    ]
