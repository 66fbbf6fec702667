"""Print how many lines and branches of the contracts the tests run, and fail if either is below a share.

Run by `make coverage` on the lcov report of `forge coverage`, with the standard library only. stdout carries one line a
contract and one for all of them; exit code 3 says that a share is too low.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ONLY = "contracts/"
CHECK_FAILED = 3


@dataclass
class Coverage:
    """Lines and branches found, and those of them that ran."""

    lines: int = 0
    lines_hit: int = 0
    branches: int = 0
    branches_hit: int = 0

    def add(self, other: Coverage) -> None:
        self.lines += other.lines
        self.lines_hit += other.lines_hit
        self.branches += other.branches
        self.branches_hit += other.branches_hit

    def is_at_least(self, percent: float) -> bool:
        return (
            self.lines > 0
            and min(share(self.lines_hit, self.lines), share(self.branches_hit, self.branches)) >= percent
        )

    def row(self, name: str) -> str:
        lines = f"{share(self.lines_hit, self.lines):6.2f} % ({self.lines_hit}/{self.lines})"
        branches = f"{share(self.branches_hit, self.branches):6.2f} % ({self.branches_hit}/{self.branches})"
        return f"{name:<36} lines {lines:<20} branches {branches}"


def share(hit: int, found: int) -> float:
    """Percent; all of nothing is all."""
    return 100.0 * hit / found if found else 100.0


def read(report: Iterable[str]) -> dict[str, Coverage]:
    """Return each contract's coverage. Source: the totals of geninfo(1): LF, LH, BRF, BRH after the SF they are of."""
    files: dict[str, Coverage] = {}
    current = Coverage()
    for line in report:
        key, _, value = line.strip().partition(":")
        if key == "SF":
            current = files.setdefault(value, Coverage()) if value.startswith(ONLY) else Coverage()
        elif key == "LF":
            current.lines += int(value)
        elif key == "LH":
            current.lines_hit += int(value)
        elif key == "BRF":
            current.branches += int(value)
        elif key == "BRH":
            current.branches_hit += int(value)
    return files


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="the lcov report")
    parser.add_argument("--at-least", type=float, required=True, help="percent of the lines, and of the branches")
    arguments = parser.parse_args(argv)

    files = read(arguments.report.read_text().splitlines())
    total = Coverage()
    for name, coverage in sorted(files.items()):
        total.add(coverage)
        print(coverage.row(name))
    print(total.row("all"))
    if total.is_at_least(arguments.at_least):
        return 0
    print(f"coverage: below {arguments.at_least:g} % of the lines or branches of {ONLY}", file=sys.stderr)
    print("  next: add tests for what the report says never ran", file=sys.stderr)
    return CHECK_FAILED


if __name__ == "__main__":
    sys.exit(main())
