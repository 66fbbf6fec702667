"""What inspection makes of hostile steps, honest work and cheats, against its targets.

    python benchmarks/inspection.py [--json] [--only NAME ...]

Takes two hours, hostile_real 40 minutes of them, and exits with 3 when a target is missed. What each figure is, by
name:

    hostile_steps     honest rows of the real engine on weights that are made to convict them: how many are accused
    hostile_real      the same of a pretrained model, by the worst kinds
    unrun             rows that no model wrote, and that are no longer accused once their honest spread is known
    judging           what a file takes whose rows are lies, and the worst that there can be, in replays of its sample
    let_in            files of random tokens that are accepted under a checkpoint that nodes let in
    last_norm         how many times the scale of usual models is let in; from which gain on random tokens pass
    sat_out           honest steps of a usual run that a worker sits out
    pool_every        steps until a node that is false in every one is accused: the most, of 1, 5, 20, 60 commitments
    pool_third        the same where every third step is false; beside it where a third of them is drawn
    pool_honest       of a million honest nodes, at the worst share of leaning steps: how many are convicted
    juror_founded     rows that a case by a pool asks of a juror, the longest of the terms, in inspections
    juror_unfounded   the same of a case against honest work, in the mean over the blocks in which it is opened
    look_honest       true numbers of looks that are called false, in any honest arithmetic, at usual and hostile steps
    look_lies         rows of looks that did not take place, or computed less, whose numbers pass
    look_cost         what a replay takes with the numbers of a look, in replays without; and bytes a row
    juror_ten         of ten cases at once: votes that a juror does not give; decoded rows in memory, in bundle members
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report

FIGURES = {
    "hostile_steps": "benchmarks.inspection_steps",
    "hostile_real": "benchmarks.inspection_steps",
    "unrun": "benchmarks.inspection_lies",
    "judging": "benchmarks.inspection_lies",
    "let_in": "benchmarks.inspection_lies",
    "last_norm": "benchmarks.inspection_lies",
    "sat_out": "benchmarks.inspection_steps",
    "pool_every": "benchmarks.inspection_pools",
    "pool_third": "benchmarks.inspection_pools",
    "pool_honest": "benchmarks.inspection_pools",
    "juror_founded": "benchmarks.inspection_pools",
    "juror_unfounded": "benchmarks.inspection_pools",
    "juror_ten": "benchmarks.inspection_pools",
    "look_honest": "benchmarks.inspection_looks",
    "look_lies": "benchmarks.inspection_looks",
    "look_cost": "benchmarks.inspection_looks",
}
"""By name: the module with a function of this name that returns the figure, or figures."""


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=FIGURES, metavar="NAME", help="these alone")
    options = parser.parse_args()
    figures = [figure for name in options.only for figure in getattr(importlib.import_module(FIGURES[name]), name)()]
    return report.show(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
