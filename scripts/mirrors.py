"""Count mirrors: pairs of classes that declare mostly the same fields.

    python scripts/mirrors.py [--most COUNT]

A pair counts where it shares at least LEAST fields, and SHARE of the smaller class's. Inherited fields, class variables
and constants do not count: what one class has from another is written once. Prints the count and the LISTED largest;
ends with 1 where there are more than COUNT.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("muster", "orchestrator", "explorer", "worker", "validator", "trainer", "adversary")

LEAST = 4
SHARE = 0.6
LISTED = 20

Class = tuple[str, frozenset[str]]
"""Path and name of a class, and the fields that it declares."""


def classes_in(path: str, source: str) -> list[Class]:
    """Return the classes of a module that declare at least LEAST fields."""
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    found = [(f"{path}:{node.name}", frozenset(filter(None, map(field_of, node.body)))) for node in classes]
    return [one for one in found if len(one[1]) >= LEAST]


def field_of(statement: ast.stmt) -> str:
    """Return the name of the field that a statement of a class declares; "" where it declares none."""
    if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
        return ""
    return "" if ast.unparse(statement.annotation).startswith(("ClassVar", "Final")) else statement.target.id


def mirrors(classes: list[Class]) -> list[tuple[int, str, str]]:
    """Return the pairs with the number of fields that they share, the largest first."""
    found = []
    for (one, fields), (other, others) in combinations(classes, 2):
        shared = len(fields & others)
        if shared >= LEAST and shared >= SHARE * min(len(fields), len(others)):
            found.append((shared, one, other))
    return sorted(found, reverse=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, help="how many there may be")
    most = parser.parse_args().most
    listed = subprocess.run(["git", "ls-files", *ROOMS], cwd=ROOT, check=True, capture_output=True, text=True)
    paths = [path for path in listed.stdout.split() if path.endswith(".py") and (ROOT / path).exists()]
    classes = [one for path in paths for one in classes_in(path, (ROOT / path).read_text(encoding="utf-8"))]
    found = mirrors(classes)
    print(f"mirrors: {len(found)} pairs of {len(classes)} classes" + ("" if most is None else f" (at most {most})"))
    for shared, one, other in found[:LISTED]:
        print(f"  {shared:>2} fields: {one}, {other}")
    return int(most is not None and len(found) > most)


if __name__ == "__main__":
    raise SystemExit(main())
