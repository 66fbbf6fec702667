"""What of a machine's checks stops a node, and what is said of the others."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from muster.console.node import doctor, machine_checks
from muster.console.node.doctor import Check
from muster.console.node.machine_checks import check_machine, report
from muster.console.session import Options, Session
from muster.errors import CheckError
from testbed.waiting import until


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


async def test_a_check_that_takes_long_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The sandbox is compiled for as long as the test lets it; all others answer at once."""
    outer, said = session()
    compiled = asyncio.Event()

    async def at_once(*_: object) -> Check:
        return Check("quick", "ok", "")

    async def compiling(_: Session) -> Check:
        await compiled.wait()
        return Check("scorer", "ok", "compiled")

    for module, name in (
        (doctor, "contracts"),
        *((machine_checks, name) for name in ("_orchestrator", "_device", "_tasks")),
    ):
        monkeypatch.setattr(module, name, at_once)
    monkeypatch.setattr(doctor, "scorer", compiling)
    monkeypatch.setattr(machine_checks, "QUIET_SECONDS", 0.01)
    checking = asyncio.create_task(check_machine(outer, tmp_path / "state"))
    await until(lambda: said.getvalue() != "")
    assert said.getvalue() == (
        "waits for the sandbox, which is compiled at its first start: half a minute on one core …\n"
    )
    compiled.set()
    assert Check("scorer", "ok", "compiled") in await checking
