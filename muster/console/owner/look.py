"""muster look: what a run's trainer counted of validators' looks, counted again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from muster.console.command import command
from muster.console.session import EXIT_CHECK, RunArgument, Session
from muster.runtime.units import Tokens

app = typer.Typer()

FOLDER: Final = Path(".muster/looks")
"""Where the calibration of a run is kept, and the weights that its looks were made with."""
MAX_EXAMPLES: Final = 20
"""Differences that are printed."""


@command(app, "verify", reads=True)
async def verify(
    session: Session,
    run: RunArgument = None,
    hour: Annotated[int | None, typer.Option(min=0, help="Hours since 1970; else that of the latest list.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Replay the rows that the trainer checked as well.")] = False,
) -> None:
    """Count an hour's looks again: who was called, what came in time, what was checked, and what that pays.

    Exit code 0 when the trainer's list is what comes of it, 3 when it is not.
    """
    from muster.clients.look_check import LookCheck
    from muster.clients.looks import LooksReader
    from muster.clients.relays import Relays
    from muster.clients.run_data import CheckpointFetcher, fetch_profile
    from muster.rollouts.reader import RolloutReader

    number = run or session.settings.run
    folder = FOLDER / f"run-{number}"
    async with session.chain() as chain, session.orchestrator(chain) as client, RolloutReader() as rollouts:
        terms = await chain.terms(number)
        check = LookCheck(LooksReader(chain, client, number), terms, await fetch_profile(client, terms, folder))
        report = await check.run(hour)
        if replay:
            relays = Relays(session.settings.shardcast, client, number)
            await check.replay(report, CheckpointFetcher(chain, terms, relays, folder / "weights"), rollouts)
    shown = {"wages": Tokens(report.wages), "differences": report.differences[:MAX_EXAMPLES]}
    session.result({"run": number, **asdict(report), **shown, "differences_in_all": len(report.differences)})
    if report.differences:
        raise typer.Exit(EXIT_CHECK)
