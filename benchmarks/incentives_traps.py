"""What looking pays where traps are planted: the rules of contracts/Traps.sol, played on random calls without a chain.

Part `traps` of `benchmarks/incentives.py`. `benchmarks/incentives_contracts.py` plays the same rules on the real
contracts and compares each credit.

One validator, or a group, deviates among honest ones. Money is in *c*, the cost of a look at a commitment, and by
*call*: a commitment for which the validator was called. Which commitments are traps is not drawn but averaged over:
each one counts as one `trap_every`-th of a trap, and as true work for what its neighbours owe. That is exact for the
mean, and needs a hundred times fewer commitments.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, Final

import numpy as np

from benchmarks import report
from muster.verification.planting import draw_plants
from muster.verification.sample_policy import detection

Row = dict[str, Any]
Mask = np.ndarray
"""bool [V, N, H, P]: validators, nodes, hours, commitments of a node in an hour; without V where it is of all."""

PRIZE_HOURS: Final = 24
ROWS, SAMPLE, PLANTED, EVERY = 128, 12, 16, 96
LOOK: Final = 1 / 24
"""c in pay: replaying 12 rows of 128; 24 cost a sixth of generating 128, which costs half of the pay."""
SIZES: Final = (4, 6, 9)
NODES, PER_HOUR, DAYS = 5, 4, 10
CHEAP: Final = 0.7
"""Share of an honest validator's work below which a deviation counts as one that saves work."""
SEEDS: Final = 60
FEW_CHEATS, BOUNTY = 1e-4, 400 / LOOK
"""Share of commitments that are false without being traps, and the bounty for one in c, by public terms."""

# --- The rules


@dataclass(frozen=True)
class Rules:
    """Terms, and what the contracts do with them."""

    validators: int
    prize: float = 13.0
    """R, in pay."""
    every: int = EVERY
    accepts: int = 1
    standby: float = 1.0
    """Share of R for the lowest hash where no called validator found the trap (`settle`)."""
    unticketed: float = 0.75
    """Share of R for the called where no ticket was shown."""
    planted: int = PLANTED
    window: float = 2.0
    """Prizes for standing by are for hashes below so many times the share of the called; so turns are taken there."""

    @property
    def chance(self) -> float:
        """Of a validator that is called for a commitment."""
        return self.accepts / self.validators

    @property
    def worth(self) -> float:
        """What R comes to for a commitment that may be a trap, in c."""
        return self.prize / self.every / LOOK

    def found(self, sample: int) -> float:
        """Return with what chance a sample finds a trap."""
        return detection(ROWS, self.planted, sample)


def next_shown(called: Mask, leaf: Mask) -> Mask:
    """Return where a validator can show a leaf about its next call of that node and hour, or has no such call."""
    fine, after = np.empty_like(called), np.ones(called.shape[:-1], dtype=bool)
    for place in reversed(range(called.shape[-1])):
        fine[..., place] = after
        after = np.where(called[..., place], leaf[..., place], after)
    return fine


def winners(called: Mask, hashes: np.ndarray, claimed: Mask) -> tuple[Mask, Mask]:
    """Return who gets the prize of a trap: the called who claimed it; if there are none, the lowest hash of the others.

    hashes: float or int [V, N, H, P]. claimed: found, sealed in time, and with the next leaf.
    """
    at_once = called & claimed
    order = np.where(claimed, hashes, np.inf)
    lowest = order == order.min(axis=0)
    return at_once, lowest & claimed & ~at_once.any(axis=0)


# --- Strategies


@dataclass(frozen=True)
class Looking:
    """How a validator inspects. A look finds a trap with `finds` and costs `cost` looks by the policy's sample."""

    name: str
    finds: float
    cost: float = 1.0
    share: float = 1.0
    """Of the commitments that it should look at; it accepts the others unseen."""
    turns: bool = True
    """Looks where none was called and its hash is the lowest."""
    jumps: bool = False
    """Looks before its turn, so that no one takes one after it."""
    answers: bool = True
    """Gives verdicts."""
    vouches: bool = True
    rejects: bool = False
    """Rejects all for a row that it guesses."""
    knows: float = 0.0
    """Share of traps of which it knows a row, called or not."""
    seals: str = "always"
    """Or "late", or "finds": only hours in which it found something."""


