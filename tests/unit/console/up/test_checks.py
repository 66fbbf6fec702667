"""What of a machine's checks stops a node, and what is said of the others."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from muster.console.node.doctor import Check
from muster.console.session import Options, Session
from muster.console.up.checks import report
from muster.errors import CheckError


def session() -> tuple[Session, io.StringIO]:
    said = io.StringIO()
    return Session(Options(), stderr=Console(file=said, highlight=False, width=200)), said


def test_passed_checks_are_one_line_and_a_warning_stops_nothing() -> None:
    outer, said = session()
    report(outer, [Check("python", "ok", "3.12.1"), Check("disk", "warn", "4 GB free", "free at least 5 GB")])
    assert said.getvalue().splitlines() == [
        "warn  disk: 4 GB free",
        "      next: free at least 5 GB",
        "doctor: 2 checks, nothing is missing",
    ]


def test_a_failed_check_names_its_fix_and_ends_with_3() -> None:
    outer, said = session()
    checks = [
        Check("packages", "fail", "none of torch, vllm", "make setup"),
        Check("tasks", "fail", "no \x1b[2J walls"),
    ]
    with pytest.raises(CheckError, match="this machine cannot work for the run yet: packages, tasks") as caught:
        report(outer, checks)
    assert (caught.value.exit_code, caught.value.hint) == (3, "make setup")
    assert said.getvalue().splitlines() == [
        "fail  packages: none of torch, vllm",
        "      next: make setup",
        "fail  tasks: no \\x1b[2J walls",
    ]
