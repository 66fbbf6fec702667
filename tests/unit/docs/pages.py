"""The pages of the documentation, and what tests read out of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from testbed.paths import ROOT

DOCS: Final = ROOT / "docs"
FRONT: Final = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", ".github/PULL_REQUEST_TEMPLATE.md")
]
PAGES: Final = [*FRONT, *sorted(DOCS.rglob("*.md"))]
FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK: Final = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def label(page: Path) -> str:
    """Return a page's path in the repository: what a failed test says."""
    return page.relative_to(ROOT).as_posix()


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return FENCE.sub("", read(page))


def ticked(text: str) -> list[str]:
    """Return what a text has in backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def first_cells(text: str) -> list[str]:
    """Return what the rows of a table have in backticks in their first cell."""
    return [name for cell in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE) for name in ticked(cell)]


def section(page: str, title: str) -> str:
    """Return the text under a heading of the second level, up to the next one."""
    return read(DOCS / page).split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings; a repeated heading gets a number."""
    found: list[str] = []
    for title in HEADING.findall(prose(page)):
        text = re.sub(r"\]\([^)]*\)", "", title).lower()
        found.append(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return {slug if not (nth := found[:i].count(slug)) else f"{slug}-{nth}" for i, slug in enumerate(found)}
