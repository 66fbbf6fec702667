"""Import tasks from data sets that lie on this machine: nothing is downloaded here.

Each format is a small function from a row to a task (`formats`, `sources_math`, `sources_synthetic`);
`mapped_format` makes one for any other columns. To add one, write the function and name it in FORMATS.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from muster.authoring.tasks import sources_math, sources_synthetic
from muster.authoring.tasks.formats import Format, level_of, make_task, text_of
from muster.authoring.tasks.rows import BadRow, Row, read_rows
from muster.authoring.tasks.sources_code import UNRUNNABLE, RunReference, check_imports
from muster.environments.task import Task
from muster.errors import MalformedError, UsageError

EXAMPLES: Final = 3
"""Rows of a kind that a report names."""
MAX_UNRUNNABLE: Final = 1_000
"""Rows that a report names because the sandbox cannot run their reference."""
MAPPED: Final = "mapped"
FORMATS: Final = {one.name: one for one in (*sources_math.FORMATS, *sources_synthetic.FORMATS)}

T = TypeVar("T")

_TASK_NAME: Final = re.compile(r"^task (['\"]).*?\1 ", re.DOTALL)
"""What a reason begins with that is another one for every row."""


@dataclass
class ImportReport:
    """What became of a file's rows. Filled while they are read."""

    rows: int = 0
    last: int = 0
    """Number of the row that was read last; of JSON Lines its line."""
    taken: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Rows by the reason why they are left out."""
    examples: list[tuple[int, str]] = field(default_factory=list)
    """Number and reason of the first EXAMPLES rows of each reason; of UNRUNNABLE, of the first MAX_UNRUNNABLE."""

    def leave_out(self, number: int, reason: str) -> None:
        """Count a row that is left out."""
        kind = reason if len(self.left_out) < 100 or reason in self.left_out else "other reasons"
        self.left_out[kind] += 1
        if self.left_out[kind] <= (MAX_UNRUNNABLE if kind == UNRUNNABLE else EXAMPLES):
            self.examples.append((number, reason))

    @property
    def hint(self) -> str:
        """Return why no row, or hardly any, was taken."""
        if not self.left_out:
            return "is the file empty?"
        reason, count = self.left_out.most_common(1)[0]
        return f"{count} rows: {reason}"


def format_of(name: str) -> Format:
    """Return a format. Raises UsageError when there is none."""
    if name not in FORMATS:
        raise UsageError(f"no source {name!r}", hint=f"known sources: {', '.join((*FORMATS, MAPPED))}")
    return FORMATS[name]


def mapped_format(
    environment: str, fields: Mapping[str, str], name: str = MAPPED, run_reference: RunReference | None = None
) -> Format:
    """Return a format for any columns. `fields` maps what a task has to the column that holds it.

    A task has a `prompt`, and may have `system`, `id`, `level` or `solve_rate`; every other name is a key of the
    reference, for example `answer`. With `run_reference`, rows whose `solution` the sandbox lacks modules for are left
    out. Raises UsageError without a prompt or a reference.
    """
    own = {"prompt", "system", "id", "level", "solve_rate"}
    keys = sorted(set(fields) - own)
    if "prompt" not in fields or not keys:
        raise UsageError(
            "a mapped source needs the columns of the prompt and of the reference",
            hint="for example --field prompt=question --field answer=solution",
        )

    def convert(row: Row) -> tuple[str, Task]:
        reference = {key: row[fields[key]] for key in keys}
        if any(value is None or value == "" for value in reference.values()):
            raise MalformedError("a part of its reference is empty")
        if run_reference is not None and isinstance(solution := reference.get("solution"), str):
            check_imports(solution, run_reference)
        level = row[fields["level"]] if "level" in fields else 0
        if "solve_rate" in fields:
            level = level_of([row[fields["solve_rate"]]])
        if type(level) is not int:
            raise MalformedError("its level is no whole number")
        options: dict[str, Any] = {"name": row[fields["id"]] if "id" in fields else None, "level": level}
        if "system" in fields:
            options["system"] = text_of(row, fields["system"])
        return environment, make_task(name, text_of(row, fields["prompt"]), reference, **options)

    return Format(name, tuple(dict.fromkeys(fields.values())), convert, (), (environment,))


def import_tasks(source: Format, path: Path, report: ImportReport) -> Iterator[tuple[str, Task]]:
    """Yield the environment's name and the task of each row that can be one; the report says what became of the others.

    Raises as `read_rows`. Rows are never an error, whatever they hold.
    """

    def convert(row: Row, _: int) -> tuple[str, Task]:
        environment, task = source.convert(row)
        task.to_line()
        return environment, task

    return converted_rows(path, source.columns, source.optional, convert, report)


def converted_rows(
    path: Path, columns: Sequence[str], optional: Sequence[str], convert: Callable[[Row, int], T], report: ImportReport
) -> Iterator[T]:
    """Yield what `convert` makes of each row and its number; a row for which it raises MalformedError is left out.

    Raises as `read_rows`.
    """
    for number, row in read_rows(path, columns, optional):
        report.rows, report.last = report.rows + 1, number
        try:
            if isinstance(row, BadRow):
                raise MalformedError(row.reason)
            made = convert(row, number)
        except MalformedError as error:
            report.leave_out(number, without_task_name(str(error)))
            continue
        report.taken += 1
        yield made


def without_task_name(reason: str) -> str:
    """Return why a row is left out without the task's name, so that equal reasons are counted together."""
    return _TASK_NAME.sub("", reason)[:200]


def require_licence(licence: str | None) -> str:
    """Return the licence. Raises UsageError without one: the licence says what a set may be used for."""
    if licence is None or not licence.strip():
        raise UsageError(
            "no licence given for these tasks",
            hint="say what their authors allow, for example --licence MIT; it becomes part of the task set",
        )
    return licence.strip()
