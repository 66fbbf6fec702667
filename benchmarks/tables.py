"""The tables of the pages benchmarks, training and economics, out of the documents that the benchmarks print.

    python benchmarks/broadcast.py --json > broadcast.json
    python benchmarks/tables.py broadcast broadcast.json …

Each PART of a page is rewritten from one document or several, in their order. `make bench` does this for all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import DOCS, rewrite, table

PAGE = DOCS / "change" / "benchmarks.md"
ASYNC = "async"
"""The part that is on docs/use/training.md."""
ASYNC_HEADS = ("async level", "final score", "seconds to the score", "seconds in all")
ECONOMICS = "economics"
"""All parts of docs/understand/economics.md."""
LOOKS = "looks"
"""Those of economics that are about looking, from a document of part looks alone."""
SCALE_NODES, SCALE_RATE = 10_000, 24
"""Nodes, and commitments of each in an hour, of the page's section on scale."""
LEAST_BASE_FEE = 0.002
"""Gwei per gas: Base Mainnet's, since February 2026."""
DATA_FEE = 11
"""Gwei for the data of a commitment: see the page."""
HEADS = ("figure", "unit", "ours", "peer", "limit", "ratio", "target", "runs")


def part(documents: Sequence[dict[str, Any]]) -> str:
    """Return the figures of some documents as one table, and the machines they were measured on."""
    figures = [figure for document in documents for figure in document["figures"]]
    machines = dict.fromkeys(document["machine"] for document in documents)
    return "\n\n".join([table(HEADS, map(row, figures)), "Measured on: " + "; ".join(machines) + "."])


def async_part(document: dict[str, Any]) -> str:
    """Return the table of async levels from asynchrony.py's document."""
    (figure,) = (figure for figure in document["figures"] if figure["name"] == "async_speedup")
    about = (
        f"{figure['seeds']} seeds, {figure['updates']} updates each; the models began at {figure['base']:.3f}, and the "
        f"score timed to is {figure['least']:.3f}. Measured on: {document['machine']}."
    )
    return "\n\n".join([table(ASYNC_HEADS, map(async_row, figure["levels"])), about])


def async_row(level: dict[str, Any]) -> tuple[str, ...]:
    """Return a row: a level's final score, and how long it took."""
    within, seconds, spread = level["final_within"], level["seconds_to_score"], level["seconds_without_one"]
    final = f"{level['final']:.3f}" + ("" if within is None else f" ± {within:.3f}")
    timed = "not reached" if seconds is None else f"{seconds:.0f}"
    timed += f" ({spread[0]:.0f} to {spread[1]:.0f})" if spread else ""
    return str(level["level"]), final, timed, f"{level['seconds']:.0f}"


def row(figure: dict[str, Any]) -> tuple[str, ...]:
    """Return a row: medians with the least and the largest, and a missed target in bold."""
    ratio = number(figure["ratio"])
    return (
        f"`{figure['name']}`",
        figure["unit"],
        *(measured(figure, kind) for kind in ("ours", "peer", "limit")),
        ratio if figure["holds"] else f"**{ratio}**",
        f"{'≤' if figure.get('at_most') else '≥'} {number(figure['target'])}",
        str(figure.get("runs", 1)),
    )


def economics_parts(document: dict[str, Any]) -> dict[str, str]:
    """Return the parts of docs/understand/economics.md by name, from incentives.py's document: a column per terms."""
    worlds: dict[str, dict[str, list[dict[str, Any]]]] = document["worlds"]

    def beside(
        part: str,
        heads: Sequence[str],
        cells: Callable[[dict[str, Any]], list[str]],
        rows_of: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list,
    ) -> str:
        found = {terms: {row["name"]: cells(row) for row in rows_of(parts[part])} for terms, parts in worlds.items()}
        names = list(next(iter(found.values())))
        rows = [[name, *(cell for rows in found.values() for cell in rows[name])] for name in names]
        return table(["strategy", *(f"{head}, {terms} terms" for terms in found for head in heads)], rows)

    income, against = ("tokens a day", "honest beside it"), ("per_day", "honest")
    sizes = list(dict.fromkeys(row["validators"] for parts in worlds.values() for row in parts["validators"]))

    def by_strategy(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {"name": name} | {str(row["validators"]): row["at"] for row in rows if row["name"] == name}
            for name in dict.fromkeys(row["name"] for row in rows)
        ]

    def judging(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            row | {"name": f"{row['name']}, {row['validators']} validators"}
            for row in rows
            if row["name"].startswith("judge")
        ]

    def shown(*keys: str) -> Callable[[dict[str, Any]], list[str]]:
        return lambda row: [money(row[key]) if key in row else "" for key in keys]

    assumed = f"Assumed: {document['assumptions']}."
    figures = [figure for figure in document["figures"] if figure.get("part") != LOOKS]
    looking = looking_parts(document) if LOOKS in worlds.get("public", {}) else {}
    return looking | {
        "figures": "\n\n".join([part([document | {"figures": figures}]), assumed]),
        "workers": beside("workers", income, shown(*against)),
        "validators": beside(
            "validators", [f"{size} validators" for size in sizes], shown(*map(str, sizes)), by_strategy
        ),
        "judges": beside(
            "validators",
            ("lost in a founded case", "in an unfounded one"),
            lambda row: [money(row[key], 4) for key in ("lost_founded", "lost_unfounded")],
            judging,
        ),
        "cartels": beside(
            "cartels",
            ("the cartel's tokens a day", "an honest worker's", "an honest validator's"),
            shown("per_day", "honest_worker", "honest_validator"),
        ),
    }


