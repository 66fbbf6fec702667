"""muster tasks: make the task set that a run's terms name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.session import Session, command
from muster.errors import UsageError

app = typer.Typer(help="Task sets.", no_args_is_help=True)


@command(app, "make")
def make(
    session: Session,
    path: Annotated[Path, typer.Argument(help="File to write.")],
    seed: Annotated[int, typer.Option(help="Equal seeds give equal tasks.")] = 0,
    family: Annotated[str, typer.Option(help="kind of task: sort or arithmetic.")] = "sort",
    levels: Annotated[str, typer.Option(help="Difficulties, comma-separated.")] = "3,4,5,6",
    train: Annotated[int, typer.Option(help="Training tasks.")] = 4096,
    held_out: Annotated[int, typer.Option("--held-out", help="Tasks kept for measuring.")] = 640,
) -> None:
    """Make a task set from a seed: training tasks, and held-out tasks that are never trained on."""
    from muster.tasks import make_task_set, save_task_set

    task_set = make_task_set(seed, family=family, levels=parse_numbers(levels), train=train, held_out=held_out)
    save_task_set(task_set, path)
    session.result({"path": str(path), "root": task_set.root, "train": train, "held_out": held_out})


def parse_numbers(text: str) -> tuple[int, ...]:
    """Comma-separated whole numbers. Raises UsageError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{text!r} is no list of numbers", hint="write it like 8,12,16") from error
