"""What each strategy earns, of workers, validators, judges, owners and cartels, on the real contracts.

    python benchmarks/incentives.py [--json] [--terms public local] [--only workers validators …] [--seed N]
    python benchmarks/incentives.py --only looks [--quick] [--json]
    python benchmarks/incentives.py --json --merge FILE…

Every world is a run on a separate Anvil whose clock is moved: weeks of commitments, inspections, cases, seals and
claims by honest parties and one that deviates (testbed/economy). Income per day is an operator's wallet, free balance
and locks at the end, less what it began with, its compute, its gas and what its stakes would have earned elsewhere, and
for a validator the wages of its looks.
What the contracts do not know is assumed, and printed (testbed/economy/assumptions.py).

A validator that deviates is compared with an honest one in its place. Each world has one founded case a day, and after
these one unfounded case from each validator that inspects. No case changes what another pays, so the income at any
share of unfounded cases follows from the two.

    honest_margin   (honest income − that of the best deviating strategy) / honest income, where one case in 1,000 is
                    unfounded: the lowest over all strategies of one party and over public and local terms, with 4, 6
                    and 9 validators
    judge_margin    the same of judges who inspect and accuse, and judge by less than a replay
    honest_margin_founded
                    honest_margin where every case is founded
    honest_margin_quiet
                    the same of a validator that inspects nothing, where there is a cheater in ten days
    judge_gain      tokens per case that a judge who replays earns more than one who votes unseen, at one guilty case in
                    twenty: the lower of acquitting and convicting unseen
    copycat         share of the bounties that a validator gets who opens a copy of each finder's case
    throttle        pay that an honest worker at full rate cannot earn in 8 days since two of four validators open
                    unfounded cases against it one after another, over what the two lose
    rotation        tokens paid for false work without complaint before all validators had changed their keys
    silence         tokens that a judge with a receipt earns more by a verdict than by showing the receipt
    bait_cost       tokens that a validator loses per file that comes only when it is accused, gas aside
    junk_ratio      tokens of an owner that junk binds per token that its author loses
    shopping_gain   work that eight keys save at the same pay, of which the shortest draw is taken each time
    withdrawn       tokens of reserved pay that an owner keeps from workers by withdrawing and closing

Part `looks` needs no chain: benchmarks/looking_world.py plays the rules by which validators are called, checked and
paid, without a cheat. c: the cost of a look; a call: a place that an honest validator holds.

    honest_margin_zero
                    honest income − that of the best deviation that saves 8 % of a look, with 4, 5, 6 and 9 validators
    mild_gain       the most that a deviation gains that saves less, at 4, 40 and 400 commitments an hour
    lazy_found_…    hours from the first look until who invents all, half, or one row of twelve counts no more
    lazy_paid_…     share of its false looks that are paid
    seats_lost      share of honest validators that count no more after 30 days in bfloat16, by a hostile tenth
    blocked         share of the work that trains nothing by a validator that rejects all, after its first day
    pool_called     steps until a node is accused whose every step is false; pool_called_third: one of three
    pool_replayed   rows that are replayed so of honest nodes, as a share of the rows of looks
    owner_cost      wages, as a share of the pay
    owner_checks    what the trainer replays, as a share of one validator's work
    honest_income   an honest validator's pay a day, gas and capital deducted, with 4 validators
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import incentives_looks, report
from muster.constants import HOUR_SECONDS, TOKEN
from muster.contracts import registry, runs, token
from muster.contracts.court import Outcome
from muster.protocol.kinds import kind_of
from muster.protocol.terms import Terms, WorkClass
from muster.protocol.terms_file import LOCAL_DEFAULTS, PUBLIC_DEFAULTS
from testbed.economy.assumptions import Assumptions
from testbed.economy.chain import WorldChain
from testbed.economy.parties import (
    BLIND,
    CHEATER,
    COPYCAT,
    FAITHFUL,
    FRIEND,
    HONEST,
    KEEPER,
    LAZY_JUDGES,
    MOB,
    SHIELD,
    THROTTLER,
    VALIDATORS,
    WORKERS,
    Income,
    Upload,
    Validating,
    Validator,
    Working,
)
from testbed.economy.world import World
from testbed.samples.terms import made_terms

TERMS: Final = {"public": PUBLIC_DEFAULTS, "local": LOCAL_DEFAULTS}
BUDGETS: Final = (8, 12, 16)
"""Of `muster run template`."""
SIZES: Final = (4, 6, 9)
"""Validators of a run."""
UNFOUNDED: Final = 0.001
"""Share of all cases."""
SLANDERED: Final = 0.95
"""The same where slanderers are at work."""
CARTELS: Final = ((1, 4), (2, 4), (3, 4), (4, 9))
EAGER: Final = replace(HONEST, full_rate=True)
HOLDS: Final = ((1, 99), (26, 1), (26, 2), (26, 99))
"""When friends begin to hold a worker, in hours, and how many cases they open at most. After 26 hours it has as much
unsettled as a worker at full rate ever has."""
HELD_DAYS: Final = 8
PRODUCTION: Final = ("throttle", "rotation", "silence", "looks")
"""Parts that are played with public terms only."""
LOOKS: Final = "looks"
"""The part that is played without a chain."""

Row = dict[str, Any]


def terms(name: str) -> Terms:
    """Return the default terms of a run, its keys aside."""
    return made_terms(TERMS[name], classes=(WorkClass(10_000, BUDGETS),))


@dataclass(frozen=True)
class Study:
    """Worlds with the same terms, and what was found in them."""

    terms: Terms
    seed: int

    def world(
        self,
        chain: WorldChain,
        validators: Sequence[Validating],
        workers: Sequence[Working],
        **assumed: Any,
    ) -> World:
        chain.restart()
        return World.begin(chain, self.terms, Assumptions(seed=self.seed, **assumed), validators, workers)

    # ------------------------------------------------------------------------------------------ one party deviates

    def workers(self, chain: WorldChain) -> list[Row]:
        """Let all deviating workers work beside honest ones, as fast as the terms allow, before honest validators."""
        busy = min(60, self.terms.commitments_per_hour)
        world = self.world(
            chain, [FAITHFUL] * 6, [HONEST] * 3 + list(WORKERS), commitments_per_hour=busy, days=10, cheat_every=0
        )
        world.live()
        honest = mean_income(world.income(one.operator) for one in world.workers if one.strategy is HONEST)
        rows = [honest.row() | {"commitments": world.workers[0].made}]
        for one in world.workers:
            if one.strategy is not HONEST:
                row = compared(world.income(one.operator), honest)
                rows.append(row | {"commitments": one.made, "work": round(one.worked / max(1, one.made), 4)})
        return rows

    def validators(self, chain: WorldChain) -> list[Row]:
        """Let each deviating validator serve in place of an honest one."""
        rows: list[Row] = []
        for size in SIZES:
            honest = self.serve(chain, size, FAITHFUL)
            rows.append(honest)
            rows += [beside(self.serve(chain, size, strategy), honest) for strategy in VALIDATORS]
        return rows

    def serve(self, chain: WorldChain, size: int, strategy: Validating) -> Row:
        """Let the last of so many validators follow a strategy: a founded case a day, then unfounded ones."""
        world = self.world(chain, [FAITHFUL] * (size - 1) + [strategy], [HONEST] * 5, days=size)
        last = world.validators[-1]
        world.live()
        founded = world.income(last.operator)
        bounties = world.cases.bounties
        share = bounties[last.operator.address] / bounties.total()
        for one in world.validators:
            if one.strategy.inspects and one.strategy.accuses and world.is_open():
                world.cases.accuse(one, world.work()[0], kind_of("activation_mismatch"))
                world.wait(2)
        unfounded = (world.income(last.operator).net - founded.net) / size
        return founded.row() | {
            "name": strategy.name,
            "validators": size,
            "founded": founded.per_day,
            "unfounded": unfounded,
            "at": founded.per_day + unfounded * UNFOUNDED / (1 - UNFOUNDED),
            "bounties": round(share, 4),
        }

    def quiet(self, chain: WorldChain) -> list[Row]:
        """Let a blind sealer serve in a run with few cheaters."""
        world = self.world(chain, [FAITHFUL] * 5 + [BLIND], [HONEST] * 5, cheat_every=240)
        world.live()
        return [one_against_the_rest(world)]

    # ---------------------------------------------------------------------------------------------- special worlds

    def baits(self, chain: WorldChain) -> list[Row]:
        """Let one validator accuse late uploaders, who bring each file then."""
        mute = replace(FAITHFUL, accuses=False)
        late = [Working("bait", upload=Upload.ACCUSED)] * 5
        world = self.world(chain, [FAITHFUL, *[mute] * 3], late, commitments_per_hour=1, days=2, cheat_every=0)
        world.live()
        baits = sum(case.outcome is Outcome.CURED for case in world.cases.ended)
        accuser = world.income(world.validators[0].operator)
        return [{"baits": baits, "lost": -accuser.money / baits, "gas": accuser.gas / baits}]

    def junk(self, chain: WorldChain) -> list[Row]:
        """Let a worker commit junk, uninspected, until its stake covers no more; then convict it."""
        mute = replace(BLIND, seals=False)
        eager = replace(WORKERS[0], name="junk", false_share=1.0, full_rate=True)
        world = self.world(chain, [mute] * 4, [eager], cheat_every=0)
        for _ in range(48):
            world.pass_hour(working=True)
        worker = world.workers[0]
        work = chain.read(runs.work(worker.keys[0].address))
        before = chain.read(registry.node(worker.keys[0].address)).lock
        latest = world.latest(worker, false_rows=self.terms.positions)
        world.cases.accuse(world.validators[0], latest, kind_of("activation_mismatch"))
        world.settle()
        slashed = before - chain.read(registry.node(worker.keys[0].address)).lock
        bounty = slashed * self.terms.bounty_bps // 10_000
        bound = (work.next - work.settled) * work.pay
        return [{"bound": bound / TOKEN, "lost": (slashed - bounty) / TOKEN, "commitments": work.next}]

    def owner(self, chain: WorldChain) -> list[Row]:
        """Let the owner withdraw all that it can after three days of work, and close the run."""
        world = self.world(chain, [FAITHFUL] * 4, [HONEST] * 3, days=3, cheat_every=0)
        for _ in range(72):
            world.pass_hour(working=True)
        paid = world.close()
        world.settle()
        earned = sum(world.income(one.operator).money for one in world.workers)
        owed = sum(one.made for one in world.workers) * self.terms.pay_of(0) / TOKEN
        return [{"owner": paid / TOKEN, "owed": owed, "paid": earned, "withheld": owed - earned}]

    def cartels(self, chain: WorldChain) -> list[Row]:
        """Let some of the validators shield a worker of theirs, and others convict the honest."""
        rows: list[Row] = []
        for strategy in (SHIELD, MOB):
            for members, all_of_them in CARTELS:
                validators = [strategy] * members + [FAITHFUL] * (all_of_them - members)
                workers = [FRIEND, HONEST, HONEST]
                world = self.world(chain, validators, workers, days=6, cheat_every=0)
                world.live()
                rows.append(cartel_row(world, strategy, members))
        return rows

    # ------------------------------------------------------------------------------------------ attacks on the court

    def throttle(self, chain: WorldChain, holds: Sequence[tuple[int, int]] = HOLDS, days: int = HELD_DAYS) -> list[Row]:
        """Let two of four validators hold an honest worker at full rate by unfounded cases, one after another."""
        rows: list[Row] = []
        for begin, most in holds:
            world = self.world(chain, [THROTTLER] * 2 + [FAITHFUL] * 2, [EAGER], days=days, cheat_every=0)
            friends = world.validators[:2]
            for hour in range(1, 24 * days + 1):
                world.pass_hour(working=True)
                if hour >= begin:
                    hold(world, friends, most)
            [worker] = world.workers
            work = chain.read(runs.work(worker.keys[0].address))
            _, payable = chain.read(runs.claimable(worker.keys[0].address))
            world.settle()
            full = 24 * days * self.terms.commitments_per_hour
            row = {
                "begin": begin,
                "cases": [case.outcome.name.lower() for case in world.cases.ended],
                "made": worker.made / full,
                "withheld": (full - worker.made) * self.terms.pay_of(0) / TOKEN,
                "lost": -sum(world.income(one.operator).money for one in friends),
                "paid_in_time": (work.settled * work.pay + payable) / TOKEN,
                "worker": world.income(worker.operator).money,
            }
            rows.append(row)
        return rows

    def rotation(self, chain: WorldChain) -> list[Row]:
        """Let a cheater work for half a day, all validators change their keys, and an old one accuse it then."""
        rows: list[Row] = []
        for size in SIZES:
            world = self.world(chain, [BLIND] * size, [CHEATER], cheat_every=0)
            [worker] = world.workers
            before = chain.read(token.balance_of(worker.operator.address))
            for _ in range(12):
                world.pass_hour(working=True)
            world.rotate()
            latest = world.latest(worker, false_rows=self.terms.positions)
            accused = world.cases.accuse(world.validators[0], latest, kind_of("activation_mismatch"))
            world.settle()
            paid = (chain.read(token.balance_of(worker.operator.address)) - before) / TOKEN
            rows.append({"validators": size, "accused": accused, "made": worker.made, "paid": paid})
        return rows

    def silence(self, chain: WorldChain) -> list[Row]:
        """Let an honest worker be accused of missing data, by judges who all keep its receipt but for one or none."""
        rows: list[Row] = []
        for size in SIZES:
            earned: list[float] = []
            for last in (FAITHFUL, KEEPER):
                world = self.world(chain, [FAITHFUL, *[KEEPER] * (size - 2), last], [HONEST], cheat_every=0)
                world.cases.accuse(world.validators[0], world.work()[0], kind_of("data_missing"))
                world.wait(2)
                earned.append(world.income(world.validators[-1].operator).money)
            shown, kept = earned
            rows.append({"validators": size, "shown": shown, "kept": kept, "gain": kept - shown})
        return rows


def hold(world: World, friends: Sequence[Validator], most: int) -> None:
    """Have a case against the first worker open for another hour, by a friend that has none."""
    ours = [case for case in world.cases.open_cases if case.challenger in friends]
    soon = world.chain.now + HOUR_SECONDS + 60
    if len(ours) + len(world.cases.ended) == most or any(case.reveal_ends > soon for case in ours):
        return
    free = next(one for one in friends if all(case.challenger is not one for case in ours))
    world.cases.accuse(free, world.latest(world.workers[0]), kind_of("activation_mismatch"))


def beside(row: Row, honest: Row) -> Row:
    """Return a validator's row with what an honest one in its place has, and by which shares it earns less."""

    def margin(key: str) -> float:
        return (honest[key] - row[key]) / abs(honest[key])

    losses = {name: honest[name] - row[name] for name in ("founded", "unfounded")}
    return row | {
        "honest": honest["at"],
        "margin": margin("at"),
        "margin_founded": margin("founded"),
        "lost_founded": losses["founded"],
        "lost_unfounded": losses["unfounded"],
        "gain": (1 - SLANDERED) * losses["founded"] + SLANDERED * losses["unfounded"],
    }


