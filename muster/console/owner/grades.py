"""muster grades: what the trainer said of private tests, graded again."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.console.command import command
from muster.console.session import EXIT_CHECK, RunOption, Session
from muster.errors import UsageError

if TYPE_CHECKING:
    from muster.console.owner.grade_check import GradeReport

app = typer.Typer()

FOLDER: Final = Path(".muster/grades")
"""Where the newest weights and the task set of a run are kept, for its tokenizer and its tests."""
MAX_EXAMPLES: Final = 20
"""Sentences of a kind that are printed."""


@command(app, "check", reads=True)
async def check(
    session: Session,
    run: RunOption = None,
    epoch: Annotated[int | None, typer.Option(min=1, help="One epoch; else all whose masters are shown.")] = None,
) -> None:
    """Grade private tests again by the masters that the trainer has shown, and name what it said that is not so.

    Exit code 0 when every grade comes out, 3 when one does not, or cannot be checked.
    """
    number = run or session.settings.run
    report = await _grade_again(session, number, epoch)
    counts = {name: len(getattr(report, name)) for name in ("lies", "unchecked")}
    shown = {name: getattr(report, name)[:MAX_EXAMPLES] for name in counts}
    session.result({"run": number, **asdict(report), **shown, **{f"{name}_in_all": n for name, n in counts.items()}})
    if any(counts.values()):
        raise typer.Exit(EXIT_CHECK)


async def _grade_again(session: Session, run: int, epoch: int | None) -> GradeReport:
    from muster.clients.run_data import RunTasks, make_rules
    from muster.console.evaluate.weights import fetch_run_step
    from muster.console.owner.grade_check import GradeCheck
    from muster.rollouts.reader import RolloutReader

    folder = FOLDER / f"run-{run}"
    async with session.chain() as chain, session.orchestrator(chain) as client, RolloutReader() as reader:
        terms = await chain.terms(run)
        if not terms.has_private_tests:
            raise UsageError(f"run {run} has no private tests", hint=f"muster run show {run} --terms")
        checkpoint = (await fetch_run_step(session, run, None, folder, whole=False)).path
        tasks = await RunTasks.fetch(client, terms, folder)
        rules = await asyncio.to_thread(make_rules, chain, run, terms, tasks, checkpoint)
        with rules.scorers:
            return await GradeCheck(chain, client, reader, rules, tasks).run(epoch)
