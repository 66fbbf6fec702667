"""Pages of the documentation that commands write: each command rewrites its own marked part and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


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