def one_against_the_rest(world: World) -> Row:
    """Compare the last validator with the honest ones before it."""
    *others, last = world.validators
    honest = mean_income(world.income(one.operator) for one in others)
    return compared(world.income(last.operator), honest)


def compared(one: Income, honest: Income) -> Row:
    """Return a strategy's income, and by which share of the honest income it is lower."""
    margin = (honest.per_day - one.per_day) / abs(honest.per_day)
    return one.row() | {"honest": round(honest.per_day, 4), "margin": round(margin, 4)}


def mean_income(incomes: Iterable[Income]) -> Income:
    """Return the mean income of several parties."""
    found = list(incomes)
    parts = {
        name: statistics.mean(getattr(one, name) for one in found)
        for name in ("money", "wages", "compute", "gas", "capital", "days")
    }
    return Income(found[0].name, **parts)


def cartel_row(world: World, strategy: Validating, members: int) -> Row:
    """Return the joint income of a cartel and its worker, and that of the honest parties beside it."""
    cartel = [one.operator for one in world.validators if one.strategy.cartel] + [world.workers[0].operator]
    loyal = [world.income(one.operator).per_day for one in world.validators if not one.strategy.cartel]
    workers = [world.income(one.operator).per_day for one in world.workers[1:]]
    outcomes = [case.outcome.name.lower() for case in world.cases.ended]
    return {
        "name": f"{strategy.name}, {members} of {len(world.validators)}",
        "per_day": round(sum(world.income(one).per_day for one in cartel), 3),
        "honest_validator": round(statistics.mean(loyal), 3),
        "honest_worker": round(statistics.mean(workers), 3),
        "cases": {name: outcomes.count(name) for name in sorted(set(outcomes))},
    }


