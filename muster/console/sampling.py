"""What `muster eval` and `muster tasks filter` share: sampling options, answers from an engine, and a progress bar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

import typer
from pydantic import Field
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from muster.authoring.evaluation.records import RecordFile
from muster.clients.answering import ask
from muster.clients.evaluation import EvalRequest, Sampling, TaskResult
from muster.console.options import Numbers, Request
from muster.console.session import Session
from muster.errors import ConfigError, UsageError
from muster.models.files import model_hash, tokenizer_hash
from muster.protocol.terms import Terms
from muster.verification.profiles import profile_hash
from muster.verification.rules import ModelFacts

SamplesOption = Annotated[int, typer.Option(min=1, help="Answers to each task.")]

DEFAULT_K: Final = (1, 4, 8)

NOTE_PERCENT: Final = 10
"""Where stderr is no terminal, a line is written each time so much more is done."""


USUAL: Final[Mapping[str, Any]] = {
    "budgets": (8, 12, 16),
    "temperature": 1.0,
    "profile": "cpu-fp32-projection-v3",
}
"""Sampling where nothing says otherwise: that of `muster run template`."""


class SamplingOptions(Request):
    """How a model is asked: what was typed, or what is usual. None says nothing."""

    budgets: Numbers | None = None
    """Thinking budgets in tokens, comma-separated."""
    temperature: float | None = None
    """Sampling temperature, above 0."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Where an answer is cut off; else at twice the largest budget."""
    seed: int = 0
    """Equal seeds give equal answers."""
    profile: str | None = None
    """Verification profile, which names what to compute in."""

    @classmethod
    def of_terms(cls, terms: Terms, profile: str) -> Self:
        """Return how a run's workers sample."""
        budgets = sorted({budget for work_class in terms.classes for budget in work_class.budgets})
        return cls(
            budgets=tuple(budgets),
            temperature=terms.temperature,
            max_tokens=terms.max_completion_tokens,
            profile=profile,
        )

    def sampling(self, samples: int, usual: SamplingOptions | None = None) -> Sampling:
        """Return what was typed, completed by what is usual. Raises UsageError or ConfigError."""
        chosen = dict(USUAL)
        for options in (usual or AS_USUAL, self):
            chosen |= options.model_dump(include=set(SamplingOptions.model_fields), exclude_none=True)
        profile_hash(chosen["profile"])
        return Sampling(samples=samples, **{"max_tokens": 2 * max(chosen["budgets"]), **chosen})


AS_USUAL: Final = SamplingOptions()


def check_ks(ks: Sequence[int] | None, samples: int, default: Sequence[int] = DEFAULT_K) -> tuple[int, ...]:
    """Return the k of pass@k, ascending. Raises UsageError for one that so many samples cannot show."""
    if ks is None:
        return tuple(k for k in default if k <= samples)
    ks = tuple(sorted(set(ks)))
    if ks[0] < 1:
        raise UsageError(f"pass@{ks[0]}", hint="give --k from 1 to the number of samples")
    if ks[-1] > samples:
        raise UsageError(
            f"pass@{ks[-1]} takes at least {ks[-1]} answers to a task, and there are {samples}",
            hint=f"add --samples {ks[-1]}, or ask for smaller --k",
        )
    return ks


def model_hashes(model: Path) -> dict[str, bytes]:
    """Return the hashes that a checkpoint's answers follow from. Raises ConfigError when the folder is none."""
    if not model.is_dir():
        raise ConfigError(
            f"there is no checkpoint folder at {model}",
            hint="name the folder of a checkpoint, as muster model init and muster weights fetch write them",
        )
    if not any(model.glob("*.safetensors")):
        raise ConfigError(f"{model} has no weights in safetensors", hint="name the folder of a whole checkpoint")
    ModelFacts.read(model)
    return {"model_hash": model_hash(model), "tokenizer_hash": tokenizer_hash(model)}


async def sample_tasks(session: Session, request: EvalRequest) -> AsyncGenerator[TaskResult]:
    """Yield each task's answers, by an engine as the settings have it, with progress on stderr."""
    engine, matmul = session.settings.worker, session.settings.bfloat16_matmul
    request = replace(request, ranks=engine.tensor_parallel, cache_bytes=engine.cache_bytes, matmul=matmul)
    todo = request.count - request.first
    if todo > 0:
        session.note(f"asking {todo} tasks for {request.sampling.samples} answers each …")
    with progress(session, request.count, request.first) as show:
        async with aclosing(ask(request)) as answers:
            async for one in answers:
                yield one
                show(one.task + 1)


async def record_tasks(
    session: Session, request: EvalRequest, records: RecordFile, record: Callable[[TaskResult], Mapping[str, Any]]
) -> None:
    """Ask the tasks that are not in the records yet, and record each one before the next. `record` may block."""
    request = replace(request, first=records.count)
    if request.first:
        session.note(f"{request.first} of {request.count} tasks were answered before")
    try:
        async with aclosing(sample_tasks(session, request)) as answers:
            async for one in answers:
                records.add(await asyncio.to_thread(record, one))
    finally:
        if 0 < records.count < request.count:
            session.note(f"{records.count} of {request.count} tasks are answered; run the same command to resume")


@contextmanager
def progress(session: Session, total: int, begun: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal's stderr, elsewhere a line now and then; yield a function that takes the tasks done."""
    shown_percent = begun * 100 // total
    with bar(session, "tasks", MofNCompleteColumn()) as draw:
        draw(begun, total)

        def show(done: int) -> None:
            nonlocal shown_percent
            draw(done, total)
            if not session.stderr.is_terminal and done * 100 // total >= shown_percent + NOTE_PERCENT:
                shown_percent = done * 100 // total
                session.note(f"{done} of {total} tasks")

        yield show


@contextmanager
def bar(session: Session, what: str, *columns: ProgressColumn) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal's stderr; yield a function that takes what is done, and in all."""
    console, parts = session.stderr, (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*parts, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def estimate_cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a figure of a result and its interval as cells of a table."""
    return {"value": f"{row['value']:.3f}", "95 %": f"{row['low']:.3f} to {row['high']:.3f}"}
