"""Hold the plan of the house: what is in the library, how many rooms there are, how the console's packages import.

    python scripts/rooms.py

Ends with 1 where a limit is exceeded. A module of the library is imported by a process if a module in `orchestrator/`,
`worker/`, `validator/` or `trainer/`, or the relay's start, leads to it. Imports for type checking do not count. The
sandbox's guest, which runs on another interpreter, and generated bindings are left out.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = ("orchestrator", "worker", "validator", "trainer")
RELAY = "muster.shardcast.__main__"
PARTS = ("authoring", "console", "swarm")
"""Packages in `muster/` that are not the library."""
GUEST = "muster.sandbox.guest"

MOST_UNUSED = 0.05
MOST_ROOMS = 20
MOST_PACKAGES = 15
MOST_IMPORTS = 42


def lines_of_modules() -> dict[str, int]:
    """Return the lines of each tracked module of `muster`, by its dotted name, without the guest."""
    listed = subprocess.run(["git", "ls-files", "muster/**.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    lines = {}
    for name in listed.stdout.split():
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if not module.startswith(GUEST):
            lines[module] = len((ROOT / name).read_text(encoding="utf-8").splitlines())
    return lines


def reached(graph: grimp.ImportGraph, starts: set[str]) -> set[str]:
    """Return all modules that importing `starts` imports, their packages included."""
    found, todo = set(starts), list(starts)
    while todo:
        module = todo.pop()
        packages = {module.rsplit(".", level)[0] for level in range(1, module.count(".") + 1)}
        new = (graph.find_modules_directly_imported_by(module) | packages) - found
        found |= new
        todo += new
    return found


def below(module: str, package: str) -> str:
    """Return the name of the module's part directly below the package, empty for the package itself."""
    return module.removeprefix(package).removeprefix(".").partition(".")[0]


def main() -> int:
    graph = grimp.build_graph("muster", *PROCESSES, exclude_type_checking_imports=True, cache_dir=None)
    lines = lines_of_modules()

    # 1. The library, and what of it no process imports.
    others = ("", "__main__", *PARTS)
    library = {module: count for module, count in lines.items() if below(module, "muster") not in others}
    starts = {module for module in graph.modules if module.split(".")[0] in PROCESSES} | {RELAY}
    unused = Counter(library)
    for module in reached(graph, starts):
        unused.pop(module, None)
    rooms = {below(module, "muster") for module in lines} - {"", "__main__"}

    # 2. The console's packages, and who imports whom.
    console = {module for module in graph.modules if module.startswith("muster.console.")}
    pairs = {
        (below(module, "muster.console"), below(imported, "muster.console"))
        for module in console
        for imported in graph.find_modules_directly_imported_by(module) & console
    }
    pairs = {(one, other) for one, other in pairs if one != other}

    # 3. Against the limits.
    share = unused.total() / sum(library.values())
    packages = {below(module, "muster.console") for module in console}
    figures = [
        ("library lines that no process imports", f"{share:.1%}", share <= MOST_UNUSED, f"{MOST_UNUSED:.0%}"),
        ("rooms directly in muster/", len(rooms), len(rooms) <= MOST_ROOMS, MOST_ROOMS),
        ("console: packages one level below", len(packages), len(packages) <= MOST_PACKAGES, MOST_PACKAGES),
        ("console: pairs of packages that import", len(pairs), len(pairs) <= MOST_IMPORTS, MOST_IMPORTS),
    ]
    print(f"library: {sum(library.values()):,} lines in {len(rooms) - len(PARTS)} rooms")
    for name, value, _, limit in figures:
        print(f"{name}: {value} (at most {limit})")
    for module, count in unused.most_common():
        print(f"  no process imports {module} ({count} lines)")
    return 0 if all(fits for _, _, fits, _ in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
