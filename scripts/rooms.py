"""Hold the plan of the house: how much there is of each thing, what is in the library, who imports whom.

    python scripts/rooms.py

Ends with 1 where a limit is exceeded. The limits of BUDGET are what the last change left. A change that needs less
lowers its figures. One that needs more raises a figure in a commit of its own, whose body says what users get for it.

A module of the library is imported by a process if a module of one in PROCESSES, or the relay's start, leads to it.
Imports for type checking do not count. The sandbox's guest, which runs on another interpreter, and generated bindings
are not the library's; the guest's lines are in the budget.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grimp

ROOT: Final = Path(__file__).resolve().parent.parent
PROCESSES: Final = ("orchestrator", "explorer", "worker", "validator", "trainer")
PRODUCTION: Final = ("muster", *PROCESSES, "adversary")
SUPPORT: Final = ("benchmarks", "testbed")
"""What only tests and figures use."""
RELAY: Final = "muster.shardcast.__main__"
PARTS: Final = ("authoring", "console", "swarm")
"""Packages in `muster/` that are not the library."""
GUEST: Final = "muster.sandbox.guest"

MODULES: Final = "muster/*.py"
WEB: Final = "JS, CSS and HTML"
BUDGET: Final[dict[str, int]] = {
    "adversary": 148,
    "benchmarks": 16_919,
    MODULES: 220,
    "explorer": 5_611,
    "muster/authoring": 5_800,
    "muster/chain": 3_328,
    "muster/clients": 2_923,
    "muster/console": 10_754,
    "muster/contracts": 296,
    "muster/environments": 2_826,
    "muster/ledger": 3_689,
    "muster/models": 1_424,
    "muster/proofs": 623,
    "muster/protocol": 4_512,
    "muster/rollouts": 861,
    "muster/runtime": 3_497,
    "muster/sandbox": 2_385,
    "muster/settings": 802,
    "muster/shardcast": 4_437,
    "muster/swarm": 3_026,
    "muster/tasksets": 1_440,
    "muster/verification": 3_705,
    "orchestrator": 4_632,
    "testbed": 14_819,
    "trainer": 4_985,
    "validator": 2_882,
    "worker": 2_500,
    WEB: 1_699,
    "settings": 113,
    "commands": 90,
    "options": 595,
    "SQL tables of the orchestrator": 20,
    "SQL tables of the explorer": 23,
    "SQL tables of journals": 17,
    "import circles": 0,
}
"""The most lines of Python in each package, guests included, and the most of whatever else a reader has to hold."""
SUMS: Final = {"production": 77_306, "benchmarks and testbed": 31_738}
"""The most lines of Python in the packages of PRODUCTION and of SUPPORT."""

MOST_UNUSED: Final = 0.05
MOST_ROOMS: Final = 20
MOST_PACKAGES: Final = 15
MOST_IMPORTS: Final = 42


class Figure(NamedTuple):
    """A figure beside its limit, both as whole numbers or shares."""

    name: str
    value: float
    limit: float | None

    @property
    def holds(self) -> bool:
        """Return whether there is a limit and the figure is within it."""
        return self.limit is not None and self.value <= self.limit

    def __str__(self) -> str:
        shown = [f"{one:.1%}" if isinstance(one, float) else f"{one:,}" for one in (self.value, self.limit or 0)]
        if self.limit is None:
            return f"{self.name}: {shown[0]} (no limit: write one into BUDGET)"
        over = "" if self.holds else "  TOO MUCH"
        return f"{self.name}: {shown[0]} (at most {shown[1]}){over}"


def tracked(*patterns: str) -> Iterator[tuple[str, int]]:
    """Yield each tracked file that matches one of git's patterns, and its lines."""
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.split():
        if (path := ROOT / name).is_file():
            yield name, len(path.read_text(encoding="utf-8").splitlines())


def package_of(name: str) -> str:
    """Return the entry of the budget that counts a Python file: its room of `muster`, or its top folder."""
    top, _, rest = name.partition("/")
    if top != "muster":
        return top
    room, inside, _ = rest.partition("/")
    return f"muster/{room}" if inside else MODULES


def lines_by_package(files: Iterable[tuple[str, int]]) -> Counter[str]:
    """Add up the lines of Python files."""
    lines: Counter[str] = Counter()
    for name, count in files:
        lines[package_of(name)] += count
    return lines


