"""Which architectures the door lets in, and whether a row's value there depends on what stands beside it.

    python benchmarks/models.py --json [--only families,neighbour] [--quick]

families    tiny random models of `testbed.samples.families` at the static door; those that it lets in are measured as
            `muster model check` does: engine, replay and trainer against transformers' own model, in float32. The
            share of all that is refused in words or exact to 1e-4.
neighbour   of those let in: the largest change of a row's log-probabilities, in nats, by the rows beside it, in the
            engine and in the trainer. Rows from 2 tokens to beyond every threshold of the configuration.

It takes ten minutes; --quick leaves out the measuring of all but five.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from muster.authoring.models.door import check_checkpoint
from muster.authoring.models.measured import ModelCheck, measure
from muster.errors import ConfigError, MusterError
from testbed.samples.families import KINDS, VARIANTS, write_family

LONGEST: Final = 160
EXACT: Final = 1e-4
QUICK: Final = 5
NAMES: Final = ("families", "neighbour")


def judge(kind: str, settings: dict[str, object], *, engine: bool) -> ModelCheck | str:
    """Return the measurements of a model of the family, or why there are none: a refusal or an error."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        write_family(folder, kind, **settings)
        try:
            check_checkpoint(folder)
        except ConfigError as error:
            return f"refused: {error}"
        if not engine:
            return "let in"
        try:
            return asyncio.run(measure(folder, LONGEST, lambda _: None))
        except MusterError as error:
            return f"failed: {error}"


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="measure five models")
    parser.add_argument("--only", default=",".join(NAMES), help="figures, separated by commas")
    options = parser.parse_args()
    cases = {kind: (kind, settings) for kind, settings in KINDS.items()} | VARIANTS
    found: dict[str, ModelCheck | str] = {}
    measured: dict[str, ModelCheck] = {}
    for name, (kind, settings) in cases.items():
        found[name] = one = judge(kind, settings, engine=not options.quick or len(measured) < QUICK)
        if isinstance(one, ModelCheck):
            measured[name] = one
        print(f"{name}: {one if isinstance(one, str) else one.fault or 'exact'}", file=sys.stderr)
    worst = {name: max(max(row.engine, row.trainer) for row in one.rows) for name, one in measured.items()}
    wrong = [name for name, one in measured.items() if one.fault or worst[name] > EXACT]
    wrong += [name for name, one in found.items() if isinstance(one, str) and one.startswith("failed")]
    beside = {name: max(max(row.neighbour, row.trainer) for row in one.rows) for name, one in measured.items()}
    counts = {"tried": len(found), "measured": len(measured), "wrong": wrong, "largest": max(worst.values())}
    figures = {
        "families": report.figure("families", 1 - len(wrong) / len(found), target=1.0, unit="of those tried", **counts),
        "neighbour": report.figure("neighbour", max(beside.values()), target=1e-4, unit="nats", at_most=True),
    }
    return report.show([figures[name] for name in NAMES if name in options.only.split(",")], as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
