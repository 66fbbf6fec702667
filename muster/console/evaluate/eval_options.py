"""What the options of `muster eval` say: of a model, of a task set or benchmark, and of how it is asked.

What they name becomes a `Subject`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

import typer
from pydantic import Field, model_validator

from muster.authoring.benchmarks.catalog import BENCHMARKS
from muster.authoring.benchmarks.data import ContestWindow
from muster.authoring.benchmarks.definitions import Benchmark
from muster.console.options import Day, Numbers
from muster.console.sampling import AS_USUAL, SamplingOptions, check_ks
from muster.errors import UsageError
from muster.tasksets.taskset import TaskSet

CONTESTS = ("since", "until")
OF_BENCHMARKS = ("data", "against", "skip_trained", "prompt", *CONTESTS)
"""Options that only benchmarks have."""
CHANGES = ("limit", "prompt", "temperature", "max_tokens", *CONTESTS)
"""Options by which a benchmark is not what was published."""

MEASURE = "pass@1"
"""What is published, by a benchmark's first rule."""


@dataclass(frozen=True)
class Subject:
    """The model to evaluate, and how it is usually asked."""

    model: Path
    task_set: TaskSet | None
    """The tasks that are asked. A benchmark must have nothing in common with them."""
    usual: SamplingOptions = AS_USUAL
    of_run: Mapping[str, int] = field(default_factory=dict)


class EvalOptions(SamplingOptions):
    """The options of `muster eval`."""

    model: Annotated[str | None, typer.Argument()] = None
    """Checkpoint folder; with --run a benchmark, or nothing."""
    tasks: Annotated[str | None, typer.Argument()] = None
    """Task set (muster tasks make), or a benchmark: gsm8k, math500, aime24 …"""
    run: int | None = Field(default=None, ge=1)
    """Evaluate a step of this run instead."""
    step: int | None = Field(default=None, ge=0)
    """Which step of the run; else the newest."""
    part: Literal["held-out", "train"] | None = None
    """Which tasks of a set; else held-out."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first so many tasks."""
    samples: int | None = Field(default=None, ge=1)
    """Answers to each task; else 8, or as a benchmark is published."""
    k: Numbers | None = None
    """For which k, comma-separated; else 1, 4 and 8."""
    out: Path | None = None
    """Write the result here too, with counts per task."""
    data: tuple[Path, ...] = ()
    """Published file of a benchmark, again for more; else the hub's."""
    against: tuple[Path, ...] = ()
    """Task set that must not contain an item of the benchmark."""
    skip_trained: bool = False
    """Leave such items out, instead of refusing them."""
    prompt: str | None = None
    """Prompt of a benchmark, with {question} in it; else its own."""
    since: Day | None = None
    """LiveCodeBench: contests from this day on, 2024-08-01."""
    until: Day | None = None
    """LiveCodeBench: contests up to this day."""
    publish: bool = False
    """Publish a whole benchmark's score of a step of a run, on the run's page."""

    @property
    def named(self) -> str | None:
        """Return what is named as task set or benchmark."""
        return self.model if self.run is not None and self.tasks is None else self.tasks

    @property
    def benchmark(self) -> Benchmark | None:
        """Return the benchmark that is named; a path that exists is a task set."""
        benchmark = BENCHMARKS.get(self.named or "")
        return None if benchmark is None or Path(benchmark.name).exists() else benchmark

    def contests(self) -> ContestWindow:
        """Return the contests that are asked for. Raises UsageError for days in the wrong order."""
        return ContestWindow(self.since, self.until)

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        """Raise UsageError for options that do not go together."""
        if self.out is not None and (self.out.is_dir() or not self.out.parent.is_dir()):
            what = f"{self.out} is a folder" if self.out.is_dir() else f"the folder of {self.out} does not exist"
            raise UsageError(what, hint="name a file with --out, in a folder that exists")
        if self.run is None and self.step is not None:
            raise UsageError("--step names a step of a run", hint="add --run")
        if (benchmark := self.benchmark) is not None:
            _check_benchmark(self, benchmark)
        else:
            _check_task_set(self)
        return self


def _check_task_set(options: EvalOptions) -> None:
    """Raise UsageError for options of benchmarks, and where no model and tasks are named."""
    if given := options.given(*OF_BENCHMARKS):
        name = options.named
        what = "nothing" if name is None else f"{name}, which is none" + " (it exists)" * (name in BENCHMARKS)
        hint = f"name one of {', '.join(BENCHMARKS)}"
        raise UsageError(f"{', '.join(given)} is for a benchmark, and {what} was named", hint=hint)
    if options.publish:
        raise UsageError("--publish is for a published benchmark", hint="muster eval --run NUMBER gsm8k --publish")
    if options.run is not None and options.model is not None:
        raise UsageError("--run already sets the model and the tasks", hint="leave out MODEL and TASKS, or --run")
    if options.run is None and (options.model is None or options.tasks is None):
        raise UsageError("there is nothing to evaluate", hint="muster eval MODEL TASKS, or muster eval --run NUMBER")


def _check_benchmark(options: EvalOptions, benchmark: Benchmark) -> None:
    """Raise UsageError for options that the benchmark lacks, and with --publish for those that change it."""
    if options.given("part", "budgets"):
        raise UsageError("--part and --budgets are for task sets", hint=f"leave them out for {benchmark.name}")
    if options.given(*CONTESTS) and not benchmark.dated:
        raise UsageError(f"{benchmark.name} has no contests", hint="leave out --since and --until")
    options.contests()
    if not options.publish:
        return
    if options.run is None:
        hint = "add --run, and --step for another than the newest"
        raise UsageError("--publish is for a step of a run", hint=hint)
    if named := options.given(*CHANGES):
        raise UsageError(
            f"--publish is for a whole benchmark as it is published, and not with {', '.join(named)}",
            hint="leave out one or the other",
        )
    if 1 not in check_ks(options.k, options.samples or benchmark.samples, benchmark.ks):
        raise UsageError(f"--publish publishes {MEASURE}, and --k leaves it out", hint="add 1 to --k")
