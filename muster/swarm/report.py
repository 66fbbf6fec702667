"""Report what a swarm did: tables for the terminal, and one self-contained HTML page."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.runtime.units import Tokens
from muster.swarm.summary import SwarmFacts


def lead(summary: Mapping[str, Any]) -> str:
    """Return the result of a swarm in one sentence."""
    score = summary["held_out"]
    gain = f"from {score['before']:.3f} to {score['after']:.3f}" if score["after"] is not None else "unmeasured"
    slashed = ", ".join(row["node"] for row in summary["slashes"]) or "none"
    solvency = "the contracts hold all they owe" if summary["solvent"] else "THE CONTRACTS HOLD LESS THAN THEY OWE"
    calls: Sequence[float] = summary["calls"]
    used = f"calls of tools per answer from {calls[0]:.2f} to {calls[-1]:.2f}; " if any(calls) else ""
    return (
        f"{summary['steps']} policy updates in {summary['wall_seconds']:.0f} s; held-out score {gain} on "
        f"{score['tasks']} tasks never trained on; {used}slashed: {slashed}; {solvency}."
    )


def comparison_sentence(comparison: Mapping[str, Any]) -> str:
    """Say how much more often the last model's sampled answers are right than the first one's."""
    return (
        f"Of {comparison['samples']} sampled answers to each of {comparison['tasks']} held-out tasks "
        f"{comparison['before']:.1%} were right before training and {comparison['after']:.1%} after step "
        f"{comparison['step']}: a gain of {comparison['gain']:.3f}, 95 % interval over tasks {comparison['low']:.3f} "
        f"to {comparison['high']:.3f}.{_by_part(comparison['parts'])}"
    )


def _by_part(parts: Sequence[Mapping[str, Any]]) -> str:
    """Say the shares of each part, where there are several."""
    if len(parts) < 2:
        return ""
    return " " + "; ".join(f"{one['name']}: {one['before']:.1%}, then {one['after']:.1%}" for one in parts) + "."


Row = Mapping[str, Any]
Rows = list[tuple[str, ...]]

TABLES: Final[dict[str, tuple[str, dict[str, Callable[[Row], object]]]]] = {
    "Nodes": (
        "nodes",
        {
            "node": lambda row: row["name"],
            "role": lambda row: row["role"] if row["honest"] else f"{row['role']}, cheats",
            "commitments": lambda row: row["commitments"],
            "rollouts": lambda row: row["rollouts"],
            "accepted": lambda row: row["accepted"],
            "rejected": lambda row: ", ".join(f"{n} {reason}" for reason, n in row["rejected"].items()) or "0",
            "earned": lambda row: Tokens(row["earned"]),
        },
    ),
    "Slashes": (
        "slashes",
        {
            "node": lambda row: row["node"],
            "for": lambda row: row["kind"].replace("_", " "),
            "case": lambda row: row["case"],
            "stake before": lambda row: Tokens(row["stake_before"]),
            "after": lambda row: Tokens(row["stake_after"]),
            "bounty": lambda row: Tokens(row["bounty"]),
            "votes": lambda row: f"{row['votes']['guilty']} of {row['votes']['jury']} guilty",
            "transaction": lambda row: row["transaction"],
        },
    ),
    "Claims": (
        "claims",
        {
            "operator of": lambda row: row["name"],
            "committed": lambda row: Tokens(row["committed"]),
            "voided": lambda row: Tokens(row["voided"]),
            "paid": lambda row: Tokens(row["paid"]),
        },
    ),
    "Looks": (
        "looking",
        {
            "validator": lambda row: row["name"] if row["honest"] else f"{row['name']}, invents",
            "looked at": lambda row: row["looked"],
            "counted": lambda row: row["counted"],
            "rows checked": lambda row: row["checked"],
            "false": lambda row: f"{row['false']}, counts no more" if row["barred"] else row["false"],
            "earned": lambda row: Tokens(row["earned"]),
            "paid": lambda row: Tokens(row["paid"]),
        },
    ),
    "Solvency": (
        "contracts",
        {
            "contract": lambda row: row["contract"],
            "tokens": lambda row: Tokens(row["balance"]),
            "owed": lambda row: Tokens(row["owed"]),
        },
    ),
    "Times": (
        "times",
        {"stage": lambda row: row["stage"].replace("_", " "), "seconds": lambda row: f"{row['seconds']:.1f}"},
    ),
}
"""By title: the part of the summary that a table shows, and its columns, by heading."""


def table_of(summary: Row, title: str) -> tuple[list[str], Rows, list[str]]:
    """Return the headings and rows of a table, and for each column `n` where it has numbers, else ""."""
    part, columns = TABLES[title]
    if part == "times":
        stages: Mapping[str, float] = summary["stage_seconds"]
        rows: list[Row] = [{"stage": name, "seconds": seconds} for name, seconds in stages.items()]
    else:
        rows = list(summary[part])
    if part == "contracts":
        rows.append({"contract": "all", "balance": summary["balances"], "owed": summary["owed"]})
    cells = [tuple(str(cell(row)) for cell in columns.values()) for row in rows]
    texts = [[row[i].replace(",", "").replace(".", "") for row in cells] for i in range(len(columns))]
    return list(columns), cells, ["n" if i and all(map(str.isdigit, column)) else "" for i, column in enumerate(texts)]


def terminal_summary(summary: Mapping[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [Text(lead(summary), style="bold"), Text()]
    if summary["comparison"] is not None:
        parts[1:] = [Text(comparison_sentence(summary["comparison"]), style="bold"), Text()]
    for title in TABLES:
        heads, rows, classes = table_of(summary, title)
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for head, kind in zip(heads, classes, strict=True):
            table.add_column(head, justify="right" if kind else "left", overflow="ellipsis")
        for row in rows:
            table.add_row(*(Text(value) for value in row))
        parts += [table, Text()]
    return Group(*parts)


def html(summary: Mapping[str, Any], facts: SwarmFacts) -> str:
    """Render the report as one HTML page that loads nothing. Texts of a model are hostile: Jinja escapes them."""
    from jinja2 import Environment, StrictUndefined

    comparison, page = summary["comparison"], Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    return (
        Environment(autoescape=True, trim_blocks=True, undefined=StrictUndefined)
        .from_string(page)
        .render(
            lead=lead(summary),
            charts={name: b64encode(svg.encode()).decode() for name, svg in facts.charts.items()},
            comparison=comparison,
            gain="" if comparison is None else comparison_sentence(comparison),
            tables={title: table_of(summary, title) for title in TABLES},
            checkpoints=checkpoint_sentence(summary),
        )
    )


def checkpoint_sentence(summary: Mapping[str, Any]) -> str:
    """Say whether every checkpoint's files hash to the root on chain."""
    rows: Sequence[Mapping[str, Any]] = summary["checkpoints"]
    wrong = [row["step"] for row in rows if row["root_on_chain"] != row["root_of_files"]]
    if wrong:
        return f"Files of steps {wrong} do not hash to the roots on chain."
    return f"The files of all {len(rows)} checkpoints hash to the roots on chain."


def side_by_side(charts: Sequence[str]) -> str:
    """Return charts of one size as one SVG, two in a row."""
    size = re.search(r'width="(\d+)" height="(\d+)"', charts[0]) if charts else None
    width, height = (int(size[1]), int(size[2])) if size else (0, 0)
    placed = (
        chart.replace("<svg ", f'<svg x="{i % 2 * width}" y="{i // 2 * height}" ', 1) for i, chart in enumerate(charts)
    )
    whole = f'width="{2 * width}" height="{(len(charts) + 1) // 2 * height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {whole}>{"".join(placed)}</svg>\n'


def write_report(summary: Mapping[str, Any], facts: SwarmFacts, path: Path, picture: Path | None = None) -> None:
    """Write the page, and the charts as one SVG file if `picture` names one."""
    path.write_text(html(summary, facts), encoding="utf-8")
    if picture is not None:
        picture.write_text(side_by_side(list(facts.charts.values())), encoding="utf-8")
