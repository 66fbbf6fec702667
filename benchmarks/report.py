"""What the benchmarks share: their options, how things are measured, and the one form that figures have.

    {"machine": …, "runs": n, "figures": [{"name", "ours", "peer", "limit", "ratio", "target", "holds", "unit", …}]}

`ratio` is the number that the target speaks of; `peer` and `limit` may be null. Measured values are medians over the
runs, with the least and the largest beside them as `ours_range`, `peer_range`, `limit_range`. How often was measured
differs between figures, and stands in each as its own `runs`; the document's is the least of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

from muster.runtime.processor import processor_name
from testbed.paths import ROOT

T = TypeVar("T")
Figure = dict[str, object]
Values = float | Sequence[float]
DOCS = ROOT / "docs"
MISSED = 3
"""Exit status of a benchmark that missed a target."""
APART_SECONDS = 4 * 3600.0
"""Longest time of a measurement in a separate process: a large model on a processor is slow."""


# --- Measuring


def parser(about: str | None, *, write: str = "") -> argparse.ArgumentParser:
    """Return the parser of a benchmark's options. about: its module's docstring; write: what --write rewrites."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="one JSON document on stdout")
    if write:
        made.add_argument("--write", action="store_true", help=f"rewrite {write}")
    return made


def alternate(runs: int, *measures: Callable[[], T]) -> list[list[T]]:
    """Return each measure's results of all runs, taken in turns, so that a busy moment hits all measures."""
    rows = [[measure() for measure in measures] for _ in range(runs)]
    return [list(column) for column in zip(*rows, strict=True)]


def apart(work: Callable[..., T], *arguments: object, environment: Mapping[str, str] | None = None) -> T:
    """Run a module's function in a separate process with these extra environment variables; return its result.

    vLLM has one dtype per process, and its engines share resources that end with the first of them.
    """
    with (
        patch.dict(os.environ, environment or {}),
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_say_to_stderr) as pool,
    ):
        try:
            return pool.submit(work, *arguments).result(APART_SECONDS)
        except TimeoutError:
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _say_to_stderr() -> None:
    """Leave stdout to the document: the output of libraries and processes goes to stderr."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


# --- Figures


def figure(
    name: str,
    ours: Values,
    *,
    target: float,
    unit: str,
    ratio: float | Callable[[Sequence[float]], float] = statistics.median,
    peer: Values | None = None,
    limit: Values | None = None,
    at_most: bool = False,
    **more: object,
) -> Figure:
    """Make a figure whose `ratio` must reach the target, or with `at_most` must not exceed it.

    ratio: the number, or what makes it of ours; the median without it.
    """
    values = _values(ours)
    value = ratio(values) if callable(ratio) else ratio
    return {
        "name": name,
        **_spread("ours", values),
        **_spread("peer", _values(peer)),
        **_spread("limit", _values(limit)),
        "ratio": _rounded(value),
        "target": target,
        "at_most": at_most,
        "holds": value <= target if at_most else value >= target,
        "unit": unit,
        "runs": len(values),
        **more,
    }


def slower(
    name: str, ours: Values, *, target: float, unit: str, peer: Values | None = None, limit: Values | None = None
) -> Figure:
    """Make a figure of which less is better, such as seconds: `ratio` is the peer's or else the limit's over ours."""
    ratio = 1 / _relative(name, ours, peer, limit)
    return figure(name, ours, ratio=ratio, target=target, unit=unit, peer=peer, limit=limit)


def relative(
    name: str,
    ours: Values,
    *,
    target: float,
    unit: str,
    peer: Values | None = None,
    limit: Values | None = None,
    **more: object,
) -> Figure:
    """Make a figure whose `ratio` is ours over the peer's or else the limit's, by their medians."""
    ratio = _relative(name, ours, peer, limit)
    return figure(name, ours, ratio=ratio, target=target, unit=unit, peer=peer, limit=limit, **more)  # type: ignore[arg-type]


def none(name: str, found: int | Sequence[object], unit: str = "found", **more: object) -> Figure:
    """Make a figure of things that must not occur: how many, or which."""
    count = found if isinstance(found, int) else len(found)
    listed = {} if isinstance(found, int) else {"found": found[:MOST_LISTED]}
    return figure(name, count, target=0, unit=unit, at_most=True, **listed, **more)  # type: ignore[arg-type]


MOST_LISTED = 50
"""Of what a figure found."""


def _relative(name: str, ours: Values, peer: Values | None, limit: Values | None) -> float:
    yardstick = _values(limit if peer is None else peer)
    if not yardstick:
        raise ValueError(f"{name} is compared with nothing")
    return statistics.median(_values(ours)) / statistics.median(yardstick)


def _values(given: Values | None) -> Sequence[float]:
    if given is None:
        return []
    return given if isinstance(given, Sequence) else [given]


def _spread(name: str, values: Sequence[float]) -> Figure:
    if not values:
        return {name: None}
    return {
        name: _rounded(statistics.median(values)),
        f"{name}_range": [_rounded(min(values)), _rounded(max(values))],
    }


def _rounded(value: float) -> float:
    """Four digits, or all of those before the point."""
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value)


# --- What is printed


def show(
    figures: Sequence[Figure],
    *,
    as_json: bool,
    about: Sequence[str] = (),
    missing: Mapping[str, str] | None = None,
    **more: object,
) -> int:
    """Print the figures, as JSON or for people; return the program's exit status.

    missing: what could not be measured, and why. more: what the document has besides.
    """
    if as_json:
        more = ({} if missing is None else {"missing": missing}) | more
        print(document(figures, machine=machine(*about), **more))
    else:
        gaps = [f"{name:24} missing: {reason}" for name, reason in (missing or {}).items()]
        print(machine(*about), *map(line, figures), *gaps, sep="\n")
    return 0 if all(figure["holds"] for figure in figures) else MISSED


def document(figures: Sequence[Figure], *, machine: str, **more: object) -> str:
    """Return the figures as JSON."""
    runs = min((int(str(figure["runs"])) for figure in figures), default=0)
    return json.dumps({"machine": machine, "runs": runs, "figures": figures, **more}, indent=1)


def machine(*more: str) -> str:
    """Describe the machine and how busy it is."""
    return ", ".join([processor_name(), f"{os.cpu_count()} cores", f"load {os.getloadavg()[0]:.1f}", *more])


def line(figure: Figure) -> str:
    """Return a figure as a line for people."""
    others = [f"{kind} {figure[kind]}" for kind in ("peer", "limit") if figure[kind] is not None]
    words = [f"{figure['name']:24} ours {figure['ours']} {figure['unit']}", *others]
    return "  ".join([*words, f"ratio {figure['ratio']} (target {figure['target']})"])


# --- Pages of the documentation: each command rewrites its own marked part and nothing else


def rewrite(page: Path, part: str, text: str) -> None:
    """Put `text` between the marks of a part. Raises ValueError when the page does not have them."""
    begin, end = f"<!-- begin {part} -->", f"<!-- end {part} -->"
    before = page.read_text(encoding="utf-8")
    found = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if len(found.findall(before)) != 1:
        raise ValueError(f"{page} has no part {part!r}, or more than one")
    body = f"{begin}\n\n{text.strip()}\n\n{end}"
    page.write_text(found.sub(lambda _: body, before), encoding="utf-8")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join(["---", *["---:"] * (len(heads) - 1)]) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def small(value: float | None) -> str:
    """Return a measured number with two digits, as people write it."""
    if value is None:
        return ""
    return "0" if value == 0 else f"{value:.2g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"
