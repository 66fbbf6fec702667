"""What the benchmarks share: how things are measured in turn, and the one form that figures have.

    {"machine": …, "runs": n, "figures": [{"name", "ours", "peer", "limit", "ratio", "target", "holds", "unit", …}]}

`ratio` is the number that the target speaks of; `peer` and `limit` may be null. Measured values are medians over the
runs, with the least and the largest beside them as `ours_range`, `peer_range`, `limit_range`. How often was measured
differs between figures, and stands in each as its own `runs`; the document's is the least of them.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence

from muster.runtime.processor import processor_name

Figure = dict[str, object]
MISSED = 3
"""Exit status of a benchmark that missed a target."""


def alternate(runs: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Return what each measure gave in each run, taken in turns, so that a busy moment hits all of them."""
    rows = [[measure() for measure in measures] for _ in range(runs)]
    return [list(column) for column in zip(*rows, strict=True)]


def figure(
    name: str,
    ours: Sequence[float],
    *,
    ratio: float,
    target: float,
    unit: str,
    peer: Sequence[float] | None = None,
    limit: Sequence[float] | None = None,
    at_most: bool = False,
    **more: object,
) -> Figure:
    """Make a figure whose `ratio` must reach the target, or with `at_most` must not exceed it."""
    return {
        "name": name,
        **_spread("ours", ours),
        **_spread("peer", peer),
        **_spread("limit", limit),
        "ratio": _rounded(ratio),
        "target": target,
        "at_most": at_most,
        "holds": ratio <= target if at_most else ratio >= target,
        "unit": unit,
        "runs": len(ours),
        **more,
    }


def slower(
    name: str,
    ours: Sequence[float],
    *,
    peer: Sequence[float] | None = None,
    limit: Sequence[float] | None = None,
    target: float,
    unit: str,
) -> Figure:
    """Make a figure of which less is better, such as seconds: `ratio` is the peer's or else the limit's over ours."""
    yardstick = limit if peer is None else peer
    if yardstick is None:
        raise ValueError(f"{name} is compared with nothing")
    ratio = statistics.median(yardstick) / statistics.median(ours)
    return figure(name, ours, ratio=ratio, target=target, unit=unit, peer=peer, limit=limit)


def show(
    figures: Sequence[Figure],
    *,
    as_json: bool,
    about: Sequence[str] = (),
    missing: Mapping[str, str] | None = None,
) -> int:
    """Print the figures, as JSON or for people; the program's exit status.

    `missing`: what could not be measured, and why.
    """
    if as_json:
        print(document(figures, runs=min(map(_runs, figures), default=0), machine=machine(*about), missing=missing))
    else:
        gaps = [f"{name:24} missing: {reason}" for name, reason in (missing or {}).items()]
        print(machine(*about), *map(line, figures), *gaps, sep="\n")
    return 0 if all(figure["holds"] for figure in figures) else MISSED


def document(figures: Sequence[Figure], *, runs: int, machine: str, missing: Mapping[str, str] | None = None) -> str:
    """Return the figures as JSON."""
    more = {} if missing is None else {"missing": missing}
    return json.dumps({"machine": machine, "runs": runs, "figures": figures, **more}, indent=1)


def machine(*more: str) -> str:
    """Describe the machine and how busy it is."""
    return ", ".join([processor_name(), f"{os.cpu_count()} cores", f"load {os.getloadavg()[0]:.1f}", *more])


def line(figure: Figure) -> str:
    """Return a figure as a line for people."""
    others = [f"{kind} {figure[kind]}" for kind in ("peer", "limit") if figure[kind] is not None]
    words = [f"{figure['name']:24} ours {figure['ours']} {figure['unit']}", *others]
    return "  ".join([*words, f"ratio {figure['ratio']} (target {figure['target']})"])


def _spread(name: str, values: Sequence[float] | None) -> Figure:
    if values is None:
        return {name: None}
    return {
        name: _rounded(statistics.median(values)),
        f"{name}_range": [_rounded(min(values)), _rounded(max(values))],
    }


def _rounded(value: float) -> float:
    """Four digits, or all of those before the point."""
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value)


def _runs(figure: Figure) -> int:
    return int(str(figure["runs"]))