PARTS: Final[dict[str, Callable[[Study, WorldChain], list[Row]]]] = {
    "workers": Study.workers,
    "validators": Study.validators,
    "quiet": Study.quiet,
    "throttle": Study.throttle,
    "rotation": Study.rotation,
    "silence": Study.silence,
    "baits": Study.baits,
    "junk": Study.junk,
    "owner": Study.owner,
    "cartels": Study.cartels,
}


def figures(found: dict[str, dict[str, list[Row]]]) -> list[report.Figure]:
    """Return the figures of all worlds, by terms and part."""

    def over(part: str, key: str, **only: Any) -> list[float]:
        rows = [row for parts in found.values() for row in parts.get(part, ()) if key in row]
        return [row[key] for row in rows if all(row[name] in allowed for name, allowed in only.items())]

    def lowest(key: str, *more: float, **only: Any) -> list[float]:
        sizes = [over("validators", key, validators=[size], **only) for size in SIZES]
        return [min(*values, *more) for values in sizes if values]

    judges = [one.name for one in LAZY_JUDGES]
    workers = over("workers", "margin")
    saved = [1 - work for work in over("workers", "work", name=["shopper, 8 keys"])]
    bound = [bound / lost for bound, lost in zip(over("junk", "bound"), over("junk", "lost"), strict=True)]
    held = zip(over("throttle", "withheld"), over("throttle", "lost"), strict=True)
    income, least, most = (
        "of the honest income",
        {"ratio": min, "target": 0},
        {"ratio": max, "target": 0, "at_most": True},
    )
    shown: list[tuple[str, list[float], str, dict[str, Any]]] = [
        ("honest_margin", lowest("margin", *workers), income, least),
        ("judge_margin", lowest("margin", name=judges), income, least),
        ("honest_margin_founded", lowest("margin_founded", *workers), income, least),
        ("honest_margin_quiet", over("quiet", "margin"), income, least),
        ("judge_gain", over("validators", "gain", name=judges[:2]), "tokens per case", least),
        ("copycat", over("validators", "bounties", name=[COPYCAT.name]), "of the bounties", most),
        ("throttle", [pay / lost for pay, lost in held], "tokens withheld per token lost", most | {"target": 2}),
        ("rotation", over("rotation", "paid"), "tokens", most),
        ("silence", over("silence", "gain"), "tokens", most),
        ("bait_cost", over("baits", "lost"), "tokens", most),
        ("shopping_gain", saved, "of the work", most | {"target": 0.01}),
        ("junk_ratio", bound, "tokens bound per token lost", most | {"target": 1}),
        ("withdrawn", over("owner", "withheld"), "tokens", most),
    ]
    made = [report.figure(name, values, unit=unit, **more) for name, values, unit, more in shown if values]
    looking = [row for parts in found.values() for row in parts.get(LOOKS, ())]
    return made + (incentives_looks.figures(looking) if looking else [])


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--terms", nargs="+", choices=sorted(TERMS), default=list(TERMS))
    parser.add_argument("--only", nargs="+", choices=sorted([*PARTS, LOOKS]), default=[*PARTS, LOOKS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick", action="store_true", help="play a few days of looks, of the fewest and most validators"
    )
    parser.add_argument("--merge", nargs="+", type=Path, help="run nothing: put earlier runs' documents together")
    options = parser.parse_args()

    found: dict[str, dict[str, list[Row]]] = {}
    for path in options.merge or ():
        for name, parts in json.loads(path.read_text())["worlds"].items():
            found.setdefault(name, {}).update(parts)
    for name in () if options.merge else options.terms:
        study, parts = Study(terms(name), options.seed), found.setdefault(name, {})
        for part in [part for part in options.only if name == "public" or part not in PRODUCTION]:
            begun = time.monotonic()
            if part == LOOKS:
                parts[part] = incentives_looks.study(incentives_looks.QUICK if options.quick else incentives_looks.FULL)
            else:
                with tempfile.TemporaryDirectory() as folder, WorldChain.open(Path(folder)) as chain:
                    parts[part] = PARTS[part](study, chain)
            print(f"{name} terms, {part}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    assumed = Assumptions().shown()
    return report.show(figures(found), as_json=options.json, assumptions=assumed, worlds=found)


if __name__ == "__main__":
    sys.exit(main())
