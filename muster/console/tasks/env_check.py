"""What `muster env check` and `muster env admit` share: open a folder or a pack, check it, and show what it came to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from rich.console import Group

from muster.console.options import Request
from muster.console.sampling import progress
from muster.console.session import Session, as_table
from muster.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from muster.authoring.contributions.checks import CheckResult
    from muster.environments.task import Task
    from muster.tasksets.contribution import Contribution
    from muster.tasksets.contribution_pack import Pack


class CheckRequest(Request):
    """The options of `muster env check`."""

    tokenizer: Path | None = None
    """Checkpoint folder whose tokenizer counts tokens."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a prompt; needs --tokenizer."""
    against: tuple[Path, ...] = ()
    """Benchmark that no task may be taken from: JSON Lines or Parquet."""
    known: tuple[Path, ...] = ()
    """Task set or pack that no task may be like."""


def read_pack_file(path: Path) -> Pack:
    """Return the pack in a file. Raises ConfigError when there is none, and as `read_pack`."""
    from muster.runtime.files import read_bounded
    from muster.tasksets.contribution_pack import MAX_PACK_BYTES, read_pack

    return read_pack(read_bounded(path, MAX_PACK_BYTES, ConfigError, "muster env pack or muster env fetch"))


def open_contribution(path: Path) -> Contribution:
    """Return the environment in a folder, or in a pack."""
    from muster.authoring.contributions.folder import read_folder

    return read_folder(path) if path.is_dir() else read_pack_file(path).contribution


def check(session: Session, contribution: Contribution, given: CheckRequest) -> list[CheckResult]:
    """Return what every check of an environment came to, with progress on stderr. Blocks, for minutes maybe."""
    from muster.authoring.contributions.checks import CheckOptions, check_contribution
    from muster.authoring.tasks.counting import token_counter
    from muster.authoring.tasks.duplicates import read_benchmarks
    from muster.sandbox.component import local_component

    if given.max_prompt_tokens is not None and given.tokenizer is None:
        raise UsageError("--max-prompt-tokens needs --tokenizer", hint="give the checkpoint whose tokenizer counts")
    options = CheckOptions(
        count_tokens=None if given.tokenizer is None else token_counter(given.tokenizer),
        max_prompt_tokens=given.max_prompt_tokens or 0,
        benchmarks=read_benchmarks(given.against) if given.against else None,
        known=tuple(task for path in given.known for task in _tasks_of(path)),
    )
    with progress(session, len(contribution.tasks), 0) as shown:
        return check_contribution(contribution, local_component().hash, options, shown)


def _tasks_of(path: Path) -> Iterator[Task]:
    """Yield the training tasks of a task set, or all of a pack."""
    from muster.tasksets.taskset import TaskSet

    if path.is_file():
        yield from read_pack_file(path).contribution.tasks
    else:
        yield from (task for _, task in TaskSet.open(path).train)


def failures(session: Session, results: list[CheckResult]) -> int:
    """Name every fault on stderr, with what to do; return how many there are."""
    for result in results:
        for task, fault, hint in result.faults:
            session.note(f"{result.name}: {task + ': ' if task else ''}{fault}\n  next: {hint}")
        if result.count > len(result.faults):
            session.note(f"{result.name}: … and {result.count - len(result.faults)} more")
    return sum(result.count for result in results)


def report_of(contribution: Contribution, results: list[CheckResult]) -> dict[str, Any]:
    return {
        "name": contribution.name,
        "version": contribution.version,
        "licence": contribution.licence,
        "author": contribution.author,
        "tasks": len(contribution.tasks),
        "faults": sum(result.count for result in results),
        "checks": [
            {
                "check": result.name,
                "result": "skipped" if result.skipped else "ok" if result.passed else f"{result.count} faults",
                "about": result.about,
                "figures": result.figures,
                "faults": [{"task": task, "fault": fault, "next": hint} for task, fault, hint in result.faults],
            }
            for result in results
        ],
    }


def for_people(report: dict[str, Any]) -> Group:
    totals = {name: value for name, value in report.items() if name != "checks"}
    rows = [{name: row[name] for name in ("check", "result", "about", "figures")} for row in report["checks"]]
    return Group(as_table(totals), "", as_table(rows))
