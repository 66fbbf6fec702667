"""muster eval: how often a checkpoint is right, before, during and after a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Group
from rich.text import Text

from muster.authoring.evaluation.pass_at_k import mean_pass_at_k
from muster.clients.evaluation import EvalRequest, Sampling, TaskResult, part_of
from muster.clients.run_data import RunTasks, fetch_profile, task_set_path
from muster.console.command import command
from muster.console.evaluate.benchmark_options import BenchmarkOptions, check_unused, is_benchmark, window_of
from muster.console.evaluate.benchmark_publish import check_publishable, prepare_publisher
from muster.console.evaluate.weights import fetch_checkpoint
from muster.console.sampling import (
    AS_USUAL,
    SamplingDefaults,
    SamplingOptions,
    model_hashes,
    parse_ks,
    sample_tasks,
    sampling_document,
)
from muster.console.session import Session, as_table, to_json
from muster.errors import UsageError
from muster.runtime.files import write_durably
from muster.tasksets.taskset import TaskSet

app = typer.Typer()

DEFAULT_SAMPLES: Final = 8
RUN_FOLDER: Final = Path(".muster/eval")
"""Where the weights and the task set of a run are kept."""


class PartChoice(StrEnum):
    HELD_OUT = "held-out"
    TRAIN = "train"


@dataclass(frozen=True)
class Subject:
    """The model to evaluate, and its tasks."""

    model: Path
    tasks: Path
    task_set: TaskSet
    defaults: SamplingDefaults
    """Sampling where no option says otherwise."""
    of_run: dict[str, int] = field(default_factory=dict)


@command(app, "eval", operator=True)
async def evaluate(
    session: Session,
    model: Annotated[str | None, typer.Argument(help="Checkpoint folder; with --run a benchmark, or nothing.")] = None,
    tasks: Annotated[
        str | None, typer.Argument(help="Task set (muster tasks make), or a benchmark: gsm8k, math500, aime24 …")
    ] = None,
    run: Annotated[int | None, typer.Option(min=1, help="Evaluate a step of this run instead.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Which step of the run; else the newest.")] = None,
    part: Annotated[PartChoice | None, typer.Option(help="Which tasks of a set; else held-out.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Answers to each task; else 8, or as a benchmark is published.")
    ] = None,
    k: Annotated[str | None, typer.Option("--k", help="For which k, comma-separated; else 1, 4 and 8.")] = None,
    typed: SamplingOptions = AS_USUAL,
    out: Annotated[Path | None, typer.Option("--out", help="Write the result here too, with counts per task.")] = None,
    data: Annotated[
        list[Path] | None, typer.Option("--data", help="Published file of a benchmark, again for more; else the hub's.")
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option("--against", help="Task set that no item of a benchmark may stand in.")
    ] = None,
    skip_trained: Annotated[
        bool, typer.Option("--skip-trained", help="Leave such items out, instead of refusing them.")
    ] = False,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Prompt of a benchmark, with {question} in it; else its own.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="LiveCodeBench: contests from this day on, 2024-08-01.")] = None,
    until: Annotated[str | None, typer.Option(help="LiveCodeBench: contests up to this day.")] = None,
    platform: Annotated[str | None, typer.Option(help="LiveCodeBench: contests of this platform alone.")] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish a whole benchmark's score of a step of a run, on the run's page.")
    ] = False,
) -> None:
    """Measure pass@k of a checkpoint on held-out tasks or a benchmark, with 95 % confidence intervals.

    Of a run, budgets, temperature, length limit and profile are those of its terms where they are not given. Benchmarks
    are gsm8k, math500, aime24, aime25, gpqa_diamond, ifeval, livecodebench, humaneval and mbpp, each with its published
    settings where they are not given; a path that exists is a task set. Their results and records lie in .muster/eval,
    or at --out; the same command goes on where an interrupted one stopped. What --publish publishes is signed by the
    run's trainer or its owner: the key of --operator, else of the settings.
    """
    # 1. Check the options.
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        what = f"{out} is a folder" if out.is_dir() else f"the folder of {out} does not exist"
        raise UsageError(what, hint="name a file with --out, in a folder that exists")
    if not publish and (unused := [name for name, value in _for_publishing(session).items() if value]):
        raise UsageError(f"{', '.join(unused)} is for --publish", hint="leave it out, or add --publish")
    contests = {"--since": since, "--until": until, "--platform": platform}
    named = model if run is not None and tasks is None else tasks
    if is_benchmark(named):
        assert named is not None
        if part is not None or typed.budgets is not None:
            raise UsageError("--part and --budgets are for task sets", hint=f"leave them out for {named}")
        options = BenchmarkOptions(
            name=named,
            data=data or (),
            against=[TaskSet.open(path) for path in against or ()],
            skip_trained=skip_trained,
            prompt=prompt,
            samples=samples,
            k=k,
            typed=typed,
            limit=limit,
            window=window_of(named, since, until, platform),
            out=out,
        )
        if publish:
            check_publishable(options, contests)
        await _of_benchmark(session, None if run is not None else model, options, run, step, publish=publish)
        return
    benchmark = {"--data": data, "--against": against, "--skip-trained": skip_trained, "--prompt": prompt}
    check_unused(named, benchmark | contests)
    if publish:
        raise UsageError("--publish is for a published benchmark", hint="muster eval --run NUMBER gsm8k --publish")

    # 2. Find the model and its tasks.
    answers = samples or DEFAULT_SAMPLES
    ks = parse_ks(k, answers)
    if run is None:
        subject = await asyncio.to_thread(_of_files, model, tasks, step)
    else:
        if model is not None:
            raise UsageError("--run already sets the model and the tasks", hint="leave out MODEL and TASKS, or --run")
        subject = await _of_run(session, run, step)
    sampling = typed.sampling(answers, subject.defaults)

    # 3. Ask; print, and write, what it came to.
    document, results = await _of_task_set(session, subject, sampling, ks, part or PartChoice.HELD_OUT, limit)
    session.result(document, _for_people(document))
    if out is not None:
        right = [one.right for one in results]
        write_durably(out, (to_json(document | {"right": right}) + "\n").encode())


async def _of_task_set(
    session: Session, subject: Subject, sampling: Sampling, ks: Sequence[int], part: PartChoice, limit: int | None
) -> tuple[dict[str, Any], list[TaskResult]]:
    """Evaluate a model on a part of a task set; return what is printed, and what became of each task."""
    hashes = await asyncio.to_thread(model_hashes, subject.model)
    count = len(part_of(subject.task_set, part.value))
    request = EvalRequest(
        model=subject.model,
        tasks=subject.tasks,
        root=subject.task_set.root,
        part=part.value,
        count=count if limit is None else min(limit, count),
        sampling=sampling,
    )
    begun = time.monotonic()
    results = [one async for one in sample_tasks(session, request)]
    document = {
        "model": str(subject.model),
        **hashes,
        **subject.of_run,
        "task_set": str(subject.tasks),
        "task_root": subject.task_set.root,
        "part": part.value,
        "tasks": len(results),
        **sampling_document(sampling),
        **measured(results, sampling, ks),
        "seconds": round(time.monotonic() - begun, 1),
    }
    return document, results


def measured(answers: Sequence[TaskResult], sampling: Sampling, ks: Sequence[int]) -> dict[str, Any]:
    """Return pass@k with its interval, the mean length of answers, and how many ended by themselves."""
    right = [one.right for one in answers]
    estimates = [(k, mean_pass_at_k(right, sampling.samples, k)) for k in ks]
    total = sampling.samples * len(answers)
    return {
        "pass_at_k": [{"k": k, "value": of.value, "low": of.low, "high": of.high} for k, of in estimates],
        "mean_tokens": round(sum(one.tokens for one in answers) / total, 2),
        "finished": sum(one.finished for one in answers) / total,
    }


async def _of_benchmark(
    session: Session, model: str | None, options: BenchmarkOptions, run: int | None, step: int | None, *, publish: bool
) -> None:
    """Evaluate a checkpoint, or a step of a run, whose own tasks the benchmark is kept apart from."""
    from muster.console.evaluate.benchmark import evaluate_benchmark

    if run is None:
        if step is not None:
            raise UsageError("--step names a step of a run", hint="add --run")
        if publish:
            raise UsageError(
                "--publish is for a step of a run", hint="add --run, and --step for another than the newest"
            )
        assert model is not None
        await evaluate_benchmark(session, Path(model), options)
        return
    publisher = await prepare_publisher(session, options, run, step) if publish else None
    if publish and publisher is None:
        return
    subject = await _of_run(session, run, publisher.step if publisher else step)
    options = replace(
        options,
        against=(*options.against, subject.task_set),
        typed=replace(options.typed, profile=options.typed.profile or subject.defaults.profile),
        of_run=subject.of_run,
    )
    await evaluate_benchmark(session, subject.model, options, publisher)


def _for_publishing(session: Session) -> dict[str, object]:
    """Return what of the global options is for --publish alone."""
    options = session.options
    return {"--operator": options.operator, "--password-file": options.password_file, "--dry-run": options.dry_run}


def _of_files(model: str | None, tasks: str | None, step: int | None) -> Subject:
    if step is not None:
        raise UsageError("--step names a step of a run", hint="add --run")
    if model is None or tasks is None:
        raise UsageError("there is nothing to evaluate", hint="muster eval MODEL TASKS, or muster eval --run NUMBER")
    return Subject(Path(model), Path(tasks), TaskSet.open(Path(tasks)), SamplingDefaults())


async def _of_run(session: Session, run: int, step: int | None) -> Subject:
    """Fetch a step's weights and the run's tasks, both checked against the chain."""
    folder = RUN_FOLDER / f"run-{run}"
    async with session.chain() as chain, session.orchestrator(chain) as client:
        terms = await chain.terms(run)
        tasks = await RunTasks.fetch(client, terms, folder)
        await tasks.ensure_all()
        profile = await fetch_profile(client, terms, folder)
        number, path = await fetch_checkpoint(session, chain, client, run, step, terms, folder / "weights")
    return Subject(
        path,
        task_set_path(terms, folder),
        tasks.task_set,
        SamplingDefaults.from_terms(terms, profile.name),
        {"run": run, "step": number},
    )


def _for_people(document: dict[str, Any]) -> Group:
    rows = [
        {"": f"pass@{row['k']}", "value": f"{row['value']:.3f}", "95 %": f"{row['low']:.3f} to {row['high']:.3f}"}
        for row in document["pass_at_k"]
    ]
    of = f"step {document['step']} of run {document['run']}" if "run" in document else document["model"]
    about = (
        f"{document['tasks']} {document['part']} tasks, {document['samples']} answers each; "
        f"{document['mean_tokens']:g} tokens in the mean, {document['finished']:.1%} ended by themselves"
    )
    return Group(Text(of), as_table(rows), Text(about))
