"""muster tasks: make or import the task set that a run's terms name, look into it, check and seal it.

Long verbs have rooms of their own: `tasks_import`, `tasks_filter`. Rooms that a command alone needs are
imported within it: `muster --help` must not wait for them.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Group

from muster.console.command import command
from muster.console.sampling import progress
from muster.console.session import Session, as_table, parse_numbers
from muster.console.tasks.filter import filter_
from muster.console.tasks.import_options import TokenizerOption
from muster.console.tasks.import_sources import import_
from muster.errors import CheckError, UsageError
from muster.tasksets.taskset import COMPONENTS_NAME, TaskSet

app = typer.Typer()

EPOCHS: Final = 30
EPOCH_STEPS: Final = 24 * 60
"""A day, where a step takes a minute."""


@command(app, "make")
def make(
    session: Session,
    path: Annotated[Path, typer.Argument(help="Folder to write.")],
    seed: Annotated[int, typer.Option(help="Equal seeds give equal tasks.")] = 0,
    family: Annotated[
        str, typer.Option(help="Kinds of task, comma-separated: sort, arithmetic, sums, stories.")
    ] = "sort",
    levels: Annotated[
        str, typer.Option(help="Difficulties, comma-separated; of sums and stories, the largest summands.")
    ] = "3,4,5,6",
    train: Annotated[int, typer.Option(help="Training tasks of each kind.")] = 4096,
    held_out: Annotated[int, typer.Option("--held-out", help="Tasks of each kind that are kept for measuring.")] = 640,
) -> None:
    """Make a task set from a seed: training tasks, and held-out tasks that are never trained on."""
    from muster.authoring.tasks.generated import make_task_set

    task_set = make_task_set(
        seed, families=family.split(","), levels=parse_numbers(levels), train=train, held_out=held_out, folder=path
    )
    session.result({"path": str(path), "root": task_set.root, "train": train, "held_out": held_out})


command(app, "import")(import_)


@command(app, "mix")
def mix(
    session: Session,
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    sets: Annotated[list[str], typer.Argument(help="Task sets with weights: FOLDER:WEIGHT; 1 without one. Or files.")],
) -> None:
    """Make one task set of several, each drawn by its weight. A file is taken as an environment (muster env fetch).

    Training tasks that are nearly equal to a held-out task of any of the sets are left out.
    """
    from muster.authoring.tasks.mixing import mix_sets

    opened = []
    with tempfile.TemporaryDirectory(prefix="muster-mix-") as unpacked:
        for text in sets:
            folder, mark, weight = text.rpartition(":")
            if not mark or not weight.isdecimal():
                folder, weight = text, "1"
            if Path(folder).resolve() == out.resolve():
                raise UsageError(f"OUT is one of the sets: {out}", hint="name another folder to write")
            opened.append((_open_or_unpack(Path(folder), Path(unpacked) / str(len(opened))), int(weight)))
        mixed, left_out = mix_sets(out, opened)
    document = {"path": str(out), **about_set(mixed), "left_out": dict(left_out.most_common())}
    session.result(document, set_for_people(document))


def _open_or_unpack(path: Path, folder: Path) -> TaskSet:
    """Open a task set, or make one of an environment's file in `folder`."""
    if not path.is_file():
        return TaskSet.open(path)
    from muster.authoring.contributions.unpack import unpack
    from muster.console.tasks.env_check import read_pack_file
    from muster.sandbox.component import local_component

    pack = read_pack_file(path)
    return unpack(pack.contribution, pack.hash, folder, local_component().hash)


@command(app, "seal")
def seal(
    session: Session,
    tasks: Annotated[Path, typer.Argument(help="Folder of a task set, finished: mixed, filtered and checked.")],
    part: Annotated[list[str], typer.Option("--part", help="Training part whose references are sealed.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")],
    masters: Annotated[
        Path, typer.Option(help="New file for the secret that opens them. Keep it, and keep it secret.")
    ],
    epochs: Annotated[
        int, typer.Option(min=1, help="Epochs that the tasks are shared out over, each with its own secret.")
    ] = EPOCHS,
    epoch_steps: Annotated[
        int, typer.Option(min=1, help="Steps of an epoch but the last, which goes on. Choose about a day's.")
    ] = EPOCH_STEPS,
) -> None:
    """Seal the references of a part: only you and the trainer read them until their epoch is over.

    Prints the three terms that go into the run's terms file. The trainer reads the secrets by trainer.grade_masters.
    """
    from muster.authoring.tasks.sealing import seal_set
    from muster.chain.keys import refuse_existing
    from muster.chain.masters_file import write_masters
    from muster.tasksets.masters import Masters

    if out.resolve() == tasks.resolve():
        raise UsageError("OUT is TASKS: the references would be gone", hint="name another folder to write")
    refuse_existing(masters)
    made = Masters.make(epochs)
    write_masters(masters, made)
    try:
        sealed = seal_set(TaskSet.open(tasks), part, out, made)
    except BaseException:
        masters.unlink()  # nothing is sealed under them
        raise
    terms = {"grade_tip": made.tip, "grade_epochs": epochs, "grade_epoch_steps": epoch_steps}
    document = {"path": str(out), **about_set(sealed), "masters": str(masters), **terms}
    session.result(document, set_for_people(document))