HONEST: Final = "honest"
EARLY: Final = "looks before its turn"
BLIND: Final = Looking("accepts all", finds=0.0, cost=0.0)


@dataclass(frozen=True)
class Group:
    """Validators 0 to `members` - 1 belong together."""

    members: int
    shares: bool = False
    """One look does for all of them."""
    plants: bool = False
    """They know the traps of node 0, and look at none of its commitments."""


@dataclass(frozen=True)
class Tally:
    """What came of one world, in c: float [V] each."""

    calls: np.ndarray
    looks: np.ndarray
    """Looks made, as they cost."""
    prizes: np.ndarray
    fines: np.ndarray
    bounties: np.ndarray
    claims: np.ndarray
    """Prizes by number."""
    commitments: int

    def net(self, cheats: float = 0.0) -> np.ndarray:
        """Return the income: fines are set off against prizes, and who owes more of them has no bounty."""
        bounties = np.where(self.prizes >= self.fines, cheats * self.bounties, 0.0)
        return np.maximum(self.prizes - self.fines, 0.0) + bounties - self.looks


@dataclass(frozen=True)
class Acts:
    """What validators make of commitments."""

    judged: Mask
    """A verdict was given."""
    looks: Mask
    named: Mask
    """If the commitment is a trap: a row of its map is rejected."""
    leaf: Mask
    """If it is true work: it is vouched for, or rejected."""


def decide(
    rules: Rules,
    strategies: Sequence[Looking],
    called: Mask,
    hashes: np.ndarray,
    random: np.random.Generator,
    group: Group | None = None,
) -> Acts:
    """Let each validator act by its strategy. hashes: of the calls, in proportion; float [V, N, H, P]."""
    luck, chosen, guesses = (random.random(called.shape) for _ in range(3))
    hints = random.random(called.shape[1:])
    members = slice(0, group.members if group else 0)

    def of(name: str) -> np.ndarray:
        return np.array([getattr(one, name) for one in strategies]).reshape(-1, 1, 1, 1)

    # 1. Who gives a verdict: the called at once, then the lowest hash if none came.
    paid = hashes < rules.window * rules.chance
    at_once = (called | (paid & of("jumps"))) & of("answers")
    waiting = np.where(paid & of("turns") & of("answers"), hashes, np.inf)
    turn = (waiting == waiting.min(axis=0)) & np.isfinite(waiting) & ~at_once.any(axis=0)
    judged = at_once | turn

    # 2. Who looks, and finds. Members of a group that share their looks make one, and find alike.
    own = np.zeros(called.shape, dtype=bool)
    if group and group.plants:
        own[members, 0] = True
    looks = judged & (chosen < of("share")) & (of("cost") > 0) & ~own
    seen = looks.copy()
    if group and group.shares:
        seen[members] = looks[members].any(axis=0)
        looks[members] &= np.cumsum(looks[members], axis=0) == 1
        luck[members] = luck[0]
    named = (seen & (luck < of("finds"))) | (judged & of("rejects") & (guesses < rules.planted / ROWS))
    return Acts(judged, looks, named | (hints < of("knows")) | own, judged & (of("vouches") | of("rejects")))


