"""muster trainer: run the trainer of a run."""

from __future__ import annotations

import typer

from muster.console.command import command
from muster.console.session import Session

app = typer.Typer()


@command(app, "run")
def run(session: Session) -> None:
    """Train until the run's steps are done; resumes where it stopped."""
    session.become("trainer")
