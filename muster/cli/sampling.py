"""What `muster eval` and `muster tasks filter` share: how tasks are asked, and showing how far that is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.session import Session, parse_numbers
from muster.errors import ConfigError

if TYPE_CHECKING:
    from muster.questions import Answers, Questions, Sampling
    from muster.terms import Terms

SamplesOption = Annotated[int, typer.Option(min=1, help="Answers to each task.")]
BudgetsOption = Annotated[str | None, typer.Option(help="Thinking budgets in tokens, comma-separated.")]
TemperatureOption = Annotated[float | None, typer.Option(help="Sampling temperature, above 0.")]
MaxTokensOption = Annotated[
    int | None,
    typer.Option("--max-tokens", min=1, help="Where an answer is cut off; else at twice the largest budget."),
]
SeedOption = Annotated[int, typer.Option(help="Equal seeds give equal answers.")]
ProfileOption = Annotated[str | None, typer.Option(help="Verification profile, which names what to compute in.")]

NOTE_PERCENT: Final = 10
"""Where stderr is no terminal, a line is written each time so much more is done."""


@dataclass(frozen=True)
class Usual:
    """How tasks are asked where nothing else is said: as `muster run template` begins, or as a run's workers are."""

    budgets: tuple[int, ...] = (8, 12, 16)
    temperature: float = 1.0
    profile: str = "cpu-fp32-projection-v1"
    max_tokens: int | None = None
    """None: twice the largest budget."""

    @classmethod
    def of_run(cls, terms: Terms) -> Usual:
        from muster.profiles import profile_by_hash

        budgets = sorted({budget for work_class in terms.classes for budget in work_class.budgets})
        name = profile_by_hash(terms.profile).name
        return cls(tuple(budgets), terms.temperature, name, terms.max_completion_tokens)


def make_sampling(
    samples: int,
    budgets: str | None,
    temperature: float | None,
    max_tokens: int | None,
    seed: int,
    profile: str | None,
    usual: Usual = Usual(),
) -> Sampling:
    """What the options say, completed by what is usual. Raises UsageError or ConfigError."""
    from muster.profiles import profile_hash
    from muster.questions import Sampling

    lengths = usual.budgets if budgets is None else parse_numbers(budgets)
    name = usual.profile if profile is None else profile
    profile_hash(name)
    return Sampling(
        samples=samples,
        budgets=lengths,
        max_tokens=max_tokens or usual.max_tokens or 2 * max(lengths),
        temperature=usual.temperature if temperature is None else temperature,
        seed=seed,
        profile=name,
    )


def model_hashes(model: Path) -> dict[str, bytes]:
    """What a checkpoint's answers follow from. Raises ConfigError when the folder is none."""
    from muster.inspection import ModelFacts
    from muster.model_files import model_hash, tokenizer_hash

    if not model.is_dir():
        raise ConfigError(
            f"there is no checkpoint folder at {model}",
            hint="name the folder of a checkpoint, as muster model init and muster weights fetch write them",
        )
    if not any(model.glob("*.safetensors")):
        raise ConfigError(f"{model} has no weights in safetensors", hint="name the folder of a whole checkpoint")
    ModelFacts.read(model)
    return {"model_hash": model_hash(model), "tokenizer_hash": tokenizer_hash(model)}


async def asked(session: Session, questions: Questions) -> AsyncGenerator[Answers]:
    """`muster.asking.ask`, by an engine as the settings have it, with progress on stderr."""
    from muster.asking import ask

    engine = session.settings.worker
    questions = replace(questions, ranks=engine.tensor_parallel, cache_bytes=engine.cache_bytes)
    todo = questions.count - questions.first
    if todo > 0:
        session.note(f"asking {todo} tasks for {questions.sampling.samples} answers each …")
    with progress(session, questions.count, questions.first) as show:
        async with aclosing(ask(questions)) as answers:
            async for one in answers:
                yield one
                show(one.task + 1)


@contextmanager
def progress(session: Session, total: int, begun: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's stderr, elsewhere a line now and then. What it gives is told the tasks done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = session.stderr
    told = begun * 100 // total
    with Progress(
        TextColumn("tasks"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as shown:
        bar = shown.add_task("tasks", total=total, completed=begun)

        def show(done: int) -> None:
            nonlocal told
            shown.update(bar, completed=done)
            if not console.is_terminal and done * 100 // total >= told + NOTE_PERCENT:
                told = done * 100 // total
                session.note(f"{done} of {total} tasks")

        yield show


def as_json(sampling: Sampling) -> dict[str, Any]:
    """How it was asked, for a result."""
    return asdict(sampling) | {"budgets": list(sampling.budgets)}
