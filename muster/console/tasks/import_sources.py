"""What `muster tasks import` does: make a task set of a file, or of the package reasoning-gym."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from muster.authoring.tasks import from_reasoning_gym
from muster.authoring.tasks.counting import token_counter
from muster.authoring.tasks.foreign import exported, own_environment
from muster.authoring.tasks.formats import Format
from muster.authoring.tasks.importing import import_set
from muster.authoring.tasks.sources import MAPPED, ImportReport, format_of, mapped_format, require_licence
from muster.console.session import Session
from muster.console.tasks.import_options import (
    REASONING_GYM,
    ImportRequest,
    environment_of,
    fields_of,
    manifests_of,
    run_reference,
)
from muster.environments.code import Code
from muster.environments.manifest import EnvironmentManifest
from muster.environments.registry import make_environment, own_manifest
from muster.errors import UsageError
from muster.runtime.files import cache_folder
from muster.sandbox.client import Sandbox
from muster.tasksets.build import check_replaceable
from muster.tasksets.document import TaskSource
from muster.tasksets.taskset import TaskSet

COUNT: Final = 500
"""Tasks of each dataset of reasoning-gym, by default."""
PUZZLES_NEAR: Final = 1.0
"""Of reasoning-gym: its puzzles share their wording, so only those with the same words in a row are nearly equal."""


@dataclass(frozen=True)
class ImportedSource:
    """What is imported: its rows, as published or as an export program has written them, and how they become tasks."""

    format: Format
    rows: Path
    origin: str


@contextmanager
def imported_source(request: ImportRequest, sandbox: Sandbox) -> Iterator[ImportedSource]:
    """Yield a file, or reasoning-gym's tasks, exported in an environment of their own. Raises as `exported`."""
    given = [environment_of(text) for text in request.environment]
    if request.source != REASONING_GYM:
        format_ = _format(request, given, sandbox)
        format_ = replace(format_, manifests=manifests_of(given, format_.environments))
        yield ImportedSource(format_, request.file, request.file.name)
        return
    if len(given) > 1:
        raise UsageError(
            f"{request.source} is scored by one environment", hint="give --environment once, or not at all"
        )
    with _reasoning_gym(request, given[0] if given else None) as source:
        yield source


def import_(session: Session, request: ImportRequest) -> None:
    """Make a task set of a published data set's file, which you have downloaded yourself, or of reasoning-gym's tasks.

    Rows that cannot be tasks are counted and named, and so are duplicates and those that benchmarks hold.
    reasoning-gym runs in a virtual environment of its own, which uv makes.
    """
    licence, options = require_licence(request.licence), request
    counter = None if request.tokenizer is None else token_counter(request.tokenizer)
    if request.near is None and request.source == REASONING_GYM:
        options = request.model_copy(update={"near": PUZZLES_NEAR})
    check_replaceable(request.out)
    report, begun = ImportReport(), time.monotonic()
    with Sandbox() as sandbox, imported_source(request, sandbox) as source:
        origin = TaskSource(licence, request.origin or source.origin, request.note)
        task_set = import_set(source.format, source.rows, request.out, origin, report, options, counter)
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


def _format(request: ImportRequest, given: Sequence[EnvironmentManifest], sandbox: Sandbox) -> Format:
    """Return how the rows of a file become tasks."""
    if request.source != MAPPED:
        return format_of(request.source)
    if len(given) != 1:
        raise UsageError("a mapped source needs one --environment", hint="for example --environment math")
    run = run_reference(sandbox) if given[0].name == Code.NAME else None
    return mapped_format(given[0].name, fields_of(request.field), request.name or MAPPED, run)


@contextmanager
def _reasoning_gym(request: ImportRequest, given: EnvironmentManifest | None) -> Iterator[ImportedSource]:
    names, seed = [name.strip() for name in str(request.file).split(",") if name.strip()], request.seed
    order = from_reasoning_gym.order_of(names, request.count or COUNT, seed, request.setting)
    manifest = given or own_manifest(from_reasoning_gym.ENVIRONMENT)
    if manifest.name != from_reasoning_gym.ENVIRONMENT:
        raise UsageError(f"reasoning-gym is scored by {from_reasoning_gym.ENVIRONMENT}, not by {manifest.name}")
    python = own_environment(from_reasoning_gym.REQUIREMENTS, cache_folder("environments"))
    with exported(python, from_reasoning_gym.PROGRAM, order) as rows:
        format_ = from_reasoning_gym.format_of_datasets(names, seed, make_environment(manifest))
        said = "".join(f", {setting}" for setting in request.setting)
        origin = f"reasoning-gym {from_reasoning_gym.VERSION}: {', '.join(names)}, seed {seed}{said}"
        yield ImportedSource(replace(format_, manifests={manifest.name: manifest}), rows, origin[:2000])
