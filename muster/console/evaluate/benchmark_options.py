"""What the options of `muster eval` say of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from muster.authoring.benchmarks.catalog import BENCHMARKS
from muster.authoring.benchmarks.data import ContestWindow
from muster.console.sampling import AS_USUAL, SamplingOptions
from muster.errors import UsageError
from muster.tasksets.taskset import TaskSet


@dataclass(frozen=True)
class BenchmarkOptions:
    """How a benchmark is evaluated; None is the published setting."""

    name: str
    data: Sequence[Path] = ()
    against: Sequence[TaskSet] = ()
    """Task sets whose training tasks no item may stand in."""
    skip_trained: bool = False
    prompt: str | None = None
    samples: int | None = None
    k: str | None = None
    typed: SamplingOptions = AS_USUAL
    """Without budgets. Its profile is else that of `SamplingDefaults`."""
    limit: int | None = None
    window: ContestWindow = field(default_factory=ContestWindow)
    out: Path | None = None
    of_run: dict[str, int] = field(default_factory=dict)


def window_of(name: str, since: str | None, until: str | None, platform: str | None) -> ContestWindow:
    """Return the contests asked for. Raises UsageError for days that are none, or a benchmark without contests."""
    if (since, until, platform) != (None, None, None) and not BENCHMARKS[name].dated:
        raise UsageError(f"{name} has no contests", hint="leave out --since, --until and --platform")
    return ContestWindow(_day("--since", since), _day("--until", until), platform)


def check_unused(tasks: str | None, options: Mapping[str, object]) -> None:
    """Raise UsageError where one of the options that only benchmarks have is given for what is no benchmark."""
    if given := [name for name, value in options.items() if value]:
        what = "nothing" if tasks is None else f"{tasks}, which is none" + " (it exists)" * (tasks in BENCHMARKS)
        raise UsageError(
            f"{', '.join(given)} is for a benchmark, and {what} was named",
            hint=f"name one of {', '.join(BENCHMARKS)}",
        )


def is_benchmark(name: str | None) -> bool:
    """Say whether a name is a benchmark's; a path that exists is a task set."""
    return name is not None and name in BENCHMARKS and not Path(name).exists()


def _day(option: str, text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}", hint="write the day like 2024-08-01") from error
