"""muster grades: what validators said of private tests, graded again."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.console.command import command
from muster.console.session import Session

app = typer.Typer()


@command(app, "check", reads=True)
def check(
    session: Session,
    run: Annotated[
        int | None, typer.Option("--run", min=1, help="Number of the run; else that of the settings.")
    ] = None,
    epoch: Annotated[int | None, typer.Option(min=1, help="One epoch; else all whose masters are revealed.")] = None,
) -> None:
    """Grade everything again by the revealed masters. Exit code 0 when every grade comes out, 3 when one does not."""
    chosen = [] if run is None else ["--run", str(run)]
    chosen += [] if epoch is None else ["--epoch", str(epoch)]
    session.become("validator", "grades", *chosen, *(["--json"] if session.options.json else []))
