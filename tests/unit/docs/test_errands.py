"""The rows of "I want to add …" name every file: what is added as a row says works, and a row lacks no file.

Each example changes a copy of the tree, and there only the files that its row in docs/change/develop.md names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from muster.environments.registry import ENVIRONMENTS
from muster.protocol.reasons import Reason
from muster.settings.recipes import RECIPES
from testbed.paths import ROOT
from testbed.suite.sources import PRODUCTION
from testbed.waiting import BOUND
from tests.unit.docs.errands.changes import ENVIRONMENT, LOSS, PANEL, Errand
from tests.unit.docs.pages import first_cells, label, read, section, ticked

COPIED = ("docs", "explorer", "muster", "orchestrator", "scripts", "testbed", "trainer")
FILE = re.compile(r"[\w<>-]+(?:/[\w.<>-]+)+")
PROGRAMS = ROOT / "tests" / "unit" / "docs" / "errands"
BUILD_SECONDS = 900
SOURCES = (".py", ".sol")
ERRANDS = [ENVIRONMENT, LOSS, PANEL]


def cells(row: str) -> list[str]:
    """Return the cells of a row of the table: to add, touch, then, held by."""
    table = section("change/develop.md", "I want to add …")
    [line] = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", table, re.MULTILINE)
    return [row, *line.split(" | ")]


def files(row: str, name: str = "") -> set[str]:
    """Return the files that a row says to touch."""
    return {path.replace("<name>", name) for path in ticked(cells(row)[1]) if FILE.fullmatch(path)}


def added(errand: Errand, folder: Path) -> Path:
    """Copy the tree and change what the errand's row names; nothing else is touched."""
    tree = folder / "tree"
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("built"))
    for path in sorted(files(errand.row, errand.name) & errand.changes.keys()):
        for change in errand.changes[path]:
            change.apply(tree / path)
    return tree


def run(tree: Path, program: str, *arguments: str, seconds: float = BOUND, **variables: str) -> str:
    """Run a program on the packages of a tree; return what it prints."""
    command = [sys.executable, "-P", program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree), **variables}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=seconds)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return done.stdout.decode()


def used(tree: Path, errand: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """Return what an errand's program says of a tree."""
    return json.loads(run(tree, str(PROGRAMS / f"use_{errand}.py"), *arguments, **variables))


@pytest.mark.parametrize("errand", ERRANDS, ids=lambda errand: errand.row)
def test_the_row_names_the_files_of_its_example(errand: Errand) -> None:
    assert files(errand.row, errand.name) == errand.changes.keys()


def test_a_loss_is_added_and_trains(tmp_path: Path) -> None:
    found = used(added(LOSS, tmp_path), "loss")
    assert found["bound"] == [5.0, None]
    assert found["cispo"] == pytest.approx([-2.0, 10.0])  # the ratios 2 and 8, at most 5, times −1 and 2
    assert found["grpo"] == pytest.approx([0.0, 16.0])  # the upper clip, and none for a bad token
    assert found["trained"] is True


def test_a_panel_is_added_and_appears(tmp_path: Path) -> None:
    found = used(added(PANEL, tmp_path), "panel", str(tmp_path))
    [panel] = re.findall(r'<section [^>]*data-fragment="accusations">(.*?)</section>', found["page"], re.DOTALL)
    assert re.findall(r"<td[^>]*>([^<]+)</td>", panel) == ["wrong reward", "2"]
    assert found["document"]["accusations"] == {"wrong_reward": 2}
    [shown] = re.findall(r'data-live="accusations">(\d+)<', panel)
    assert shown == found["live"]["accusations"] == "2"
    [anchor] = re.findall(r'href="/explain#([\w-]+)"', panel)
    assert f'id="{anchor}"' in found["words"]
    [kind] = re.findall(r'<table class="(\w+)">', panel)
    assert re.search(rf"^\.{kind} ", found["style"], re.MULTILINE)


@pytest.mark.slow
def test_an_environment_is_added_and_scores_in_the_sandbox(tmp_path: Path) -> None:
    tree = added(ENVIRONMENT, tmp_path)
    [build] = re.findall(r"`python (scripts/\w+\.py)`", cells(ENVIRONMENT.row)[2])
    run(tree, build, seconds=BUILD_SECONDS)
    [named] = [path for path in ticked(cells(ENVIRONMENT.row)[2]) if path.endswith(".sha256")]
    assert (tree / named).read_text() != (ROOT / named).read_text()
    # Compiled components go to the test's folder: this one is of no use to others.
    assert used(tree, "environment", XDG_CACHE_HOME=str(tmp_path / "cache")) == {
        "parts": [[1_000_000], [0]],
        "used fuel": True,
        "reason": "another word",
        "component": True,
    }


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a reason to slash, found without a model", "wrong_termination"),
        ("a reason to slash, found by replay", "sampling_mismatch"),
    ],
)
def test_a_row_names_every_file_that_names_a_reason_of_its_kind(row: str, reason: str) -> None:
    names = re.compile(rf"\b(?:{reason}|{reason.upper()})\b")
    paths = [path for room in (*PRODUCTION, "contracts") for path in (ROOT / room).rglob("*")]
    named = {label(path) for path in paths if path.suffix in SOURCES and names.search(read(path))}
    assert named
    assert named <= files(row)


def test_the_protocol_page_numbers_the_reasons_as_the_code_does() -> None:
    text = section("understand/protocol.md", "Verdict").split("- `reason` is one of these", 1)[1]
    listed = text.split(":\n", 1)[1].split(".", 1)[0]
    assert tuple(ticked(listed)) == get_args(Reason)


def test_every_environment_and_every_recipe_has_its_row() -> None:
    assert set(first_cells(section("use/environments.md", "The environments"))) == set(ENVIRONMENTS)
    assert set(first_cells(section("use/training.md", "Recipes"))) == set(RECIPES)
