"""Tests can be found: every directory is a package, no two modules share a name, and nothing leads back to tests."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from testbed.paths import ROOT

TESTS = ROOT / "tests"
MODULES = sorted(TESTS.rglob("*.py"))
JUDGES = [path for path in sorted((ROOT / "muster/verification").glob("*.py")) if path.name != "audit.py"]
"""All of the room but what reads a file and the chain."""
IMPORTERS = [path for top in ("benchmarks", "testbed") for path in sorted((ROOT / top).rglob("*.py"))]


def modules_imported_by(path: Path) -> set[str]:
    """The modules that a file imports, at its top or within a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {module.parent for module in MODULES}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_no_two_test_modules_are_one_module_to_pytest() -> None:
    names = Counter(".".join(module.relative_to(ROOT).with_suffix("").parts) for module in MODULES)
    shadowed = [module for module in MODULES if module.with_suffix("").is_dir()]
    assert ([name for name, count in names.items() if count > 1], shadowed) == ([], [])


def test_unit_tests_mirror_the_tree() -> None:
    packages = [path.parent.relative_to(TESTS / "unit") for path in sorted((TESTS / "unit").rglob("__init__.py"))]
    named = [room for room in packages if not {"data", "errands"} & set(room.parts)]
    assert [str(room) for room in named if not ((ROOT / room).is_dir() or (ROOT / "muster" / room).is_dir())] == []


@pytest.mark.parametrize("path", IMPORTERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_benchmarks_and_testbed_import_no_tests(path: Path) -> None:
    assert not {name for name in modules_imported_by(path) if name.split(".")[0] == "tests"}


@pytest.mark.parametrize("path", JUDGES, ids=lambda path: path.name)
def test_judges_are_pure(path: Path) -> None:
    """`validator/evidence.py` gathers what they take: they import no client, and nothing in them waits."""
    clients = ("asyncio", "muster.chain.client", "muster.chain.reads", "muster.rollouts.reader")
    assert not {name for name in modules_imported_by(path) if name.startswith(clients)}
    waiting = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    assert not any(isinstance(node, waiting) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def test_modules_of_tests_import_no_test_module() -> None:
    """What two of them need is in testbed/."""
    leaks = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in MODULES
        for name in modules_imported_by(path)
        if name.startswith("tests.") and name.rpartition(".")[2].startswith(("test_", "conftest"))
    ]
    assert leaks == []
