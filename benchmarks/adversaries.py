"""Every kind of cheat we know against the real pipeline: what catches it, how surely, and after how many rows.

    python benchmarks/adversaries.py [--json] [--write] [--rows 256] [--samples 200]

The adversaries are those of tests/adversaries: workers that do one thing wrong, on the demo's trained model, with the
real engine, real files and the validator's own entry, at production constants, under every profile. Each makes whole
commitments of 128 rows. Every row is judged by itself; then commitments are inspected as the default policy draws them,
with lies in all rows and in a tenth. --write puts the tables into docs/understand/verification.md. Takes about five
minutes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.report import DOCS, rewrite, small, table
from muster.protocol.terms import LOOK_ROWS
from muster.verification.profiles import CPU_FP32, PROFILES, Profile
from testbed.adversaries.kinds import ADVERSARIES, Adversary
from testbed.adversaries.lab import AdversaryLab, open_lab
from testbed.adversaries.pipeline import DAY, KNOWN, LocalContext, make, outcome

ROWS = 256
"""Rollouts of each kind."""
SAMPLES = 200
SURE = 0.99
"""Share of the samples in which a kind must be rejected to count as caught."""

Found = dict[str, Any]
"""What `testbed.adversaries.pipeline.Outcome` says of a kind."""


# --- Measuring


async def measure(shop: AdversaryLab, adversary: Adversary, context: LocalContext, jobs: int, samples: int) -> Found:
    """Measure one kind. Exits if the validator's verdict is not one of the expected ones."""
    made = [await make(context, shop, adversary, shop.job(KNOWN + i, step=adversary.step)) for i in range(jobs)]
    for finding in [one.finding for one in made if one.finding]:
        if finding.reason not in adversary.reasons:
            sys.exit(f"{adversary.name}: caught for {finding.reason}: {finding.detail}")
    return outcome(shop, adversary, made, samples=samples).describe()


def measure_all(profile: Profile, rows: int, samples: int) -> list[Found]:
    """Measure all kinds in one lab."""

    async def run(shop: AdversaryLab) -> list[Found]:
        context, jobs, found = LocalContext(shop), -(-rows // shop.rules.terms.positions), []
        for adversary in ADVERSARIES:
            found.append(await measure(shop, adversary, context, jobs, samples))
            print(f"{profile.name}: {adversary.name}: {found[-1]['in_one']:.1%}", file=sys.stderr)
        await context.close()
        return found

    with tempfile.TemporaryDirectory() as folder, open_lab(Path(folder), profile) as shop:
        return asyncio.run(run(shop))


# --- Figures


def figures(runs: int, *, write: bool = False, rows: int = ROWS, samples: int = SAMPLES) -> list[report.Figure]:
    """Return the figures of the demo's profile; with `write`, measure all profiles once for the page."""
    found = [report.apart(measure_all, CPU_FP32, rows, samples) for _ in range(runs)]
    if write:
        write_page(
            {
                name: found[0] if profile is CPU_FP32 else report.apart(measure_all, profile, rows, samples)
                for name, profile in PROFILES.items()
            }
        )
    return figures_of(found)


def figures_of(runs: Sequence[Sequence[Found]]) -> list[report.Figure]:
    once = [[is_caught(one) for one in run if one["name"] not in SUBTLE] for run in runs]
    day = [[one["in_a_day"] >= SURE for one in run] for run in runs]
    return [
        _share("adversaries_caught", [sum(one) / len(one) for one in once]),
        _share("adversaries_caught_in_a_day", [sum(one) / len(one) for one in day]),
    ]


SUBTLE = frozenset(adversary.name for adversary in ADVERSARIES if adversary.subtle)
"""Kinds whose rows are mostly what honest work would have been: counted over a day only."""


def is_caught(one: Found) -> bool:
    """Within one commitment."""
    return one["in_one"] >= SURE


def _share(name: str, shares: Sequence[float]) -> report.Figure:
    return report.figure(name, shares, ratio=min, target=1.0, unit="share of kinds")


# --- The page


def write_page(found: Mapping[str, Sequence[Found]]) -> None:
    rewrite(DOCS / "understand" / "verification.md", "adversaries", page(found))


def page(found: Mapping[str, Sequence[Found]]) -> str:
    """Return a part of docs/understand/verification.md: the demo's profile in full, of others the measured kinds."""
    first, *others = found
    plain = [one for one in found[first] if one["name"] not in SUBTLE]
    text = [
        f"### Under {first}",
        _table(found[first]),
        f"{sum(map(is_caught, plain))} of the {len(found[first])} kinds are caught by one look, which "
        f"re-runs {LOOK_ROWS} of 128 rows, as of a node that is no newcomer. Caught means: in at least "
        f"{SURE:.0%} of {plain[0]['samples']} samples. The other {len(SUBTLE)} take longer, because most of their rows "
        "are not false at all: " + _of_the_subtle(found[first]),
    ]
    for name in others:
        dear = [one for one in found[name] if one["reject"] is not None]
        missed = [one for one in dear if not is_caught(one) and one["name"] not in SUBTLE]
        names = ", ".join(f"*{one['name']}* ({one['in_one']:.0%})" for one in missed) or "none"
        text += [
            f"### Under {name}",
            "The kinds whose detection is a matter of measuring; the others are caught as above.",
            _table(dear),
            f"Not caught within one commitment in {SURE:.0%} of the samples: {names}. " + _of_the_subtle(found[name]),
        ]
    return "\n\n".join(text)


def _of_the_subtle(found: Sequence[Found]) -> str:
    shares = [
        f"*{one['name']}* {one['in_one']:.0%} in one commitment and {one['in_a_day']:.2%} in {DAY}"
        for one in found
        if one["name"] in SUBTLE
    ]
    return "; ".join(shares) + "."


HEADS = (
    *("adversary", "caught by", "measured, least", "median", "limit", "false rows", "rejected", "accused"),
    *("rows for 99%", "in one commitment", "a tenth", "predicted"),
)


def _table(found: Sequence[Found]) -> str:
    return table(HEADS, map(_line, found))


def _line(one: Found) -> list[str]:
    reasons = sorted(one["caught_by"].items(), key=lambda item: -item[1])
    false, whole = one["false_rows"], one["whole_file"]
    return [
        one["name"],
        ", ".join(reason.replace("_", " ") for reason, _ in reasons) or "nothing",
        small(one["least"]),
        small(one["median"]),
        small(one["reject"]),
        "the file" if whole else f"{false} of {one['rows']}",
        *("" if whole or not false else f"{one[name] / false:.1%}" for name in ("rejected", "accused")),
        "" if whole else str(one["rows_for_99"] or "never"),
        *(f"{one[name]:.1%}" for name in ("in_one", "tenth", "tenth_predicted")),
    ]


def main() -> int:
    parser = report.parser(__doc__, write="the table in docs/understand/verification.md")
    parser.add_argument("--rows", type=int, default=ROWS, help="rollouts of each kind, in whole commitments")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="samples drawn of each kind's commitments")
    options = parser.parse_args()
    found = figures(1, write=options.write, rows=options.rows, samples=options.samples)
    return report.show(found, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
