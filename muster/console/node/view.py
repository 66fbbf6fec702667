"""Show one node to a person who watches it: rows on a terminal, one line for each change elsewhere. Pure.

`status` is a document of `muster.console.node.status`, `log` what the node's process wrote
(`muster.console.node.log_lines`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.chain.gas import hours_text
from muster.console.node.log_lines import WARNINGS, NodeLog
from muster.console.node.logs import escaped, shown
from muster.console.session import NEW_LINE
from muster.runtime.printable import printable

MAX_SHOWN: Final = 300
"""Characters of a text from elsewhere."""


@dataclass(frozen=True)
class StatusRow:
    """One thing that is known of a node."""

    name: str
    value: str
    change: str = ""
    """What of it is worth a line where there is no terminal; empty: nothing."""


def countdown(seconds: float) -> str:
    """Return a length of time as hh:mm:ss; hours may have more digits."""
    left = max(0, round(seconds))
    return f"{left // 3600:02d}:{left // 60 % 60:02d}:{left % 60:02d}"


def node_rows(status: Mapping[str, Any], log: NodeLog, *, now: float, elapsed: float = 0.0) -> list[StatusRow]:
    """Return what is shown of a node. `now`: Unix seconds; `elapsed`: seconds since the status was read."""
    rows = _worker_rows if status["role"] == "worker" else _validator_rows
    return [row for row in rows(status, log, now, elapsed) if row.value]


def _worker_rows(status: Mapping[str, Any], log: NodeLog, now: float, elapsed: float) -> list[StatusRow]:
    own, recent = log.rate(now)
    waits = cut(log.waits or str(status.get("waits_because", "")))
    return [
        _state(status),
        _step(status, log),
        StatusRow(
            "tokens/s", f"{own:,.0f} while generating, {recent:,.0f} over the last 5 minutes" if log.work else ""
        ),
        _commitments(status),
        StatusRow("waits", waits, waits),
        _window(status, elapsed),
        _paid(status),
        StatusRow("cases", f"{status['open_cases']} open against it" if status["open_cases"] else "", "open"),
        _verdicts(status),
        _gas(status),
    ]


def _validator_rows(status: Mapping[str, Any], log: NodeLog, now: float, elapsed: float) -> list[StatusRow]:
    inspected = f"{log.accepted} accepted, {log.rejected} rejected, since it started"
    waits = cut(log.waits)
    cases = f"{status['open_cases']} open, {status['cases_opened']} opened, {status['cases_won']} won"
    sealed = f"{status['hours_sealed']} hours"
    short = status["operator_free"] < status["case_cost"]
    free = f"{status['operator_free']} for cases and votes"
    return [
        _state(status),
        StatusRow("newest step", _number(status["newest_step"])),
        StatusRow("inspected", inspected, inspected),
        StatusRow("last ones", cut(", ".join(log.judged))),
        StatusRow("waits", waits, waits),
        StatusRow("cases", cases, cases),
        StatusRow("sealed", sealed, sealed),
        _looks(status),
        StatusRow(
            "free", free + (f", too little for one ({status['case_cost']}): muster wallet deposit" if short else "")
        ),
        _gas(status),
    ]


def _looks(status: Mapping[str, Any]) -> StatusRow:
    """Return a row for what looks earned; empty while there is no list."""
    if status.get("looks_hour") is None:
        return StatusRow("looks", "")
    counted = f"{status['looks_counted']} of {status['looks']} counted in the latest list"
    text = f"{status['wages_earned']} earned, {status['wages_paid']} paid, {status['wages_due']} due; {counted}"
    return StatusRow("looks", text + (", counts no more" if status["counts_again_at"] else ""), text)


def _state(status: Mapping[str, Any]) -> StatusRow:
    """Return a row for a node that is not active."""
    state = "" if status["status"] == "active" else str(status["status"])
    return StatusRow("status", state, state)


def _step(status: Mapping[str, Any], log: NodeLog) -> StatusRow:
    newest = f"newest on chain {_number(status['newest_step'])}"
    if log.step is None:
        return StatusRow("step", f"no engine yet, {newest}")
    return StatusRow("step", f"{'starting the engine with ' if log.starting else ''}{log.step}, {newest}")


def _number(step: int) -> str:
    return "none" if step < 0 else str(step)


def _commitments(status: Mapping[str, Any]) -> StatusRow:
    if "accepted" not in status:
        return StatusRow("commitments", f"{status['commitments']} on chain")
    rejected = sum(status["rejected"].values())
    text = f"{status['accepted']} accepted, {status['pending']} pending, {rejected} rejected"
    return StatusRow("commitments", text, text)


def _window(status: Mapping[str, Any], elapsed: float) -> StatusRow:
    text = f"{status['in_window']} at {status['pay_per_commitment']} for each"
    if "next_matures_in" in status:
        left = status["next_matures_in"] - elapsed
        text += f", the next matures in {countdown(left)}" if left > 0 else ", the next has matured"
    return StatusRow("in the window", text)


def _paid(status: Mapping[str, Any]) -> StatusRow:
    claimed = f", claimed {status['claimed']}" if "claimed" in status else ""
    text = f"{status['claimable']}{claimed}"
    return StatusRow("claimable", text, text)


def _verdicts(status: Mapping[str, Any]) -> StatusRow:
    said = status.get("last_verdicts", [])
    rejected = next((line for line in said if "rejected" in line), "")
    return StatusRow("verdicts", cut(", ".join(said)), cut(rejected))


def _gas(status: Mapping[str, Any]) -> StatusRow:
    hours = status.get("gas_hours")
    lasts = (
        f"about {status['gas_transactions']:,} transactions" if hours is None else f"{hours_text(hours)} at its pace"
    )
    return StatusRow("gas", f"{status['gas']}, {lasts}")


def picture(title: str, rows: Sequence[StatusRow], log: NodeLog, notes: str = "") -> RenderableType:
    """Return a node on one screen: its rows, then what its log warned of and what could not be read."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(row.name, Text(printable(row.value)))
    below = warning_lines(log) + [printable(line) for line in notes.splitlines() if line]
    return Group(Text(printable(title), style="bold"), table, *(Text(line, style="dim") for line in below))


def changes(before: Sequence[StatusRow], after: Sequence[StatusRow]) -> list[str]:
    """Return a line for each row that says something else than before."""
    known = {row.name: row.change for row in before}
    return [printable(f"{row.name}: {row.value}") for row in after if row.change and row.change != known.get(row.name)]


def warning_lines(log: NodeLog, count: int = WARNINGS) -> list[str]:
    """Return the last `count` warnings of a log, as far as it keeps them."""
    kept = list(log.warnings)
    return [cut(shown(line).partition(NEW_LINE)[0]) for line in kept[max(0, len(kept) - count) :]]


def cut(text: str) -> str:
    """Return text from elsewhere so that it can be printed: escaped, and cut at MAX_SHOWN."""
    return escaped(text, MAX_SHOWN)
