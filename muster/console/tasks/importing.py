"""What `muster tasks import` does: make a task set of a data set's file, or of a package's tasks."""

from __future__ import annotations

import time
from dataclasses import replace

from muster.authoring.tasks.importing import import_set
from muster.authoring.tasks.sources import ImportReport, require_licence
from muster.console.session import Session
from muster.console.tasks.import_options import ImportRequest
from muster.console.tasks.import_sources import imported_source
from muster.sandbox.client import Sandbox
from muster.tasksets.build import check_replaceable
from muster.tasksets.document import TaskSource
from muster.tasksets.taskset import TaskSet


def import_(session: Session, request: ImportRequest) -> None:
    """Make a task set of a published data set's file, which you have downloaded yourself, or of a package's tasks.

    Rows that cannot be tasks are counted and named, and so are duplicates and those that benchmarks hold. Packages run
    in a virtual environment of their own, which uv makes.
    """
    licence, options = require_licence(request.licence), request.options()
    check_replaceable(request.out)
    report, begun = ImportReport(), time.monotonic()
    with Sandbox() as sandbox, imported_source(request, sandbox) as source:
        options = replace(options, manifests=source.manifests)
        origin = TaskSource(licence, request.origin or source.origin, request.note)
        task_set = import_set(source.format, source.rows, request.out, origin, report, options)
    _tell(session, request, task_set, report, round(time.monotonic() - begun, 1))


def _tell(session: Session, request: ImportRequest, task_set: TaskSet, report: ImportReport, seconds: float) -> None:
    """Print the new set, and why rows were left out."""
    for number, reason in report.examples:
        session.note(f"row {number}: {reason}")
    if sum(report.left_out.values()) > len(report.examples):
        session.note(f"… and {sum(report.left_out.values()) - len(report.examples)} more rows are left out")
    session.result(
        {
            "path": str(request.out),
            "root": task_set.root,
            "slots": task_set.size,
            "train": task_set.document.train_count,
            "held_out": task_set.document.held_out_count,
            "rows": report.rows,
            "left_out": dict(report.left_out.most_common()),
            "seconds": seconds,
        }
    )