def commands() -> Iterator[tuple[str, int]]:
    """Yield each command of `muster`, and how many options it has besides --help."""
    from muster.console.app import NOUNS, noun_command

    def below(command: Any, name: str) -> Iterator[tuple[str, int]]:
        for verb, one in getattr(command, "commands", {}).items():
            yield from below(one, f"{name} {verb}")
        if not hasattr(command, "commands"):
            yield name, sum(one.param_type_name == "option" for one in command.params)

    for noun in NOUNS:
        yield from below(noun_command(noun), noun)


def settings(section: Any = None) -> int:
    """Return how many settings a section and those in it have; all, where none is given."""
    from muster.settings.schema import Section, Settings

    fields = (section or Settings).model_fields.values()
    kinds = (field.annotation for field in fields)
    return sum(settings(kind) if isinstance(kind, type) and issubclass(kind, Section) else 1 for kind in kinds)


def tables() -> dict[str, int]:
    """Return how many SQL tables the orchestrator has, an explorer, and how many others have in their journals."""
    from muster.ledger.tables import EXPLORER, ORCHESTRATOR

    texts = (ROOT / name for name, _ in tracked("muster/**.py", *(f"{process}/**.py" for process in PROCESSES)))
    made = sum(len(re.findall(r"\bCREATE TABLE\b", text.read_text(encoding="utf-8"))) for text in texts)
    return {
        "SQL tables of the orchestrator": len(ORCHESTRATOR),
        "SQL tables of the explorer": len(EXPLORER),
        "SQL tables of journals": made,
    }


def circles(graph: grimp.ImportGraph) -> set[frozenset[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    above = {module: graph.find_upstream_modules(module) for module in graph.modules}
    both = ({module, *(one for one in above[module] if module in above[one])} for module in above)
    return {frozenset(group) for group in both if len(group) > 1}


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


def budget_figures(graph: grimp.ImportGraph) -> Iterator[Figure]:
    """Yield how much there is of each thing that BUDGET limits, the sums last."""
    lines = lines_by_package(tracked(*(f"{package}/**.py" for package in (*PRODUCTION, *SUPPORT))))
    found: dict[str, int] = dict(sorted(lines.items()))
    web = tracked(*(f"{package}/**.{end}" for package in PRODUCTION for end in ("js", "css", "html")))
    found[WEB] = sum(count for _, count in web)
    options = [count for _, count in commands()]
    found["settings"], found["commands"], found["options"] = settings(), len(options), sum(options)
    found |= tables() | {"import circles": len(circles(graph))}
    for name, value in found.items():
        yield Figure(name, value, BUDGET.get(name))
    for name, packages in zip(SUMS, (PRODUCTION, SUPPORT), strict=True):
        total = sum(count for package, count in lines.items() if package.partition("/")[0] in packages)
        yield Figure(f"sum: {name}", total, SUMS[name])


def plan_figures(graph: grimp.ImportGraph) -> Iterator[Figure]:
    """Yield what the plan says of the library and of the console's packages. Prints what no process imports."""
    # 1. The library, and what of it no process imports.
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): count
        for name, count in tracked("muster/**.py")
    }
    others = ("", "__main__", *PARTS)
    library = {
        module: count
        for module, count in modules.items()
        if below(module, "muster") not in others and not module.startswith(GUEST)
    }
    starts = {module for module in graph.modules if module.split(".")[0] in PROCESSES} | {RELAY}
    unused = Counter(library)
    for module in reached(graph, starts):
        unused.pop(module, None)
    rooms = {below(module, "muster") for module in modules} - {"", "__main__"}
    print(f"library: {sum(library.values()):,} lines in {len(rooms) - len(PARTS)} rooms")
    for module, count in unused.most_common():
        print(f"  no process imports {module} ({count} lines)")

    # 2. The console's packages, and who imports whom.
    console = {module for module in graph.modules if module.startswith("muster.console.")}
    pairs = {
        (below(module, "muster.console"), below(imported, "muster.console"))
        for module in console
        for imported in graph.find_modules_directly_imported_by(module) & console
    }
    yield Figure("library lines that no process imports", unused.total() / sum(library.values()), MOST_UNUSED)
    yield Figure("rooms directly in muster/", len(rooms), MOST_ROOMS)
    packages = {below(module, "muster.console") for module in console}
    yield Figure("console: packages one level below", len(packages), MOST_PACKAGES)
    yield Figure("console: pairs of packages that import", len({(a, b) for a, b in pairs if a != b}), MOST_IMPORTS)


def main() -> int:
    graph = grimp.build_graph(*PRODUCTION, exclude_type_checking_imports=True, cache_dir=None)
    figures = [*plan_figures(graph), *budget_figures(graph)]
    print(*figures, sep="\n")
    for circle in circles(graph):
        print("import circle:", " ↔ ".join(sorted(circle)))
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
