"""The tables of docs/benchmarks.md, out of the documents that the benchmarks print.

    python benchmarks/broadcast.py --json > broadcast.json
    python benchmarks/tables.py broadcast broadcast.json …

Each PART of the page is rewritten from one document or several, in their order. `make bench` does this for all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.page import DOCS, rewrite, table

PAGE = DOCS / "benchmarks.md"
HEADS = ("figure", "unit", "ours", "peer", "limit", "ratio", "target", "runs")


def part(documents: Sequence[dict[str, Any]]) -> str:
    """The figures of some documents as one table, and the machines they were measured on."""
    figures = [figure for document in documents for figure in document["figures"]]
    machines = dict.fromkeys(document["machine"] for document in documents)
    return "\n\n".join([table(HEADS, map(row, figures)), "Measured on: " + "; ".join(machines) + "."])


def row(figure: dict[str, Any]) -> tuple[str, ...]:
    """A line: medians with the least and the largest, and a target that was missed in bold."""
    ratio = number(figure["ratio"])
    return (
        f"`{figure['name']}`",
        figure["unit"],
        *(measured(figure, kind) for kind in ("ours", "peer", "limit")),
        ratio if figure["holds"] else f"**{ratio}**",
        f"{'≤' if figure.get('at_most') else '≥'} {number(figure['target'])}",
        str(figure.get("runs", 1)),
    )


def measured(figure: dict[str, Any], kind: str) -> str:
    value = figure[kind]
    if value is None:
        return ""
    low, high = figure.get(f"{kind}_range") or (value, value)
    return number(value) if low == high else f"{number(value)} ({number(low)} to {number(high)})"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", help="which part of the page")
    parser.add_argument("documents", nargs="+", type=Path, help="JSON documents")
    options = parser.parse_args()
    rewrite(PAGE, options.part, part([json.loads(path.read_text()) for path in options.documents]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
