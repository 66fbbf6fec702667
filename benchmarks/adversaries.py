"""Every kind of cheat we know against the real pipeline: what catches it, how surely, and after how many rows.

    python benchmarks/adversaries.py [--json] [--write] [--rows 256] [--samples 200]

The adversaries are those of tests/adversaries: workers that do one thing wrong, on the demo's trained model, with the
real engine, real files and the validator's own entry, at production constants. Each makes whole commitments of 128
rows. Every row is judged by itself; then commitments are inspected as the default policy draws them, with lies in all
rows and in a tenth. --write puts the table into docs/verification.md. Takes about three minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.page import DOCS, rewrite, small, table
from tests.adversaries.kinds import ADVERSARIES, Adversary
from tests.adversaries.pipeline import KNOWN, POLICY, LocalBench, Outcome, describe, inspect, outcome, submit
from tests.adversaries.workshop import Workshop, open_workshop

DAY = 24
"""Commitments in a day, one an hour."""


async def measure(shop: Workshop, adversary: Adversary, bench: LocalBench, jobs: int, samples: int) -> Outcome:
    """One kind. Ends the program when the validator's own verdict is not what the rows say by themselves."""
    asked = [shop.job(KNOWN + i, step=adversary.step) for i in range(jobs)]
    made = [(job, adversary.lie(shop, job)) for job in asked]
    found = outcome(shop, adversary, made, samples=samples)
    for job, rows in made:
        inspection = await inspect(bench, shop, job, submit(adversary, job, rows, shop.honest(job)))
        if inspection.finding is not None and inspection.finding.reason not in adversary.reasons:
            sys.exit(f"{adversary.name}: caught for {inspection.finding.reason}: {inspection.finding.detail}")
        if inspection.finding is None and not adversary.subtle:
            sys.exit(f"{adversary.name}: not caught by the validator")
    return found


def measure_all(rows: int, samples: int) -> list[Outcome]:
    """All kinds in one workshop."""

    async def run(shop: Workshop) -> list[Outcome]:
        bench, jobs, found = LocalBench(shop), -(-rows // shop.rules.terms.positions), []
        for adversary in ADVERSARIES:
            found.append(await measure(shop, adversary, bench, jobs, samples))
            print(f"{adversary.name}: {found[-1].caught} of {samples}", file=sys.stderr)
        await bench.close()
        return found

    with tempfile.TemporaryDirectory() as folder, open_workshop(Path(folder)) as shop:
        return asyncio.run(run(shop))


def figures(runs: int, rows: int = 256, samples: int = 200) -> list[dict[str, Any]]:
    """The figures of DESIGN section 9, medians over so many runs."""
    return figures_of([measure_all(rows, samples) for _ in range(runs)])


def figures_of(runs: list[list[Outcome]]) -> list[dict[str, Any]]:
    plain = {adversary.name for adversary in ADVERSARIES if not adversary.subtle}
    caught = [[one.is_caught for one in run if one.name in plain] for run in runs]
    day = [[one.within_a_day(DAY) >= 0.99 for one in run] for run in runs]
    return [
        _figure("adversaries_caught", [sum(one) / len(one) for one in caught]),
        _figure("adversaries_caught_in_a_day", [sum(one) / len(one) for one in day]),
    ]


def _figure(name: str, shares: list[float]) -> dict[str, Any]:
    share = statistics.median(shares)
    return {
        "name": name,
        "ours": share,
        "min": min(shares),
        "max": max(shares),
        "peer": None,
        "limit": None,
        "ratio": share,
        "target": 1.0,
        "holds": share >= 1.0,
        "unit": "share of kinds",
    }


def page(found: list[Outcome]) -> str:
    """The part of docs/verification.md."""
    subtle = {adversary.name for adversary in ADVERSARIES if adversary.subtle}
    lines = [_line(one) for one in found]
    heads = (
        "adversary",
        "caught by",
        "measured, least",
        "median",
        "limit",
        "false rows",
        "rejected",
        "accused",
        "rows for 99%",
        "in one commitment",
        "a tenth",
        "predicted",
    )
    plain = [one for one in found if one.name not in subtle]
    day = "; ".join(
        f"*{one.name}* {one.caught / one.samples:.0%} in one commitment and {one.within_a_day(DAY):.2%} in {DAY}"
        for one in found
        if one.name in subtle
    )
    sample = POLICY.count(128, index=KNOWN, suspect=False)
    return f"""{table(heads, lines)}

{sum(one.is_caught for one in plain)} of {len(plain)} kinds are caught within one commitment, with {sample} of 128
rows re-run, as of a node that is no newcomer. Caught means: in at least 99% of {found[0].samples} samples. The other
{len(subtle)} take longer, because most of their rows are not false at all: {day}."""


def _line(one: Outcome) -> list[str]:
    told = describe(one)
    reasons = ", ".join(
        reason.replace("_", " ") for reason, _ in sorted(one.reasons.items(), key=lambda item: -item[1])
    )
    by_row = bool(one.rejected)
    return [
        one.name,
        reasons,
        small(told["least"]),
        small(told["median"]),
        small(told["reject"]),
        f"{one.false} of {one.rows}" if one.false else "the file",
        _share(one.rejected, one.false) if by_row else "",
        _share(one.accused, one.false) if by_row else "",
        str(one.needed) if one.needed else "",
        f"{one.caught / one.samples:.1%}",
        f"{one.caught_tenth / one.samples:.1%}",
        f"{one.predicted_tenth:.1%}",
    ]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--write", action="store_true", help="rewrite the table in docs/verification.md")
    parser.add_argument("--rows", type=int, default=256, help="rollouts of each kind, in whole commitments")
    parser.add_argument("--samples", type=int, default=200, help="samples drawn of each kind's commitments")
    options = parser.parse_args()
    found = measure_all(options.rows, options.samples)
    text = page(found)
    if options.write:
        rewrite(DOCS / "verification.md", "adversaries", text)
    if options.json:
        machine = platform.processor() or platform.machine()
        document = {"machine": machine, "runs": 1, "figures": figures_of([found])}
        print(json.dumps(document | {"adversaries": [describe(one) for one in found]}))
        return
    print(text)


if __name__ == "__main__":
    main()
