"""How inspection holds against a hostile trainer, rare cheats and many cases at once.

    python benchmarks/inspection.py [--json] [--only NAME ...]

Takes at most 40 minutes. What each figure is, by name:

    pool_every        steps until a node is accused whose every step is false: the most, at 1, 5, 20, 60 commitments a step
    pool_third        the same where every third step is false; beside it where a third of them is drawn
    pool_honest       of a million honest nodes, at the worst share of leaning steps: how many are convicted
    juror_founded     rows that a case by a pool asks of a juror, the longest of the terms, in inspections
    juror_unfounded   the same of a case against honest work, in the mean over the blocks in which it is opened
    juror_ten         of ten cases at once: votes that a juror does not give; decoded rows in memory, in bundle members
"""

from __future__ import annotations

import sys

from benchmarks import inspection_pools
from benchmarks.report import Figure, parser, show

FIGURES = {**inspection_pools.FIGURES}


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES), metavar="NAME")
    options = made.parse_args()
    figures: list[Figure] = []
    for name in options.only:
        figures += FIGURES[name]()
    return show(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