@command(app, "show")
def show(
    session: Session,
    tasks: Annotated[Path, typer.Argument(help="Folder of a task set.")],
    slot: Annotated[
        int | None, typer.Argument(min=0, help="Show the task that the chain means by this number.")
    ] = None,
    epoch: Annotated[int, typer.Option(min=1, help="Epoch in which the number was drawn, where parts are sealed.")] = 1,
) -> None:
    """Show what a task set consists of, or one task of it with its proof."""
    task_set = TaskSet.open(tasks)
    if epoch > max(1, task_set.document.epochs):
        raise UsageError(f"epoch {epoch} of {task_set.document.epochs}", hint="muster tasks show TASKS names them")
    task_set = task_set.at(epoch)
    if slot is None:
        document = {"path": str(tasks), **about_set(task_set)}
        session.result(document, set_for_people(document))
        return
    if slot >= task_set.size:
        raise UsageError(f"slot {slot} of {task_set.size}", hint=f"give a number from 0 to {task_set.size - 1}")
    task, proof, part = task_set.task(slot), task_set.proof(slot), task_set.part(slot)
    session.result(
        {
            "slot": slot,
            "part": part.name,
            "index": task_set.locate(slot)[1],
            "environment": part.environment.name,
            "sealed": part.sealed or None,
            "id": task.id,
            "level": task.level,
            "author": task.author,
            "messages": [f"{message.role}: {message.content}" for message in task.messages],
            "reference": dict(task.reference),
            "bytes": len(proof.line),
            "proof_bytes": 32 * len(proof.path),
            "part_root": part.root,
        }
    )


@command(app, "check")
def check(
    session: Session,
    tasks: Annotated[Path, typer.Argument(help="Folder of a task set.")],
    tokenizer: TokenizerOption = None,
    budgets: Annotated[
        str | None, typer.Option(help="Thinking budgets of the run, which prompts announce; else the largest of all.")
    ] = None,
    attack: Annotated[
        int, typer.Option(help="Tasks of each part on which answers that cost no thought are tried.", min=0, max=1000)
    ] = 0,
) -> None:
    """Check every task: its reference answer must score 1 and an empty answer 0, in the sandbox where one is needed.

    Exit code 3 when a task fails, or when an answer of --attack pays more often than it is right. Also checks the
    Merkle roots, and that nothing held out is trained on.
    """
    from muster.authoring.tasks.checking import PartReport, check_set, summary
    from muster.authoring.tasks.counting import token_counter
    from muster.environments.scoring import Scorers

    # 1. Check.
    task_set, begun = TaskSet.open(tasks), time.monotonic()
    document = task_set.document
    total = document.train_count + document.held_out_count
    with Scorers(tasks / COMPONENTS_NAME) as scorers, progress(session, total, 0) as shown:
        counter = None if tokenizer is None else token_counter(tokenizer, parse_numbers(budgets) if budgets else ())
        reports = check_set(task_set, scorers.environment, scorers.call_of, counter, shown, attack)

    # 2. Say what it came to.
    def row(report: PartReport, *, held_out: bool) -> dict[str, Any]:
        return {
            "part": report.name,
            "half": "held-out" if held_out else "train",
            "environment": report.environment,
            "tasks": report.tasks,
            "without_answer": report.without_answer,
            "sealed": report.sealed,
            "faults": dict(report.faults.most_common()),
            "fuel": summary(report.fuel),
            "prompt_tokens": summary(report.tokens),
        }

    rows = [row(report, held_out=i >= len(document.parts)) for i, report in enumerate(reports)]
    for report in reports:
        for name, fault, more in report.examples:
            session.note(f"{report.name} {name!r}: {fault}{': ' + more if more else ''}")
    faults = sum(sum(report.faults.values()) for report in reports)
    result = {"path": str(tasks), "root": task_set.root, "faults": faults, "parts": rows}
    result["seconds"] = round(time.monotonic() - begun, 1)
    session.result(result, set_for_people(result))
    if faults:
        raise typer.Exit(CheckError.exit_code)


command(app, "filter")(filter_)


def about_set(task_set: TaskSet) -> dict[str, Any]:
    """Return a task set's document in short."""
    document = task_set.document
    halves = [("train", part) for part in document.parts] + [("held-out", part) for part in document.held_out]
    return {
        "root": task_set.root,
        "slots": task_set.size,
        "train": document.train_count,
        "held_out": document.held_out_count,
        "absent_shards": len(task_set.missing()) + len(task_set.missing_held_out()),
        "parts": [
            {
                "part": part.name,
                "half": half,
                "environment": part.environment.name,
                "tools": turns.names if (turns := part.environment.turns) else (),
                "weight": part.weight if half == "train" else None,
                "sealed": part.sealed or None,
                "tasks": part.count,
                "shards": len(part.shards),
                "bytes": sum(shard.bytes for shard in part.shards),
                "sources": [f"{source.origin} ({source.licence})" for source in part.sources],
                "author": part.author,
            }
            for half, part in halves
        ],
    }


def set_for_people(document: dict[str, Any]) -> Group:
    totals = {name: value for name, value in document.items() if name != "parts"}
    return Group(as_table(totals), "", as_table(document["parts"]))
