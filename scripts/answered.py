"""Every finding of slither is answered in docs/understand/invariants.md, and nothing is answered that it does not find.

    slither . --json findings.json; python scripts/answered.py findings.json

Reads the table of findings there: the first cell of a row names detectors and functions in backticks, the second is
the answer. Exits with 3, and says which, when a finding has no row or a row no finding.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "understand" / "invariants.md"
HEADING = "| finding | answer |"


@dataclass(frozen=True)
class Row:
    """One answer."""

    text: str
    names: frozenset[str]
    """Detectors and functions, functions without their contract's name."""

    def answers(self, finding: tuple[str, str]) -> bool:
        return set(finding) <= self.names


def rows_of(page: str) -> list[Row]:
    """Read the answers on the page. Raises ValueError for a row without an answer."""
    _, _, table = page.partition(HEADING)
    rows = []
    for line in table.splitlines()[2:]:  # after the heading's end and the rule below it
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) != 2 or not cells[1]:
            raise ValueError(f"a row without an answer: {line}")
        names = re.findall(r"`([^`]+)`", cells[0])
        rows.append(Row(cells[0], frozenset(name.rpartition(".")[2] for name in names)))
    return rows


def findings_of(document: dict[str, Any]) -> list[tuple[str, str]]:
    """(detector, function) of each finding in slither's JSON."""
    found = []
    for result in document["results"].get("detectors", []):
        names = [part["name"] for part in result["elements"] if part["type"] in ("function", "variable", "contract")]
        found.append((result["check"], names[0] if names else ""))
    return found


def complaints(rows: list[Row], findings: list[tuple[str, str]]) -> list[str]:
    """Return the problems, a line each."""
    missing = [finding for finding in findings if not any(row.answers(finding) for row in rows)]
    stale = [row for row in rows if not any(row.answers(finding) for finding in findings)]
    return [f"no answer to `{check}` in `{name}`" for check, name in sorted(set(missing))] + [
        f"nothing is found any more of: {row.text}" for row in stale
    ]


def main() -> int:
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if not document.get("success"):
        print(f"slither failed: {document.get('error')}", file=sys.stderr)
        return 3
    findings = findings_of(document)
    wrong = complaints(rows_of(PAGE.read_text(encoding="utf-8")), findings)
    print("\n".join([*wrong, f"{len(findings)} findings of slither, {len(wrong)} complaints"]))
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
