"""What verification costs and catches, against its targets.

    python benchmarks/verification.py [--json] [--runs 7] [--only engine]

Each of PARTS is a module with `figures(runs)`, which measures ours and the peer's in turn. Exits with 3 when a target
is missed. The peers are installed by `make bench-peers`, from source and into an environment of their own.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report

PARTS = {
    "codecs": "benchmarks.verification_codecs",
    "engine": "benchmarks.verification_engine",
    "adversaries": "benchmarks.adversaries",
}
"""Where the figures come from, in the order of the document."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    options = parser.parse_args()
    names = [options.only] if options.only else list(PARTS)
    figures = [figure for name in names for figure in importlib.import_module(PARTS[name]).figures(options.runs)]
    if options.json:
        print(report.document(figures, runs=options.runs, machine=report.machine()))
    else:
        print(report.machine(), *map(report.line, figures), sep="\n")
    return 0 if all(figure["holds"] for figure in figures) else 3


if __name__ == "__main__":
    sys.exit(main())
