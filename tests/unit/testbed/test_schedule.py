"""In which order the groups of tests start."""

from __future__ import annotations

from itertools import pairwise

from testbed.paths import ROOT
from testbed.suite.schedule import BROWSER, BROWSER_FOLDER, ENGINE, ENGINE_MODULES, LONGEST, WAITING, group_of, places


def in_order(groups: list[str]) -> list[str]:
    place = places(groups)
    return sorted(groups, key=place.__getitem__)


def test_the_longest_come_first_in_their_order() -> None:
    assert in_order(["tests/unit/test_a.py", *reversed(LONGEST), f"{WAITING}test_b.py"])[: len(LONGEST)] == [*LONGEST]


def test_those_that_wait_and_those_that_compute_take_turns() -> None:
    waiting = [f"{WAITING}test_{i}.py" for i in range(10)]
    computing = [f"tests/unit/test_{i}.py" for i in range(30)]
    ordered = in_order([*waiting, *computing])
    assert [group for group in ordered if group in waiting] == waiting
    assert [group for group in ordered if group in computing] == computing
    found = [at for at, group in enumerate(ordered) if group in waiting]
    assert {later - earlier for earlier, later in pairwise(found)} == {4}


def test_modules_that_are_named_are_there() -> None:
    named = [*ENGINE_MODULES, *(group for group in LONGEST if group not in (ENGINE, BROWSER))]
    assert [name for name in named if not (ROOT / name).is_file()] == []
    assert {group_of(f"{name}::test") for name in ENGINE_MODULES} == {ENGINE}
    in_browser = [f"{BROWSER_FOLDER}{path.name}" for path in (ROOT / BROWSER_FOLDER).glob("test_*.py")]
    assert in_browser
    assert {group_of(f"{name}::test") for name in in_browser} == {BROWSER}
