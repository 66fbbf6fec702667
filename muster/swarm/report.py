"""The report of a swarm: tables for the terminal, one self-contained HTML page for everybody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.constants import TOKEN
from muster.swarm.summary import Facts

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Muster: report of a swarm</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1f2937; max-width: 68rem; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.5rem; margin-bottom: .2rem }} h2 {{ font-size: 1.1rem; margin-top: 2rem }}
table {{ border-collapse: collapse; width: 100%; font-size: .9rem }}
th, td {{ text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #e5e7eb; vertical-align: top }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums }}
.plots {{ display: flex; flex-wrap: wrap; gap: 1rem }} .plots svg {{ max-width: 100%; height: auto }}
.bad {{ color: #b91c1c }} .good {{ color: #0f766e }} code {{ font-size: .85em; word-break: break-all }}
</style></head><body>
<h1>Report of a swarm</h1>
<p>{lead}</p>
<div class="plots">{plots}</div>
{tables}
</body></html>
"""


def amount(wei: int) -> str:
    """Tokens for people, to four decimals."""
    return f"{wei / TOKEN:,.4f}".rstrip("0").rstrip(".")


def lead(summary: Mapping[str, Any]) -> str:
    """What happened, in one sentence."""
    score = summary["held_out"]
    gain = f"from {score['before']:.3f} to {score['after']:.3f}" if score["after"] is not None else "unmeasured"
    slashed = ", ".join(row["node"] for row in summary["slashes"]) or "nobody"
    books = "the contracts' tokens cover their books" if summary["solvent"] else "THE CONTRACTS ARE SHORT OF TOKENS"
    return (
        f"{summary['steps']} policy updates in {summary['wall_seconds']:.0f} s; held-out score {gain} on "
        f"{score['tasks']} tasks never trained on; slashed: {slashed}; {books}."
    )


Rows = list[tuple[str, ...]]


def node_table(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    heads = ("node", "role", "commitments", "rollouts", "accepted", "rejected", "earned")
    rows = [
        (
            row["name"],
            row["role"] if row["honest"] else f"{row['role']}, cheats",
            str(row["commitments"]),
            str(row["rollouts"]),
            str(row["accepted"]),
            ", ".join(f"{count} {reason}" for reason, count in row["rejected"].items()) or "0",
            amount(row["earned"]),
        )
        for row in summary["nodes"]
    ]
    return heads, rows


def slash_table(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    heads = ("node", "for", "case", "stake before", "after", "bounty", "votes", "transaction")
    rows = [
        (
            row["node"],
            row["kind"].replace("_", " "),
            str(row["case"]),
            amount(row["stake_before"]),
            amount(row["stake_after"]),
            amount(row["bounty"]),
            f"{row['votes']['guilty']} of {row['votes']['jury']} guilty",
            row["transaction"],
        )
        for row in summary["slashes"]
    ]
    return heads, rows


def claim_table(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    heads = ("operator of", "committed", "voided", "paid")
    rows = [
        (row["name"], amount(row["committed"]), amount(row["voided"]), amount(row["paid"])) for row in summary["claims"]
    ]
    return heads, rows


def book_table(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    heads = ("contract", "tokens", "books")
    rows = [(row["contract"], amount(row["balance"]), amount(row["books"])) for row in summary["contracts"]]
    return heads, [*rows, ("all", amount(summary["balances"]), amount(summary["books"]))]


def weight_table(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    heads = ("weights to", "fetches", "seconds", "generating meanwhile", "median pause")
    rows = [
        (
            row["node"],
            str(row["fetches"]),
            f"{row['seconds']:.2f}",
            f"{row['generating']:.0%}" if row["generating"] is not None else "",
            f"{row['pause_seconds']:.3f} s" if row["pause_seconds"] is not None else "",
        )
        for row in summary["weights"]
    ]
    return heads, rows


TABLES: Final = {
    "Nodes": node_table,
    "Slashes": slash_table,
    "Claims": claim_table,
    "Books": book_table,
    "Weights": weight_table,
}


def terminal_summary(summary: Mapping[str, Any]) -> RenderableType:
    """The summary as it stands at the end of a demo."""
    parts: list[RenderableType] = [Text(lead(summary), style="bold"), Text()]
    for title, build in TABLES.items():
        heads, rows = build(summary)
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for i, head in enumerate(heads):
            table.add_column(head, justify="right" if i and _is_number(rows, i) else "left", overflow="ellipsis")
        for row in rows:
            table.add_row(*(Text(value) for value in row))
        parts += [table, Text()]
    return Group(*parts)


def html(summary: Mapping[str, Any], facts: Facts) -> str:
    """The report as one HTML page that loads nothing."""
    from muster.swarm.plots import PLOTS, svg

    tables = "".join(f"<h2>{title}</h2>{_html_table(*build(summary))}" for title, build in TABLES.items())
    tables += f"<h2>Checkpoints</h2><p>{escape(checkpoint_sentence(summary))}</p>"
    return _PAGE.format(lead=escape(lead(summary)), plots="".join(svg(facts, name) for name in PLOTS), tables=tables)


def checkpoint_sentence(summary: Mapping[str, Any]) -> str:
    """Whether every checkpoint's files are what the chain says."""
    rows: Sequence[Mapping[str, Any]] = summary["checkpoints"]
    wrong = [row["step"] for row in rows if row["root_on_chain"] != row["root_of_files"]]
    sent = summary["bytes_broadcast"] / 1e6
    if wrong:
        return f"Files of steps {wrong} do not hash to the roots on chain; {sent:.1f} MB were broadcast."
    return f"The files of all {len(rows)} checkpoints hash to the roots on chain; {sent:.1f} MB were broadcast."


def write_report(summary: Mapping[str, Any], facts: Facts, path: Path, picture: Path | None = None) -> None:
    """Write the page, and where wanted the plots as one SVG file."""
    from muster.swarm.plots import picture as draw

    path.write_text(html(summary, facts), encoding="utf-8")
    if picture is not None:
        picture.write_text(draw(facts), encoding="utf-8")


def _is_number(rows: Rows, column: int) -> bool:
    return all(row[column].replace(",", "").replace(".", "").isdigit() for row in rows)


def _html_table(heads: Sequence[str], rows: Rows) -> str:
    if not rows:
        return "<p>none</p>"
    classes = ["n" if i and _is_number(rows, i) else "" for i in range(len(heads))]
    head = "".join(f'<th class="{c}">{escape(h)}</th>' for h, c in zip(heads, classes, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{c}">{_html_cell(value)}</td>' for value, c in zip(row, classes, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_cell(value: str) -> str:
    return f"<code>{escape(value)}</code>" if value.startswith("0x") else escape(value)
