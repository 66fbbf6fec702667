"""What `muster tasks filter` does: keep the training tasks that a model solves sometimes, and not always."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from muster.authoring.evaluation.pass_at_k import Band, FilteredTasks, sift
from muster.authoring.evaluation.records import RecordFile
from muster.clients.evaluation import EvalRequest, read_result
from muster.console.sampling import AS_USUAL, SamplesOption, SamplingOptions, model_hashes, record_tasks
from muster.console.session import Session, as_table
from muster.errors import CheckError, UsageError
from muster.protocol.metric_names import UNENDED_ALARM, UNENDED_HINT
from muster.tasksets.build import check_replaceable, write_subset
from muster.tasksets.taskset import TaskSet

BAR_WIDTH = 40
"""Columns of the longest bar of a histogram."""


async def filter_(
    session: Session,
    tasks: Annotated[Path, typer.Argument(help="Folder of a task set (muster tasks make).")],
    model: Annotated[Path, typer.Argument(help="Checkpoint folder of the model that a run would begin with.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    low: Annotated[float, typer.Option(min=0, max=1, help="Lowest pass rate that is kept.")] = 0.1,
    high: Annotated[float, typer.Option(min=0, max=1, help="Highest pass rate that is kept.")] = 0.8,
    samples: SamplesOption = 8,
    typed: SamplingOptions = AS_USUAL,
) -> None:
    """Keep the training tasks that a model solves at a rate from --low to --high, both included.

    Held-out tasks stay as they are. Answers are kept in OUT.answers: an interrupted filter resumes, and
    another band of the same answers takes no time.
    """
    # 1. Check the options and the files.
    band = Band(low, high)
    band.check_reachable(samples)
    sampling = typed.sampling(samples)
    if out.resolve() == tasks.resolve():
        raise UsageError("OUT is TASKS: the whole set would be gone", hint="name another folder to write")
    check_replaceable(out)
    task_set = await asyncio.to_thread(TaskSet.open, tasks)
    tasks_before = task_set.document.train_count
    identity = {name: value.hex() for name, value in (await asyncio.to_thread(model_hashes, model)).items()}
    identity |= {"task_root": task_set.root.hex(), **asdict(sampling)}
    request = EvalRequest(
        model=model, tasks=tasks, root=task_set.root, part="train", count=tasks_before, sampling=sampling
    )

    # 2. Ask, and sort the tasks by their pass rates.
    begun = time.monotonic()
    with RecordFile(out.with_name(out.name + ".answers"), identity) as records:
        await record_tasks(session, request, records, asdict)
        answers = [read_result(one) for one in records.records()]
    sifted = sift([one.right for one in answers], samples, band)
    unended = sum(one.unended for one in answers) / (samples * len(answers))
    if not sifted.kept:
        raise _nothing_left(sifted, band, unended)

    # 3. Write those that are kept.
    kept = await asyncio.to_thread(write_subset, task_set, sifted.kept, out)
    document = {
        "path": str(out),
        "root": kept.root,
        "train": kept.document.train_count,
        "held_out": kept.document.held_out_count,
        "from_root": task_set.root,
        "from_train": tasks_before,
        "too_hard": sifted.too_hard,
        "too_easy": sifted.too_easy,
        "unended": unended,
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


def _nothing_left(sifted: FilteredTasks, band: Band, unended: float) -> CheckError:
    cause = f"; {unended:.0%} of answers never end their thinking" if unended >= UNENDED_ALARM else ""
    hint = "begin with a better model or easier tasks (muster tasks make --levels), or lower --low"
    if sifted.too_easy > sifted.too_hard:
        hint = "make harder tasks (muster tasks make --levels), or raise --high"
    if cause:
        hint = UNENDED_HINT
    return CheckError(
        f"no task has a pass rate from {band.low:g} to {band.high:g}: "
        f"{sifted.too_hard} are too hard, {sifted.too_easy} too easy{cause}",
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
    if document["unended"] >= UNENDED_ALARM:
        about += f"\n{document['unended']:.0%} of answers never end their thinking: {UNENDED_HINT}"
    where = f"wrote {document['path']}, root 0x{document['root'].hex()}"
    return Group(as_table(rows), Text(about), Text(where))
