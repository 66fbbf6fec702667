"""docs/use/scale.md: what it multiplies is what the benchmarks' page says, and the products are right."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.pages import DOCS, read

PAGE = read(DOCS / "use" / "scale.md")
BENCHMARKS = read(DOCS / "change" / "benchmarks.md")
ROWS = re.findall(r"^\| ([\d,]+) \| ([\d.].*) \|$", PAGE, re.MULTILINE)


def number(text: str) -> float:
    return float(text.replace(",", "").split()[0])


def measured(figure: str) -> float:
    """Return what ours is, of a figure on the benchmarks' page."""
    [ours] = re.findall(rf"^\| `{figure}` \| [^|]+ \| ([\d.,]+)", BENCHMARKS, re.MULTILINE)
    return number(ours)


def test_page_says_what_was_measured() -> None:
    for text, figure in (
        ("11.5 KiB", "rss_per_worker"),
        ("68,000", "commit_median"),
        ("145", "delta_1pct"),
    ):
        assert f"| {text} |" in PAGE
        assert measured(figure) == number(text)
    for ours, unit in (("poll_cpu", "µs"), ("verdict_cpu", "ms")):
        sqlite, server = measured(f"{ours}_sqlite"), measured(f"{ours}_postgresql")
        assert f"| {sqlite:g} {unit}; {server:g} {unit} on PostgreSQL |" in PAGE
    assert len(ROWS) == 4


@pytest.mark.parametrize(("workers", "cells"), ROWS)
def test_products_are_right(workers: str, cells: str) -> None:
    nodes, rate = number(workers), number(workers) * 7.5 / 3600
    expected = [
        *(rate, 5 * rate, nodes / 20),
        *(nodes * measured("rss_per_worker") / 1024, rate * measured("commit_median"), nodes / measured("delta_1pct")),
    ]
    assert [number(cell) for cell in cells.split(" | ")] == pytest.approx(expected, rel=0.01)
