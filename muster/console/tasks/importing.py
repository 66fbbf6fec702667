"""What `muster tasks import` does: make a task set of a data set's file, or of a package's tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.console.session import Session
from muster.console.tasks.token_counter import TokenizerOption, token_counter
from muster.errors import UsageError
from muster.tasksets.build import check_replaceable

if TYPE_CHECKING:
    from muster.authoring.tasks.formats import Format
    from muster.authoring.tasks.sources import ImportReport
    from muster.environments.manifest import EnvironmentManifest
    from muster.sandbox.client import Sandbox
    from muster.tasksets.taskset import TaskSet


def import_(
    session: Session,
    source: Annotated[
        str,
        typer.Argument(
            help="Format: gsm8k, deepscaler, numina, synthetic, humaneval, mbpp; mapped; or reasoning-gym, verifiers."
        ),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON Lines or Parquet, on this machine; of reasoning-gym its datasets, comma-separated; of verifiers "
            "a package, or a folder with one."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    licence: Annotated[str | None, typer.Option(help="What the authors allow, e.g. MIT.")] = None,
    origin: Annotated[str | None, typer.Option(help="Where the data set is from; else the file's name.")] = None,
    note: Annotated[str, typer.Option(help="What its authors want to be said.")] = "",
    environment: Annotated[
        list[str] | None, typer.Option(help="What scores them: NAME, NAME:OPTION=VALUE,…, or a JSON file.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="Of mapped: NAME=COLUMN, e.g. prompt=question, answer=solution.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of mapped: what to call the source.")] = None,
    held_out: Annotated[int, typer.Option("--held-out", min=0, help="Tasks kept for measuring.")] = 0,
    seed: Annotated[int, typer.Option(help="Decides which tasks are held out, and what reasoning-gym makes.")] = 0,
    count: Annotated[
        int | None, typer.Option(min=1, help="Of reasoning-gym, tasks of each dataset; of verifiers, its first ones.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="Of reasoning-gym and verifiers: KEY=VALUE, e.g. max_terms=4.")
    ] = None,
    decontaminate: Annotated[
        list[Path] | None, typer.Option(help="Benchmark whose problems are left out: JSON Lines or Parquet.")
    ] = None,
    near: Annotated[
        float | None,
        typer.Option(min=0.5, max=1, help="Likeness from which two problems are one: 0.8, of reasoning-gym 1."),
    ] = None,
    keep_near: Annotated[bool, typer.Option("--keep-near", help="Keep problems that are nearly equal.")] = False,
    max_prompt_tokens: Annotated[
        int | None, typer.Option("--max-prompt-tokens", min=1, help="Leave out longer prompts; needs --tokenizer.")
    ] = None,
    tokenizer: TokenizerOption = None,
    max_rows: Annotated[int, typer.Option("--max-rows", min=1, help="Refuse files with more rows.")] = 20_000_000,
) -> None:
    """Make a task set of a published data set's file, which you have downloaded yourself, or of a package's tasks.

    Rows that cannot be tasks are counted and named, and so are duplicates and those that benchmarks hold. Packages run
    in a virtual environment of their own, which uv makes.
    """
    from muster.authoring.tasks.duplicates import NEAR as LIKENESS
    from muster.authoring.tasks.importing import ImportOptions, import_set
    from muster.authoring.tasks.sources import ImportReport, require_licence
    from muster.console.tasks.import_exports import NEAR, REASONING_GYM, exported_source
    from muster.console.tasks.import_options import environment_of, manifests_of
    from muster.sandbox.client import Sandbox
    from muster.tasksets.document import TaskSource

    # 1. The options.
    allowed = require_licence(licence)
    given = [environment_of(text) for text in environment or ()]
    sandbox = Sandbox()
    format_ = _format(source, given, field, name, count, setting, sandbox)
    if (max_prompt_tokens is None) != (tokenizer is None):
        raise UsageError("--max-prompt-tokens and --tokenizer go together", hint="give both, or neither")
    options = ImportOptions(
        held_out=held_out,
        seed=seed,
        near=near or (NEAR if source == REASONING_GYM else LIKENESS),
        keep_near=keep_near,
        benchmarks=tuple(decontaminate or ()),
        max_prompt_tokens=max_prompt_tokens,
        count_tokens=None if tokenizer is None else token_counter(tokenizer),
        max_rows=max_rows,
    )

    # 2. Read, leave out, split and write.
    report, begun = ImportReport(), time.monotonic()
    if format_ is not None:
        options = replace(options, manifests=manifests_of(given, format_.environments))
        with sandbox:
            task_set = import_set(format_, file, out, TaskSource(allowed, origin or file.name, note), report, options)
    else:
        check_replaceable(out)
        with exported_source(source, str(file), given, count=count, seed=seed, settings=setting or ()) as made:
            options = replace(options, manifests=made.manifests)
            source_note = TaskSource(allowed, origin or made.origin, note)
            task_set = import_set(made.format, made.rows, out, source_note, report, options)

    # 3. Say what became of the rows.
    _tell(session, out, task_set, report, round(time.monotonic() - begun, 1))


def _format(
    source: str,
    given: Sequence[EnvironmentManifest],
    field: list[str] | None,
    name: str | None,
    count: int | None,
    setting: list[str] | None,
    sandbox: Sandbox,
) -> Format | None:
    """Return how the rows of a file become tasks; None for a package's. Raises UsageError for options of another."""
    from muster.authoring.tasks.sources import EXECUTING, MAPPED, format_of, mapped_format
    from muster.console.tasks.import_exports import PACKAGES
    from muster.console.tasks.import_options import fields_of, run_reference

    if (field or name) and source != MAPPED:
        raise UsageError(f"the columns of {source} are fixed", hint="--field and --name go with the source mapped")
    if source in PACKAGES:
        return None
    if count is not None or setting:
        raise UsageError(f"{source} is a file", hint=f"--count and --setting go with {' and '.join(PACKAGES)}")
    if source != MAPPED:
        return format_of(source, run_reference(sandbox) if source in EXECUTING else None)
    if len(given) != 1:
        raise UsageError("a mapped source needs one --environment", hint="for example --environment math")
    return mapped_format(given[0].name, fields_of(field or []), name or MAPPED)


def _tell(session: Session, out: Path, task_set: TaskSet, report: ImportReport, seconds: float) -> None:
    """Print the new set, and why rows were left out."""
    for number, reason in report.examples:
        session.note(f"row {number}: {reason}")
    if sum(report.left_out.values()) > len(report.examples):
        session.note(f"… and {sum(report.left_out.values()) - len(report.examples)} more rows are left out")
    session.result(
        {
            "path": str(out),
            "root": task_set.root,
            "slots": task_set.size,
            "train": task_set.document.train_count,
            "held_out": task_set.document.held_out_count,
            "rows": report.rows,
            "left_out": dict(report.left_out.most_common()),
            "seconds": seconds,
        }
    )
