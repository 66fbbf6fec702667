"""What verification costs and catches, against its targets; --write: the tables of docs/understand/verification.md.

    python benchmarks/verification.py [--json] [--write] [--only engine [--runs 7]]

Each of PARTS measures ours and the peer's in turn; together they take about an hour and a half on two cores. Exits with
3 when a target is missed. `make bench-peers` builds the peer from source, in a separate environment.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report


@dataclass(frozen=True)
class Part:
    """Figures that are measured together."""

    module: str
    """Has `figures(runs)`, or with tables `figures(runs, write=…)`."""
    runs: int
    """How often each figure is measured."""
    tables: bool = False

    def figures(self, runs: int | None, *, write: bool) -> list[report.Figure]:
        module = importlib.import_module(self.module)
        options = {"write": write} if self.tables else {}
        return module.figures(self.runs if runs is None else runs, **options)


PARTS = {
    "proofs": Part("benchmarks.verification_proofs", 7),
    "engine": Part("benchmarks.verification_engine", 40),
    "matmul": Part("benchmarks.verification_matmul", 1),
    "adversaries": Part("benchmarks.adversaries", 1, tables=True),
    "steering": Part("benchmarks.steering", 1),
    "day": Part("benchmarks.day", 1, tables=True),
    "calibration": Part("benchmarks.calibrate", 1, tables=True),
}
"""Where the figures come from, in the order of the document."""


def main() -> int:
    parser = report.parser(__doc__, write="the tables in docs/understand/verification.md")
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    parser.add_argument("--runs", type=int, help="how often that part is measured")
    options = parser.parse_args()
    if options.runs is not None and options.only is None:
        parser.error("--runs goes with --only: the parts need different numbers of runs")
    parts = [PARTS[options.only]] if options.only else list(PARTS.values())
    figures = [figure for part in parts for figure in part.figures(options.runs, write=options.write)]
    return report.show(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
