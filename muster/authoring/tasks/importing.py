"""Make a task set of a source's file: leave out what is double, known from benchmarks or too long, and split it.

The tasks go through a temporary file, so that memory holds only their hashes: about 700 bytes a task.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from muster.authoring.tasks.duplicates import NEAR, Signatures, clusters, exact_key, read_benchmarks, split_clusters
from muster.authoring.tasks.formats import Format
from muster.authoring.tasks.sources import ImportReport, import_tasks, without_task_name
from muster.environments.answers import THINK_END
from muster.environments.base import Environment
from muster.environments.manifest import EnvironmentManifest
from muster.environments.registry import make_environment
from muster.environments.task import Task
from muster.errors import ConfigError, MalformedError
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.document import TaskSource
from muster.tasksets.taskset import TaskSet

TAKEN_ID: Final = "its id is another task's"
EQUAL: Final = "equal to an earlier task"
NEARLY_EQUAL: Final = "nearly equal to an earlier task"
IN_BENCHMARK: Final = "shares 13 words in a row with a benchmark"
TOO_LONG: Final = "its prompt has too many tokens"

TokenCounter = Callable[[EnvironmentManifest, Task], int]


class ImportOptions(BaseModel):
    """What is left out, and what is held out."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    held_out: int = Field(default=0, ge=0)
    """Tasks kept for measuring."""
    seed: int = 0
    """Decides which tasks are held out, and what reasoning-gym makes."""
    decontaminate: tuple[Path, ...] = ()
    """Benchmark whose problems are left out: JSON Lines or Parquet."""
    near: float | None = Field(default=None, ge=0.5, le=1)
    """Likeness from which two problems are one: 0.8, of reasoning-gym 1."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Leave out longer prompts; needs --tokenizer."""


@dataclass
class _Spool:
    """Tasks that were taken so far: their lines in a file, the rest by number."""

    file: BinaryIO
    environments: list[str] = field(default_factory=list)
    """Of each task, its environment's name."""
    rows: list[int] = field(default_factory=list)
    signatures: Signatures = field(default_factory=Signatures)

    def add(self, environment: str, task: Task, row: int) -> None:
        self.file.write(task.to_line() + b"\n")
        self.environments.append(environment)
        self.rows.append(row)
        self.signatures.add(task.text)

    def lines(self, wanted: np.ndarray) -> Iterator[bytes]:
        """Yield the canonical lines of the wanted ones, bool [tasks]."""
        self.file.seek(0)
        for line, want in zip(self.file, wanted, strict=True):
            if want:
                yield line[:-1]


def import_set(
    source: Format,
    path: Path,
    folder: Path,
    origin: TaskSource,
    report: ImportReport,
    options: ImportOptions,
    count_tokens: TokenCounter | None = None,
) -> TaskSet:
    """Write a task set of a file's rows to `folder`; the report says what was left out, and why.

    One part per environment. Raises ConfigError when nothing is left or too little to hold out, and as `read_rows` and
    `write_task_set`.
    """
    with tempfile.TemporaryFile() as file:
        # 1. Take each row that can be a task and is not to be left out by itself.
        spool = _Spool(file)
        _take(source, path, spool, report, options, count_tokens)
        if not spool.rows:
            raise ConfigError(f"none of the {report.rows} rows of {path} can be used", hint=report.hint)

        # 2. Find nearly equal ones; keep the first of each cluster.
        leaders = clusters(spool.signatures.matrix(), options.near or NEAR)
        used = leaders == np.arange(len(leaders))
        for i in np.flatnonzero(~used):
            report.taken -= 1
            report.leave_out(spool.rows[i], NEARLY_EQUAL)

        # 3. Hold some out.
        held = np.zeros(len(leaders), bool)
        held[used] = split_clusters(leaders[used], options.held_out, options.seed)

        # 4. One part per environment.
        environments = np.array(spool.environments)
        training, kept = [], []
        for name in dict.fromkeys(spool.environments):
            manifest = source.manifest(name)
            label = source.name if len(source.environments) == 1 else f"{source.name}-{name}"
            own = used & (environments == name)
            count = max(1, int((own & ~held).sum()))
            training.append((count, NewPart(label, manifest, spool.lines(own & ~held), 1, [origin])))
            kept.append(NewPart(label, manifest, spool.lines(own & held), 1, [origin]))
        return write_task_set(folder, weighed(training), kept)


def weighed(parts: Sequence[tuple[int, NewPart]], largest: int = 20) -> list[NewPart]:
    """Return the parts with weights near the sizes given, from 1 to `largest`: small enough for any mixture."""
    top = max(count for count, _ in parts)
    return [replace(part, weight=max(1, round(largest * count / top))) for count, part in parts]


def _take(
    source: Format,
    path: Path,
    spool: _Spool,
    report: ImportReport,
    options: ImportOptions,
    count_tokens: TokenCounter | None,
) -> None:
    benchmarks = read_benchmarks(options.decontaminate) if options.decontaminate else None
    seen: set[bytes] = set()
    environments: dict[str, Environment] = {}
    for environment, task in import_tasks(source, path, report):
        name, key = hashlib.sha256(task.id.encode()).digest()[:16], exact_key(task.text)
        if environment not in environments:
            environments[environment] = make_environment(source.manifest(environment))
        reason = cannot_score(environments[environment], task)
        if reason:
            pass
        elif key in seen:
            reason = EQUAL
        elif name in seen:
            reason = TAKEN_ID
        elif benchmarks is not None and benchmarks.found_in(task.text):
            reason = IN_BENCHMARK
        elif options.max_prompt_tokens is not None and count_tokens is not None:
            tokens = count_tokens(source.manifest(environment), task)
            reason = TOO_LONG if tokens > options.max_prompt_tokens else ""
        if reason:
            report.taken -= 1
            report.leave_out(report.last, reason)
            continue
        seen |= {name, key}
        spool.add(environment, task, report.last)


def cannot_score(environment: Environment, task: Task) -> str:
    """Return why an environment cannot score by a task's reference; "" when it can, as far as no scorer is called."""
    try:
        environment.check(task)
        right = environment.reference_completion(task)
    except MalformedError as error:
        return without_task_name(str(error))
    return "its answer holds </think>" if right is not None and right.count(THINK_END) > 1 else ""
