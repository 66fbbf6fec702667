"""What `muster env check` and `muster env admit` share: open a folder or a pack, check it, and show what it came to."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from rich.console import Group

from muster.clients.evaluation import EvalRequest, Sampling
from muster.console.sampling import SamplingOptions, model_hashes, progress, sample_tasks
from muster.console.session import Session, as_table
from muster.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from muster.authoring.contributions.checks import CheckResult
    from muster.environments.task import Task
    from muster.tasksets.contribution import Contribution
    from muster.tasksets.contribution_pack import Pack


class CheckRequest(SamplingOptions):
    """The options of `muster env check`."""

    tokenizer: Path | None = None
    """Checkpoint folder whose tokenizer counts tokens."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a prompt; needs --tokenizer."""
    against: tuple[Path, ...] = ()
    """Benchmark that no task may be taken from: JSON Lines or Parquet."""
    known: tuple[Path, ...] = ()
    """Task set or pack that no task may be like."""
    model: Path | None = None
    """Checkpoint folder of the run's model: how often is it right?"""
    samples: int = Field(default=8, ge=1)
    """Answers to each task."""


def read_pack_file(path: Path) -> Pack:
    """Return the pack in a file. Raises ConfigError when there is none, and as `read_pack`."""
    from muster.tasksets.contribution_pack import MAX_PACK_BYTES, read_pack

    try:
        with path.open("rb") as file:
            data = file.read(MAX_PACK_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="muster env pack or muster env fetch"
        ) from error
    return read_pack(data)


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

    sampling = given.sampling(given.samples)
    if given.model is not None:
        model_hashes(given.model)
    if given.max_prompt_tokens is not None and given.tokenizer is None:
        raise UsageError("--max-prompt-tokens needs --tokenizer", hint="give the checkpoint whose tokenizer counts")
    options = CheckOptions(
        count_tokens=None if given.tokenizer is None else token_counter(given.tokenizer),
        max_prompt_tokens=given.max_prompt_tokens or 0,
        benchmarks=read_benchmarks(given.against) if given.against else None,
        known=tuple(task for path in given.known for task in _tasks_of(path)),
    )
    with progress(session, len(contribution.tasks), 0) as shown:
        results = check_contribution(contribution, local_component().hash, options, shown)
    results.append(asyncio.run(_pass_rates(session, contribution, given.model, sampling)))
    return results


def _tasks_of(path: Path) -> Iterator[Task]:
    """Yield the training tasks of a task set, or all of a pack."""
    from muster.tasksets.taskset import TaskSet

    if path.is_file():
        yield from read_pack_file(path).contribution.tasks
    else:
        yield from (task for _, task in TaskSet.open(path).train)


async def _pass_rates(
    session: Session, contribution: Contribution, model: Path | None, sampling: Sampling
) -> CheckResult:
    """Ask the run's model each task, and return how often it is right."""
    from muster.authoring.contributions.checks import CheckResult, pass_rates
    from muster.authoring.contributions.unpack import unpack
    from muster.sandbox.component import local_component

    if model is None:
        return CheckResult("pass rates", "not measured: give the run's --model", skipped=True)
    with tempfile.TemporaryDirectory(prefix="muster-env-") as temporary:
        folder = Path(temporary) / "tasks"
        task_set = unpack(contribution, "not packed", folder, local_component().hash)
        request = EvalRequest(model, folder, task_set.root, "train", task_set.document.train_count, sampling)
        async with aclosing(sample_tasks(session, request)) as answers:
            right = [one.right async for one in answers]
    return pass_rates(contribution.tasks, right, sampling.samples)


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
