"""muster trainer: run the trainer of a run, and draw how it went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.console.command import command
from muster.console.session import Session

app = typer.Typer()


@command(app, "run")
def run(session: Session) -> None:
    """Train until the run's steps are done; resumes where it stopped."""
    session.become("trainer")


@command(app, "plot")
def plot(
    session: Session,
    metrics: Annotated[
        Path | None, typer.Option(help="A trainer's metrics.jsonl; else the one in trainer.state_dir.")
    ] = None,
    out: Annotated[Path, typer.Option(help="SVG file to write.")] = Path("training.svg"),
) -> None:
    """Draw how training went: rewards, lengths, mismatch, staleness, where the time went."""
    from muster.runtime.files import write_durably
    from muster.swarm.training_plots import picture, read_steps

    options = session.settings.trainer
    source = metrics or options.state_dir / "metrics.jsonl"
    steps = read_steps(source)
    write_durably(out, picture(steps, alarm=options.mismatch_alarm).encode())
    session.result({"path": str(out), "steps": len(steps), "first": steps[0].step, "last": steps[-1].step})
