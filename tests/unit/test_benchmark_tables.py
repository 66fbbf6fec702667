"""The page of benchmarks says what the documents say."""

from __future__ import annotations

from benchmarks.page import DOCS
from benchmarks.report import figure, slower
from benchmarks.tables import part


def test_a_table_of_figures() -> None:
    figures = [
        slower("build", [2.0, 2.5, 1.5], peer=[10.0, 11.0, 12.0], target=5.0, unit="s"),
        figure("memory", [200.0], ratio=200.0, target=128, unit="MiB", limit=[1234567.0], at_most=True),
    ]
    assert part([{"machine": "here", "figures": figures}, {"machine": "here", "figures": []}]) == (
        "| figure | unit | ours | peer | limit | ratio | target | runs |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|\n"
        "| `build` | s | 2 (1.5 to 2.5) | 11 (10 to 12) |  | 5.5 | ≥ 5 | 3 |\n"
        "| `memory` | MiB | 200 |  | 1,234,567 | **200** | ≤ 128 | 1 |\n"
        "\n"
        "Measured on: here."
    )


def test_every_part_of_the_page_has_been_measured() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    for name in ("gas", "broadcast", "verification"):
        text = page.partition(f"<!-- begin {name} -->")[2].partition(f"<!-- end {name} -->")[0]
        assert text.count("\n| `") >= 3, name
