"""What tests of pages and words read out of our Python sources. Each file is parsed once per test process."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from testbed.paths import ROOT

PRODUCTION = ("muster", "orchestrator", "explorer", "worker", "validator", "trainer", "adversary")
ROOMS = (*PRODUCTION, "scripts", "benchmarks")

_FIELDS = ("id", "attr", "arg", "name", "asname")
"""Where nodes of a syntax tree keep identifiers."""


@dataclass(frozen=True)
class Source:
    """A module's identifiers with their lines, its classes, and its texts that are no docstrings."""

    path: Path
    identifiers: tuple[tuple[str, int], ...]
    classes: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))


@cache
def source(path: Path) -> Source:
    """Parse a module."""
    identifiers: list[tuple[str, int]] = []
    classes: list[str] = []
    texts: list[str] = []
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in docstrings:
                texts.append(node.value)
            continue
        elif isinstance(node, ast.ClassDef):
            classes.append(node.name)
        for field in _FIELDS:
            if isinstance(name := getattr(node, field, None), str):
                identifiers.extend((part, getattr(node, "lineno", 0)) for part in name.split("."))
    return Source(path, tuple(identifiers), tuple(classes), tuple(texts))


def sources(rooms: Iterable[str] = ROOMS) -> Iterator[Source]:
    """Yield the modules of some rooms."""
    for room in rooms:
        yield from map(source, sorted((ROOT / room).rglob("*.py")))