def play(rules: Rules, strategies: Sequence[Looking], seed: int, group: Group | None = None) -> Tally:
    """Play some days of a run. The same seed gives all strategies the same calls, and nested samples."""
    random = np.random.default_rng(seed)
    shape = (len(strategies), NODES, 24 * DAYS, PER_HOUR)
    hashes, lottery = random.random(shape), random.random(shape[1:])
    called = hashes < rules.chance
    acts = decide(rules, strategies, called, hashes, random, group)

    # 1. Who has sealed: how many of the last hours.
    count = np.full(shape, float(PRIZE_HOURS))
    for number, one in enumerate(strategies):
        if one.seals == "late" or not one.answers:
            count[number] = 0.0
        elif one.seals == "finds":
            hours = (acts.named[number] & (lottery < 1 / rules.every)).any(axis=(0, 2)).astype(float)
            before = np.convolve(hours, np.ones(PRIZE_HOURS), "full")[: len(hours)] - hours
            count[number] = (1 + before)[None, :, None]

    # 2. The prizes and fines.
    claimed = acts.named & (count > 0) & next_shown(called, acts.leaf) & (hashes < rules.window * rules.chance)
    full, standby = winners(called, hashes, claimed)
    prizes = (full + rules.standby * standby) * (count / PRIZE_HOURS) * rules.worth
    rejects = np.array([one.rejects for one in strategies]).reshape(-1, 1, 1, 1)
    cost = np.array([one.cost for one in strategies]).reshape(-1, 1, 1, 1)
    sharing = ((acts.looks & acts.named) | (acts.judged & rejects)) & (count > 0)

    def total(values: np.ndarray) -> np.ndarray:
        return values.sum(axis=(1, 2, 3)).astype(float)

    return Tally(
        calls=total(called),
        looks=total(acts.looks * cost),
        prizes=total(prizes),
        fines=total(acts.judged & rejects) * rules.worth * (1 - 1 / rules.every),
        bounties=total(sharing / np.maximum(sharing.sum(axis=0), 1)) * BOUNTY,
        claims=total(full | standby) / rules.every,
        commitments=int(np.prod(shape[1:])),
    )


# --- Which rows are looked at

PROMPT, MEDIAN, SPREAD, LONGEST = 100, 300, 0.7, 1_024
"""Tokens of a prompt; completions are lognormal."""
MADE: Final = 400
"""Commitments by which looks at chosen rows are measured."""