def looking_parts(document: dict[str, Any]) -> dict[str, str]:
    """Return the parts that are about looking."""
    rows = document["worlds"]["public"][LOOKS]
    figures = [figure for figure in document["figures"] if figure.get("part") == LOOKS]

    def of(kind: str) -> list[dict[str, Any]]:
        return [row for row in rows if row["kind"] == kind]

    most = max(row["accepts"] for row in of("alone"))
    usual = [row for row in of("alone") if row["per_hour"] == 40]
    sizes = list(dict.fromkeys(row["validators"] for row in usual))

    def beside(played: list[dict[str, Any]]) -> list[list[str]]:
        names = dict.fromkeys(row["name"] for row in played)
        own = {(row["name"], row["validators"]): row for row in played}
        return [
            [name, share(own[name, sizes[0]]["saved"]), *(money(own[name, size]["net"]) for size in sizes)]
            for name in names
        ]

    heads = ["strategy", "saved", *(f"{size} validators" for size in sizes)]
    slow = [row for row in of("alone") if row["accepts"] == most and row["per_hour"] not in (10, 40)]
    return {
        "looking": part([document | {"figures": figures}]),
        "looks": table(heads, beside([row for row in usual if row["accepts"] == most])),
        "one-accept": table(heads, beside([row for row in usual if row["accepts"] == 1])),
        "rates": table(
            ["strategy", "validators", "commitments an hour", "c a call"],
            [[row["name"], str(row["validators"]), str(row["per_hour"]), money(row["net"], 3)] for row in slow],
        ),
        "lazy": table(
            ["invents", "validators", "commitments an hour", "hours", "paid by then", "checks"],
            [
                [
                    row["name"],
                    str(row["validators"]),
                    str(row["per_hour"]),
                    money(row["hours"], 1),
                    share(row["paid"], 1),
                    money(row["checks"]),
                ]
                for row in of("found")
            ],
        ),
        "helped": table(
            ["who", "of", "gains", "the others gain"],
            [
                [row["name"], f"{row['members']} of {row['validators']}", money(row["gain"]), money(row["others"])]
                for row in of("helped")
            ],
        ),
        "owners": table(
            ["an owner that", "is seen after", "a validator has spent"],
            [[row["name"], f"{row['hours']:.0f} hours", f"{money(row['spent'], 1)} pay"] for row in of("owner")],
        ),
        "pools": table(
            ["commitments a step", "validators", "every step false", "one of three", "replayed of honest nodes"],
            [
                [
                    str(row["each"]),
                    str(row["validators"]),
                    f"{row['one_of_1']:g}",
                    f"{row['one_of_3']:g}",
                    share(row["replayed"], 2),
                ]
                for row in of("pool")
            ],
        ),
    }


def share(value: float, digits: int = 0) -> str:
    """Return a share as a table has it."""
    return f"{value:.{digits}%}".replace("%", " %").replace("-", "\N{MINUS SIGN}")


def scale_part(commit_gas: int) -> str:
    """Return the table of what the chain costs at scale, for the gas of a commitment."""
    rate = SCALE_NODES * SCALE_RATE / 3600
    yearly = SCALE_NODES * SCALE_RATE * 24 * 365
    execution = commit_gas * LEAST_BASE_FEE
    fee = execution + DATA_FEE
    rows = [
        ("transactions", f"{SCALE_NODES:,} × {SCALE_RATE} / 3,600 s", f"{rate:.1f} a second"),
        ("gas", f"{rate:.1f} × {commit_gas:,} (`commit_median`)", f"{rate * commit_gas / 1e6:.2f} million a second"),
        ("state", f"{yearly / 1e9:.1f} billion words × 100 bytes", f"{yearly * 100 / 1e9:.0f} GB a year"),
        ("execution of a commitment", f"{commit_gas:,} × {LEAST_BASE_FEE} gwei", f"{execution:.0f} gwei"),
        ("its data", "130 bytes × (16 × 0.002269 × 0.83 + 1.055762 × 0.83 / 16) gwei", f"{DATA_FEE} gwei"),
        ("a year of both", f"{yearly / 1e9:.1f} billion × {fee:.0f} gwei", f"{yearly * fee / 1e9:.0f} ether"),
        ("the same by node-hour", f"one root for {SCALE_RATE} commitments", f"{rate / SCALE_RATE:.1f} a second"),
    ]
    return table(("what", "how", "how much"), rows)


def money(value: float, digits: int = 2) -> str:
    """Return tokens as a table has them."""
    return f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}")


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
    documents = [json.loads(path.read_text()) for path in options.documents]
    if options.part == ASYNC:
        (document,) = documents
        rewrite(DOCS / "use" / "training.md", ASYNC, async_part(document))
    elif options.part in (ECONOMICS, LOOKS):
        (document,) = documents
        parts = economics_parts(document) if options.part == ECONOMICS else looking_parts(document)
        for name, text in parts.items():
            rewrite(DOCS / "understand" / "economics.md", name, text)
    else:
        rewrite(PAGE, options.part, part(documents))
    for figure in documents[0]["figures"] if options.part == "gas" else ():
        if figure["name"] == "commit_median":
            rewrite(DOCS / "understand" / "economics.md", "scale", scale_part(round(figure["ours"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
