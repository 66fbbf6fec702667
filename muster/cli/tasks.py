"""muster tasks: make the task set that a run's terms name, and keep of it what a model can learn from."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from muster.cli.sampling import (
    BudgetsOption,
    MaxTokensOption,
    ProfileOption,
    SamplesOption,
    SeedOption,
    TemperatureOption,
    make_sampling,
    model_hashes,
    sample_tasks,
    sampling_document,
)
from muster.cli.session import Session, as_table, command, parse_numbers
from muster.errors import CheckError, ConfigError, UsageError
from muster.evaluation.cache import AnswerJournal
from muster.evaluation.pass_at_k import Band, FilteredTasks, sift
from muster.evaluation.request import EvalRequest
from muster.tasks import load_task_set, make_task_set, save_task_set

app = typer.Typer()

BAR_WIDTH = 40
"""Columns of the longest bar of a histogram."""


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
    task_set = make_task_set(seed, family=family, levels=parse_numbers(levels), train=train, held_out=held_out)
    save_task_set(task_set, path)
    session.result({"path": str(path), "root": task_set.root, "train": train, "held_out": held_out})


@command(app, "filter")
async def filter_(
    session: Session,
    tasks: Annotated[Path, typer.Argument(help="Task set (muster tasks make).")],
    model: Annotated[Path, typer.Argument(help="Checkpoint folder of the model that a run would begin with.")],
    out: Annotated[Path, typer.Argument(help="Task set to write.")],
    low: Annotated[float, typer.Option(min=0, max=1, help="Lowest pass rate that is kept.")] = 0.1,
    high: Annotated[float, typer.Option(min=0, max=1, help="Highest pass rate that is kept.")] = 0.8,
    samples: SamplesOption = 8,
    budgets: BudgetsOption = None,
    temperature: TemperatureOption = None,
    max_tokens: MaxTokensOption = None,
    seed: SeedOption = 0,
    profile: ProfileOption = None,
) -> None:
    """Keep the training tasks that a model solves at a rate from --low to --high, both included.

    Held-out tasks stay as they are. Answers are kept in OUT.answers: an interrupted filter goes on where it was, and
    another band of the same answers takes no time.
    """
    # 1. Check the options and the files.
    band = Band(low, high)
    band.check_reachable(samples)
    sampling = make_sampling(samples, budgets, temperature, max_tokens, seed, profile)
    _check_out(out, tasks)
    task_set = await asyncio.to_thread(load_task_set, tasks)
    identity = {name: value.hex() for name, value in (await asyncio.to_thread(model_hashes, model)).items()}
    identity |= {"task_root": task_set.root.hex(), **sampling_document(sampling)}
    request = EvalRequest(
        model=model, tasks=tasks, root=task_set.root, part="train", count=task_set.size, sampling=sampling
    )

    # 2. Ask, and sort the tasks by their pass rates.
    begun = time.monotonic()
    with AnswerJournal(out.with_name(out.name + ".answers"), identity) as journal:
        right = await _right(session, request, journal)
    sifted = sift(right, samples, band)
    if not sifted.kept:
        raise _nothing_left(sifted, band)

    # 3. Write those that are kept.
    kept = task_set.choose(sifted.kept)
    save_task_set(kept, out)
    document = {
        "path": str(out),
        "root": kept.root,
        "train": kept.size,
        "held_out": len(kept.held_out),
        "from_root": task_set.root,
        "from_train": task_set.size,
        "too_hard": sifted.too_hard,
        "too_easy": sifted.too_easy,
        "low": low,
        "high": high,
        "histogram": [
            {"pass_rate": right / samples, "tasks": count, "kept": right / samples in band}
            for right, count in enumerate(sifted.histogram)
        ],
        **identity,
        "seconds": round(time.monotonic() - begun, 1),
    }
    session.result(document, _for_people(document))


async def _right(session: Session, request: EvalRequest, journal: AnswerJournal) -> list[int]:
    """Return right answers per task: those of the journal, then new ones, each in the journal before it counts."""
    known = journal.answers()
    right = [one.right for one in known]
    if known:
        session.note(f"{len(known)} of {request.count} tasks were answered before")
    try:
        async with aclosing(sample_tasks(session, replace(request, first=len(known)))) as answers:
            async for one in answers:
                journal.add(one)
                right.append(one.right)
    finally:
        if 0 < len(right) < request.count:
            session.note(f"{len(right)} of {request.count} tasks are answered; the same command goes on from there")
    return right


def _check_out(out: Path, tasks: Path) -> None:
    if out.is_dir():
        raise UsageError(f"{out} is a folder", hint="name the file to write")
    if out.resolve() == tasks.resolve():
        raise UsageError("OUT is TASKS: the whole set would be gone", hint="name another file to write")
    if not out.parent.is_dir():
        raise ConfigError(
            f"there is no folder {out.parent}", hint=f"make it, or write OUT elsewhere than in {out.parent}"
        )


def _nothing_left(sifted: FilteredTasks, band: Band) -> CheckError:
    hint = "begin with a better model or easier tasks (muster tasks make --levels), or lower --low"
    if sifted.too_easy > sifted.too_hard:
        hint = "make harder tasks (muster tasks make --levels), or raise --high"
    return CheckError(
        f"no task has a pass rate from {band.low:g} to {band.high:g}: "
        f"{sifted.too_hard} are too hard, {sifted.too_easy} too easy",
        hint=f"{hint}; the answers are kept, so another band takes no time",
    )


def _for_people(document: dict[str, Any]) -> Group:
    highest = max(row["tasks"] for row in document["histogram"])
    rows = [
        {
            "pass rate": f"{row['pass_rate']:.3f}",
            "tasks": row["tasks"],
            "": "█" * -(-BAR_WIDTH * row["tasks"] // highest),
            "kept": "yes" if row["kept"] else "",
        }
        for row in document["histogram"]
    ]
    about = (
        f"kept {document['train']} of {document['from_train']} training tasks; {document['too_hard']} too hard, "
        f"{document['too_easy']} too easy; all {document['held_out']} held-out tasks"
    )
    where = f"wrote {document['path']}, root 0x{document['root'].hex()}"
    return Group(as_table(rows), Text(about), Text(where))
