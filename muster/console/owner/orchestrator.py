"""muster orchestrator: run the service between workers, validators and trainer."""

from __future__ import annotations

import typer

from muster.console.command import command
from muster.console.session import Session

app = typer.Typer()


@command(app, "run")
def run(session: Session) -> None:
    """Serve until interrupted. Its database can be deleted: it is rebuilt from chain and storage."""
    session.become("orchestrator")