@cache
def made_rows(planted: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return commitments: tokens of each row's completion, and where the false tokens are: rows, places in [0, 1)."""
    random, lengths = Random(0), np.random.default_rng(0).lognormal(math.log(MEDIAN), SPREAD, (MADE, ROWS))
    lengths = np.clip(lengths.astype(int), 1, LONGEST)
    rows, places = np.zeros((MADE, planted), dtype=int), np.zeros((MADE, planted))
    for number, own in enumerate(lengths):
        alike = [np.ones(tokens) for tokens in own]
        plants = draw_plants((own + PROMPT).tolist(), alike.__getitem__, random)
        for place, one in zip(range(planted), plants, strict=False):
            rows[number, place], places[number, place] = one.row, one.token / own[one.row]
    return lengths, rows, places


def selective(rules: Rules, name: str, most: int, tokens: float, *, shortest: bool) -> Looking:
    """Return a look at so many rows, each up to a share of its tokens: the shortest rows, or any."""
    lengths, rows, places = made_rows(rules.planted)
    ranks = np.argsort(np.argsort(lengths, axis=1), axis=1) if shortest else np.tile(np.arange(ROWS), (MADE, 1))
    seen = np.take_along_axis(ranks, rows, axis=1) < most
    read = (PROMPT + tokens * lengths) * (ranks < most)
    cost = read.sum() / MADE / (SAMPLE * (lengths.mean() + PROMPT))
    return Looking(name, finds=float((seen & (places < tokens)).any(axis=1).mean()), cost=float(cost))


def best_cheap(rules: Rules, looks: Sequence[Looking]) -> Looking:
    """Return the look that pays most of those that save work."""
    return max((one for one in looks if one.cost < CHEAP), key=lambda one: rules.worth * one.finds - one.cost)


@cache
def deviations(rules: Rules) -> tuple[Looking, ...]:
    """Return what a single validator may do instead; the first is what it should do."""
    honest = Looking(HONEST, finds=rules.found(SAMPLE))
    by_rows = [
        Looking(f"{rows} of {SAMPLE} rows", finds=rules.found(rows), cost=rows / SAMPLE) for rows in (1, 2, 4, 6, 8)
    ]
    counts = (1, 2, 4, 8, 12, 16, 20, 24, 32)
    short = [selective(rules, f"the {n} shortest rows", n, 1.0, shortest=True) for n in counts]
    starts = [
        selective(rules, f"the first {share:.0%} of {n} rows".replace("%", " %"), n, share, shortest=False)
        for share in (0.1, 0.25, 0.5)
        for n in (8, 12, 16, 24, 48, ROWS)
    ]
    return (
        honest,
        *by_rows,
        best_cheap(rules, short),
        best_cheap(rules, starts),
        replace(honest, name="looks at half of its calls", share=0.5),
        replace(honest, name="the called only", turns=False),
        replace(honest, name=EARLY, jumps=True),
        replace(by_rows[3], name=f"{EARLY}, at half of the sample", jumps=True),
        replace(honest, name="never vouches", vouches=False),
        replace(honest, name="seals late", seals="late"),
        replace(honest, name="seals only with a find", seals="finds"),
        BLIND,
        replace(BLIND, name="rejects all", rejects=True),
        replace(BLIND, name="abstains", answers=False),
        replace(BLIND, name="copies what became public", seals="late"),
    )


# --- Measuring


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and how far it may be off: a 95 % interval."""
    return statistics.mean(values), 1.96 * statistics.stdev(values) / math.sqrt(len(values))


def alone(rules: Rules, seeds: int = SEEDS) -> list[Row]:
    """Let each strategy be played by one validator among honest ones: its income by call."""
    honest, *others = deviations(rules)
    rest = [honest] * (rules.validators - 1)
    base = [play(rules, [honest, *rest], seed) for seed in range(seeds)]
    rows: list[Row] = []
    for one in (honest, *others):
        worlds = base if one is honest else [play(rules, [one, *rest], seed) for seed in range(seeds)]
        row: Row = {"name": one.name, "validators": rules.validators}
        row["cost"] = statistics.mean(float(w.looks[0] / b.looks[0]) for w, b in zip(worlds, base, strict=True))
        for key, cheats in (("none", 0.0), ("few", FEW_CHEATS)):
            income = [float(w.net(cheats)[0] / w.calls[0]) for w in worlds]
            lost = [float(b.net(cheats)[0] / b.calls[0]) - own for b, own in zip(base, income, strict=True)]
            row[key], row[f"{key}_within"] = spread(income)
            row[f"{key}_margin"], row[f"{key}_margin_within"] = spread(lost)
        rows.append(row)
    return rows


USUAL: Final = "gives tickets, and shows its masters"
CARTELS: Final = ((1, 4), (2, 4), (3, 4), (4, 9))


@dataclass(frozen=True)
class Coalition:
    """A group that deviates among honest validators, and what it does. `Rules` may be the owner's part of it."""

    name: str
    validators: int
    group: Group
    looking: Callable[[Looking], Looking] = lambda honest: honest


def coalitions() -> list[Coalition]:
    """Return who may gain together: those who look, plant, buy tickets, and friends of the owner."""
    found = [
        Coalition(f"{k} of {n} share their looks", n, Group(k, shares=True))
        for k, n in ((2, 4), (2, 6), (2, 9), (4, 9))
    ]
    found += [Coalition(f"{k} of {n} have a node that plants", n, Group(k, plants=True)) for k, n in CARTELS]
    for n in SIZES:
        found.append(
            Coalition(f"1 of {n} buys half of the tickets, and looks", n, Group(1), lambda one: replace(one, knows=0.5))
        )
        found.append(
            Coalition(
                f"1 of {n} buys half of the tickets, and is blind", n, Group(1), lambda _: replace(BLIND, knows=0.5)
            )
        )
    for k, n in CARTELS:
        found.append(
            Coalition(f"{k} of {n} are told all traps by the owner", n, Group(k), lambda _: replace(BLIND, knows=1.0))
        )
    return found


def together(one: Coalition, rules: Rules, seeds: int = SEEDS) -> Row:
    """Return what each member gains over looking honestly, in c a call, and what the owner pays more, in pay."""
    honest, members = deviations(rules)[0], one.group.members
    gains: list[float] = []
    owner: list[float] = []
    for seed in range(seeds):
        base = play(rules, [honest] * rules.validators, seed)
        looking = [one.looking(honest)] * members + [honest] * (rules.validators - members)
        played = play(rules, looking, seed, one.group)
        gained = (played.net() - base.net()) / base.calls
        gains.append(float(gained[:members].mean()))
        owner.append(float((played.prizes - base.prizes).sum() / base.commitments) * LOOK)
    row: Row = {"name": one.name, "validators": rules.validators}
    row["gain"], row["gain_within"] = spread(gains)
    row["owner"], _ = spread(owner)
    return row


def owners(rules: Rules, seeds: int = SEEDS) -> list[Row]:
    """Return what an owner pays by commitment, in pay, and what honest and blind validators earn a call, in c."""
    honest = deviations(rules)[0]

    def pays(found: float) -> list[Tally]:
        seen = replace(honest, finds=found)
        return [play(rules, [seen] * rules.validators, seed) for seed in range(seeds)]

    def row(name: str, worlds: Sequence[Tally], prizes: Callable[[Tally], float], blind: float) -> Row:
        paid = [prizes(world) for world in worlds]
        looks = [float(world.looks.sum() / world.commitments) for world in worlds]
        earned = [(own - look) / rules.accepts for own, look in zip(paid, looks, strict=True)]
        shown: Row = {"name": name, "validators": rules.validators, "blind": blind}
        shown["owner"], shown["owner_within"] = spread([own * LOOK + 1 / rules.every for own in paid])
        shown["honest"], shown["honest_within"] = spread(earned)
        shown["looks"], _ = spread(looks)
        return shown

    def prizes(world: Tally) -> float:
        return float(world.prizes.sum() / world.commitments)

    usual = pays(honest.finds)
    unticketed = rules.unticketed * rules.worth * rules.accepts
    withheld = 1.5 * rules.worth * rules.accepts
    return [
        row(USUAL, usual, prizes, 0.0),
        row("gives nobody a ticket", usual, lambda _: unticketed, unticketed),
        row("shows no master", usual, lambda _: withheld, withheld),
        row("gives tickets for true rows", pays(0.0), prizes, 0.0),
        row("gives tickets for one false row", pays(detection(ROWS, 1, SAMPLE)), prizes, 0.0),
    ]


@dataclass(frozen=True)
class Costs:
    """What a validator pays beside its looks, in pay."""

    seal: float
    claim: float
    """Of one trap: its ticket is shown, and the prize claimed."""
    withdraw: float
    """Once a day."""
    capital: float
    """What its stake would earn elsewhere in a day."""

    def by_day(self, claims: float) -> float:
        """Return what a day of hourly seals costs, with so many claims."""
        return 24 * self.seal + claims * self.claim + self.withdraw + self.capital


def incomes(rules: Rules, costs: Costs, seeds: int = SEEDS) -> Row:
    """Return an honest validator's pay a day after gas and capital, and the hourly work at which it is nothing."""
    worlds = [play(rules, [deviations(rules)[0]] * rules.validators, seed) for seed in range(seeds)]
    gross = [float(world.net().mean()) * LOOK / DAYS for world in worlds]
    claims = statistics.mean(float(world.claims.mean()) / DAYS for world in worlds)
    income, within = spread([own - costs.by_day(claims) for own in gross])
    least = NODES * PER_HOUR * costs.by_day(0.0) / (statistics.mean(gross) - claims * costs.claim)
    return {"validators": rules.validators, "income": income, "income_within": within, "least": least}


def tickets(rules: Rules, seeds: int = SEEDS) -> Row:
    """Return what a validator must know of the traps so that it earns by no look as much as by looking.

    knows: share of traps from which looking at the others pays it no more. bought: from which it earns as much as an
    honest validator that knows none.
    """
    honest = deviations(rules)[0]

    def income(looking: Looking) -> float:
        rest = [honest] * (rules.validators - 1)
        return statistics.mean(
            float(w.net()[0] / w.calls[0]) for w in (play(rules, [looking, *rest], s) for s in range(seeds))
        )

    # All is linear in what is known: two points make the line.
    none, some = (
        income(honest),
        {q: (income(replace(honest, knows=q)), income(replace(BLIND, knows=q))) for q in (0.3, 0.8)},
    )

    def zero(low: float, high: float) -> float:
        return 0.3 + 0.5 * low / (low - high)

    knows = zero(*(looks - blind for looks, blind in some.values()))
    bought = zero(*(none - blind for _, blind in some.values()))
    return {"validators": rules.validators, "prize": rules.prize, "knows": knows, "bought": bought}


def samples(rules: Rules) -> list[Row]:
    """Return what a look of each size earns in c: at most commitments, and at a node's first ones.

    There half as many rows are false, a sample has twice as many, and twice as many are traps.
    """
    first = replace(rules, planted=rules.planted // 2)
    return [
        {
            "rows": rows,
            "usual": rules.worth * rules.found(rows) - rows / SAMPLE,
            "first": 2 * first.worth * first.found(rows) - rows / SAMPLE,
        }
        for rows in (1, 6, 8, 10, 12, 16, 20, 24, 32)
    ]


# --- All of it

PRESENT, UNBOUNDED = "as the contracts are", "a prize for every turn"


def rules_of(name: str, validators: int) -> Rules:
    """Return the rules and terms of that name."""
    present = Rules(validators)
    return present if name == PRESENT else replace(present, window=math.inf, prize=12.5, every=100)


def study(costs: Costs, seeds: int = SEEDS) -> list[Row]:
    """Return all rows, each with its kind and its rules."""
    rows: list[Row] = []
    for name in (PRESENT, UNBOUNDED):
        found: dict[str, list[Row]] = {
            "coalition": [together(one, rules_of(name, one.validators), seeds) for one in coalitions()]
        }
        for size in SIZES:
            rules = rules_of(name, size)
            found.setdefault("alone", []).extend(alone(rules, seeds))
            found.setdefault("owner", []).extend(owners(rules, seeds))
            found.setdefault("income", []).append(incomes(rules, costs, seeds))
            found.setdefault("ticket", []).append(tickets(rules, seeds))
        found["sample"] = samples(rules_of(name, SIZES[0]))
        rows += [{"kind": kind, "rules": name, **row} for kind, own in found.items() for row in own]
    return rows


def figures(rows: Sequence[Row]) -> list[report.Figure]:
    """Return the figures of the contracts as they are."""

    def of(kind: str, key: str) -> list[float]:
        return [row[key] for row in rows if (row["kind"], row.get("rules")) == (kind, PRESENT)]

    def least(keep: Callable[[Row], bool]) -> list[float]:
        found = [
            (row["validators"], row["none_margin"])
            for row in rows
            if (row["kind"], row.get("rules")) == ("alone", PRESENT) and row["name"] != HONEST and keep(row)
        ]
        return [min(margin for own, margin in found if own == size) for size in SIZES]

    usual = [row for row in rows if row["kind"] == "owner" and row["rules"] == PRESENT and row["name"] == USUAL]
    limits = [1.1 * (row["honest"] + row["looks"]) * LOOK + 1 / EVERY for row in usual]
    at_least: dict[str, Any] = {"ratio": min}
    at_most: dict[str, Any] = {"ratio": max, "at_most": True}
    call, share = "c a call", "of the traps"
    half = f"{SAMPLE // 2} of {SAMPLE} rows"
    shown: list[tuple[str, list[float], float, str, dict[str, Any]]] = [
        ("honest_margin_zero", least(lambda r: r["cost"] < CHEAP), 0.25, call, at_least),
        ("honest_margin_half", least(lambda r: r["name"] == half), 0.25, call, at_least),
        ("turn_margin", least(lambda r: r["name"].startswith(EARLY)), 0.0, call, at_least),
        ("honest_income_zero", of("income", "income"), 0.0, "pay a day", at_least),
        ("owner_cost", [row["owner"] for row in usual], 0.15, "of the pay", at_most | {"limit": limits}),
        ("ticket_price", of("ticket", "prize"), 13.0, "pay", at_most),
        ("ticket_knows", of("ticket", "knows"), 0.45, share, at_least),
        ("ticket_bought", of("ticket", "bought"), 0.45, share, at_least),
    ]
    return [
        report.figure(name, values, target=target, unit=unit, part="traps", **more)
        for name, values, target, unit, more in shown
    ]
