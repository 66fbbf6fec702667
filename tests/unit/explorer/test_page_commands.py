"""Commands that documents show are valid: the command-line parser accepts each of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer.main

from explorer.commitments import commitment_view
from explorer.courtroom import case_view
from explorer.steps import step_view
from muster.console import app as cli
from muster.contracts.registry import Role
from muster.ledger.database import Database
from testbed.runs.recorded_run import SampleRun, address


def parsed(line: str) -> dict[str, Any]:
    """Parse a command line as the shell and `muster` do and return the arguments of its command."""
    program, *words = shlex.split(line)
    assert program == "muster"
    command: Any = typer.main.get_command(cli.app)
    context = command.make_context("muster", words)
    while hasattr(command, "commands"):  # a group: the next word names one of its commands
        rest = [*context._protected_args, *context.args]  # noqa: SLF001 - where the library keeps that word
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    assert context.args == []
    return {name: value for name, value in context.params.items() if value is not None}


def given(line: str, *names: str) -> dict[str, Any]:
    arguments = parsed(line)
    return {name: arguments[name] for name in names}


@pytest.fixture
async def commands(tmp_path: Path) -> dict[str, Sequence[str]]:
    """Return the commands of a commitment, of a case about it and of a step."""
    database = await Database.open(f"sqlite:///{tmp_path}/orchestrator.db", "a test")
    run = SampleRun(database, tmp_path)
    await run.join("wanda")
    for validator in ("vera", "viktor"):
        await run.join(validator, Role.VALIDATOR)
    await run.publish(0, 1)
    for _ in range(4):
        await run.commit("wanda")
    await run.open_case(7, "vera", "wanda", 3)
    commitment = await database.read(lambda c: commitment_view(c, run.source, address("wanda"), 3))
    case = await database.read(lambda c: case_view(c, run.source, 7))
    step = await database.read(lambda c: step_view(c, run.source, [], 1))
    await database.close()
    assert commitment is not None
    assert step is not None
    return {
        "commitment": [line.command for line in commitment.commands],
        "case": case.commands,
        "step": step.commands,
    }


def test_commands_can_be_typed(commands: dict[str, Sequence[str]]) -> None:
    node = address("wanda")
    why, verify, case = commands["commitment"]
    assert given(why, "index", "node") == {"index": 3, "node": node}
    assert given(verify, "commitment") == {"commitment": f"{node}:3"}
    assert given(case, "case") == {"case": 7}
    rerun, show, verify = commands["case"]
    assert given(rerun, "case") == given(show, "case") == {"case": 7}
    assert given(verify, "commitment") == {"commitment": f"{node}:3"}
    fetch, serve = commands["step"]
    assert given(fetch, "step") == {"step": 1}
    assert given(serve, "model", "run") == {"model": "1", "run": 1}


@pytest.mark.parametrize("line", ["muster worker why", "muster slash verify x", "muster weights fetch --steps 1"])
def test_parser_refuses_invalid_commands(line: str) -> None:
    with pytest.raises(Exception, match=r"Missing parameter|valid integer|No such option") as caught:
        parsed(line)
    assert type(caught.value).__name__ in ("MissingParameter", "BadParameter", "NoSuchOption")
