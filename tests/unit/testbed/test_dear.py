"""What may be dear in `make test` is listed with its promise, and the list says no more than is so."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.paths import ROOT
from testbed.suite.dear import compare, read_list, summary
from testbed.suite.durations import is_whole

PROMISES = {"tests/a.py::test_story": "a story", "tests/a.py::test_cases": "all cases", "tests/a.py::test_gone": "-"}


def test_the_list_has_a_limit_and_names_files_that_are_there() -> None:
    listed = read_list()
    assert len(listed.promises) <= listed.limit
    assert all(promise.strip() for promise in listed.promises.values())
    assert [name for name in listed.promises if not (ROOT / name.split("::")[0]).exists()] == []


def test_what_is_dear_and_not_listed_is_named_and_fails_far_above() -> None:
    cpu = {"tests/a.py::test_story": 50.0, "tests/a.py::test_cases[one]": 6.0, "tests/a.py::test_cases[two]": 0.1}
    listed = {name: PROMISES[name] for name in ("tests/a.py::test_story", "tests/a.py::test_cases")}
    assert compare(cpu, listed) == ([], False)
    assert compare(cpu | {"collection": 60.0, "tests/b.py::test_cheap": 4.9}, listed) == ([], False)
    sentence = "tests/b.py::test_new takes {} CPU seconds: make it cheaper, or list it in dear.toml"
    assert compare(cpu | {"tests/b.py::test_new": 9.9}, listed) == ([sentence.format(9.9)], False)
    assert compare(cpu | {"tests/b.py::test_new": 10.1}, listed) == ([sentence.format(10.1)], True)


def test_what_is_listed_and_gone_or_cheap_is_named() -> None:
    cpu = {"tests/a.py::test_story": 2.9, "tests/a.py::test_cases[one]": 3.0}
    assert compare(cpu, PROMISES) == (
        [
            "tests/a.py::test_story takes 2.9 CPU seconds: remove it from dear.toml",
            "tests/a.py::test_gone is listed in dear.toml and did not run: remove it there",
        ],
        False,
    )


def test_the_sum_stands_beside_the_budget(tmp_path: Path) -> None:
    (tmp_path / "durations.json").write_text(json.dumps({"seconds": 1200.0, "of": {}}))
    (tmp_path / "lint.times").write_text("0m0.000000s 0m0.000000s\n1m50.500000s 0m9.500000s\n")
    (tmp_path / "test-contracts.times").write_text("0m0.000000s 0m0.000000s\n1m0.000000s 0m0.000000s\n")
    line = "CPU minutes: 23.0 of 41 (pytest 20.0, lint 2.0, test-contracts 1.0)"
    assert summary(tmp_path, budget_minutes=41) == line


@pytest.mark.parametrize(
    ("options", "paths", "whole"),
    [
        ({"markexpr": "not slow", "keyword": ""}, False, True),
        ({"markexpr": "not slow", "keyword": "", "cov_source": ["muster"]}, False, False),
        ({"markexpr": "not slow", "keyword": "story"}, False, False),
        ({"markexpr": "not slow", "keyword": ""}, True, False),
        ({"markexpr": "slow or hypothesis", "keyword": ""}, False, False),
    ],
)
def test_only_a_whole_run_is_compared(options: dict[str, Any], paths: bool, whole: bool) -> None:
    sources = pytest.Config.ArgsSource
    source = sources.ARGS if paths else sources.TESTPATHS
    config = SimpleNamespace(option=SimpleNamespace(**options), args_source=source, ArgsSource=sources)
    assert is_whole(config) is whole  # type: ignore[arg-type]
