"""What each strategy earns, of workers, validators, judges, owners and cartels, on the real contracts.

    python benchmarks/incentives.py [--json] [--terms public local] [--only workers validators …] [--seed N]
    python benchmarks/incentives.py --json --merge FILE…

Every world is a run on a separate Anvil whose clock is moved: weeks of commitments, inspections, cases, seals and
claims by honest parties and one that deviates (testbed/economy). Income per day is an operator's wallet, free balance
and locks at the end, less what it began with, its compute, its gas and what its stakes would have earned elsewhere.
What the contracts do not know is assumed, and printed (testbed/economy/assumptions.py).

    honest_margin   (honest income − that of the best deviating strategy) / honest income, the lowest over all
                    strategies of one party, and over public and local terms
    honest_margin_quiet
                    the same of a validator that inspects nothing, where there is a cheater in ten days
    bait_cost       tokens that a validator loses per file that comes only when it is accused, gas aside
    judge_margin    tokens per case that a judge who replays earns more than one who votes unseen, at one guilty case in
                    twenty: the lower of acquitting and convicting unseen
    junk_ratio      tokens of an owner that junk binds per token that its author loses
    shopping_gain   work that eight keys save at the same pay, of which the shortest draw is taken each time
    withdrawn       tokens of reserved pay that an owner keeps from workers by withdrawing and closing
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

from benchmarks import report
from muster.constants import TOKEN
from muster.contracts import registry, runs
from muster.contracts.court import Outcome
from muster.protocol.kinds import Kind
from muster.protocol.terms import Terms, WorkClass
from muster.protocol.terms_file import LOCAL_DEFAULTS, PUBLIC_DEFAULTS
from testbed.economy.assumptions import Assumptions
from testbed.economy.chain import WorldChain
from testbed.economy.parties import (
    BLIND,
    FAITHFUL,
    FRIEND,
    HONEST,
    LAZY_JUDGES,
    MOB,
    SHIELD,
    SLANDERER,
    VALIDATORS,
    WORKERS,
    Income,
    Upload,
    Validating,
    Working,
)
from testbed.economy.world import World
from testbed.samples.terms import made_terms

TERMS: Final = {"public": PUBLIC_DEFAULTS, "local": LOCAL_DEFAULTS}
BUDGETS: Final = (8, 12, 16)
"""Of `muster run template`."""
GUILTY: Final = 0.05
"""Share of the cases that judges are measured with."""
CARTELS: Final = ((1, 4), (2, 4), (3, 4), (4, 9))

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

    def validators(self, chain: WorldChain, **assumed: Any) -> list[Row]:
        """Let each deviating validator serve beside five honest ones, each in a separate world."""
        rows: list[Row] = []
        for strategy in VALIDATORS:
            world = self.world(chain, [FAITHFUL] * 5 + [strategy], [HONEST] * 5, **assumed)
            world.live()
            rows.append(one_against_the_rest(world))
        return rows

    def quiet(self, chain: WorldChain) -> list[Row]:
        """Let a blind sealer serve in a run with few cheaters."""
        world = self.world(chain, [FAITHFUL] * 5 + [BLIND], [HONEST] * 5, cheat_every=240)
        world.live()
        return [one_against_the_rest(world)]

    def judges(self, chain: WorldChain) -> list[Row]:
        """Let each kind of lazy judge serve where a slanderer makes nineteen of twenty cases unfounded."""
        rows: list[Row] = []
        slander = (1 / GUILTY - 1) / (24 * 4 * 5)
        for strategy in LAZY_JUDGES:
            judges = [replace(SLANDERER, slanders=slander)] + [FAITHFUL] * 5 + [strategy]
            world = self.world(chain, judges, [HONEST] * 5, days=6)
            world.live()
            outcomes = [case.outcome for case in world.cases.ended]
            row = one_against_the_rest(world, first=1)
            per_case = (row["honest"] - row["per_day"]) * world.assumptions.days / len(outcomes)
            guilty = outcomes.count(Outcome.GUILTY) / len(outcomes)
            rows.append(
                row | {"cases": len(outcomes), "guilty": round(guilty, 3), "margin_per_case": round(per_case, 3)}
            )
        return rows

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
        world.accuse_latest(worker, world.validators[0], Kind.ACTIVATION_MISMATCH)
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


def one_against_the_rest(world: World, first: int = 0) -> Row:
    """Compare the last validator with the honest ones before it."""
    *others, last = world.validators
    honest = mean_income(world.income(one.operator) for one in others[first:])
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
        for name in ("money", "compute", "gas", "capital", "days")
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
    "judges": Study.judges,
    "baits": Study.baits,
    "junk": Study.junk,
    "owner": Study.owner,
    "cartels": Study.cartels,
}


def figures(found: dict[str, dict[str, list[Row]]]) -> list[report.Figure]:
    """Return the figures of all worlds, by terms and part."""

    def over(part: str, key: str, *, only: Sequence[str] = ()) -> list[float]:
        rows = [row for parts in found.values() for row in parts.get(part, ())]
        return [row[key] for row in rows if key in row and (not only or row["name"] in only)]

    unseen = [one.name for one in LAZY_JUDGES[:2]]
    margins = over("workers", "margin") + over("validators", "margin")
    saved = [1 - work for work in over("workers", "work", only=["shopper, 8 keys"])]
    bound = [row["bound"] / row["lost"] for parts in found.values() for row in parts.get("junk", ())]
    income, least, most = (
        "of the honest income",
        {"ratio": min, "target": 0},
        {"ratio": max, "target": 0, "at_most": True},
    )
    shown: list[tuple[str, list[float], str, dict[str, Any]]] = [
        ("honest_margin", margins, income, least),
        ("honest_margin_quiet", over("quiet", "margin"), income, least),
        ("bait_cost", over("baits", "lost"), "tokens", most),
        ("judge_margin", over("judges", "margin_per_case", only=unseen), "tokens per case", least),
        ("shopping_gain", saved, "of the work", most | {"target": 0.01}),
        ("junk_ratio", bound, "tokens bound per token lost", most | {"target": 1}),
        ("withdrawn", over("owner", "withheld"), "tokens", most),
    ]
    return [report.figure(name, values, unit=unit, **more) for name, values, unit, more in shown if values]


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--terms", nargs="+", choices=sorted(TERMS), default=list(TERMS))
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--merge", nargs="+", type=Path, help="run nothing: put earlier runs' documents together")
    options = parser.parse_args()

    found: dict[str, dict[str, list[Row]]] = {}
    for path in options.merge or ():
        for name, parts in json.loads(path.read_text())["worlds"].items():
            found.setdefault(name, {}).update(parts)
    for name in () if options.merge else options.terms:
        study, parts = Study(terms(name), options.seed), found.setdefault(name, {})
        for part in options.only:
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder, WorldChain.open(Path(folder)) as chain:
                parts[part] = PARTS[part](study, chain)
            print(f"{name} terms, {part}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    assumed = Assumptions().shown()
    return report.show(figures(found), as_json=options.json, assumptions=assumed, worlds=found)


if __name__ == "__main__":
    sys.exit(main())
