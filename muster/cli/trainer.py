"""muster trainer: run the trainer of a run."""

from __future__ import annotations

import typer

from muster.cli.execute import become
from muster.cli.session import Session, command

app = typer.Typer(help="The trainer: batches, updates, checkpoints.", no_args_is_help=True)


@command(app, "run")
def run(session: Session) -> None:
    """Train until the run's steps are done; picks up where it was."""
    become(session, "trainer")
