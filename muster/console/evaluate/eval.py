"""muster eval: how often a checkpoint is right, before, during and after a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Group
from rich.text import Text

from muster.authoring.benchmarks.definitions import Benchmark
from muster.authoring.evaluation.pass_at_k import mean_pass_at_k
from muster.clients.evaluation import EvalRequest, Sampling, TaskResult, part_of
from muster.console.command import command
from muster.console.evaluate.benchmark_publish import prepare_publisher
from muster.console.evaluate.eval_options import EvalOptions, Subject
from muster.console.evaluate.weights import fetch_run_step
from muster.console.sampling import SamplingOptions, check_ks, estimate_cells, model_hashes, sample_tasks
from muster.console.session import Session, as_table, to_json
from muster.errors import UsageError
from muster.runtime.files import write_durably
from muster.tasksets.taskset import TaskSet

app = typer.Typer()

DEFAULT_SAMPLES: Final = 8
RUN_FOLDER: Final = Path(".muster/eval")
"""Where the weights and the task set of a run are kept."""


@command(app, "eval", operator=True)
async def evaluate(session: Session, options: EvalOptions) -> None:
    """Measure pass@k of a checkpoint on held-out tasks or a benchmark, with 95 % confidence intervals.

    Of a run, budgets, temperature, length limit and profile are those of its terms where they are not given. Benchmarks
    are gsm8k, math500, aime24, aime25, gpqa_diamond, ifeval, livecodebench, humaneval and mbpp, each with its published
    settings where they are not given; a path that exists is a task set. Their results and records lie in .muster/eval,
    or at --out; run the same command to resume an interrupted one. What --publish publishes is signed by the
    run's trainer or its owner: the key of --operator, else of the settings.
    """
    outer = session.options
    given = {"--operator": outer.operator, "--password-file": outer.password_file, "--dry-run": outer.dry_run}
    if not options.publish and any(given.values()):
        raise UsageError(
            f"{', '.join(name for name in given if given[name])} is for --publish",
            hint="leave it out, or add --publish",
        )
    if (benchmark := options.benchmark) is not None:
        await _of_benchmark(session, benchmark, options)
    else:
        await _of_task_set(session, options)


async def _of_task_set(session: Session, options: EvalOptions) -> None:
    """Evaluate a model on a part of a task set; print, and write, what it came to."""
    # 1. The model, its tasks, and how it is asked.
    samples, part = options.samples or DEFAULT_SAMPLES, options.part or "held-out"
    ks = check_ks(options.k, samples)
    if options.run is None:
        subject = Subject(Path(str(options.model)), await asyncio.to_thread(TaskSet.open, Path(str(options.tasks))))
    else:
        subject = await _of_run(session, options.run, options.step)
    task_set = subject.task_set
    assert task_set is not None
    sampling = options.sampling(samples, subject.usual)
    hashes = await asyncio.to_thread(model_hashes, subject.model)
    tasks = len(part_of(task_set, part))
    count = min(options.limit or tasks, tasks)
    request = EvalRequest(subject.model, task_set.folder, task_set.root, part, count, sampling)

    # 2. Ask.
    begun = time.monotonic()
    results = [one async for one in sample_tasks(session, request)]
    document = {
        "model": str(subject.model),
        **hashes,
        **subject.of_run,
        "task_set": str(task_set.folder),
        "task_root": task_set.root,
        "part": part,
        "tasks": len(results),
        **asdict(sampling),
        **measured(results, sampling, ks),
        "seconds": round(time.monotonic() - begun, 1),
    }
    session.result(document, _for_people(document))
    if options.out is not None:
        right = [one.right for one in results]
        write_durably(options.out, (to_json(document | {"right": right}) + "\n").encode())


def measured(answers: Sequence[TaskResult], sampling: Sampling, ks: Sequence[int]) -> dict[str, Any]:
    """Return pass@k with its interval, means of tokens and calls of an answer, and how many ended by themselves."""
    right = [one.right for one in answers]
    total = sampling.samples * len(answers)
    return {
        "pass_at_k": [{"k": k, **asdict(mean_pass_at_k(right, sampling.samples, k))} for k in ks],
        "mean_tokens": round(sum(one.tokens for one in answers) / total, 2),
        "mean_calls": round(sum(one.calls for one in answers) / total, 2),
        "finished": sum(one.finished for one in answers) / total,
    }


async def _of_benchmark(session: Session, benchmark: Benchmark, options: EvalOptions) -> None:
    """Evaluate a checkpoint, or a step of a run, whose own tasks the benchmark is kept apart from."""
    from muster.console.evaluate.benchmark import evaluate_benchmark

    if options.run is None:
        await evaluate_benchmark(session, benchmark, Subject(Path(str(options.model)), None), options)
        return
    step, publisher = options.step, None
    if options.publish:
        publisher = await prepare_publisher(session, benchmark.name, options.run, step)
        if publisher is None:
            return
        step = publisher.step
    subject = await _of_run(session, options.run, step)
    await evaluate_benchmark(session, benchmark, subject, options, publisher)


async def _of_run(session: Session, run: int, step: int | None) -> Subject:
    """Fetch a step's weights and the run's tasks, both checked against the chain."""
    found = await fetch_run_step(session, run, step, RUN_FOLDER / f"run-{run}", whole=True)
    assert found.task_set is not None
    usual = SamplingOptions.of_terms(found.terms, found.profile.name)
    return Subject(found.path, found.task_set, usual, {"run": run, "step": found.number})


def _for_people(document: dict[str, Any]) -> Group:
    rows = [{"": f"pass@{row['k']}", **estimate_cells(row)} for row in document["pass_at_k"]]
    of = f"step {document['step']} of run {document['run']}" if "run" in document else document["model"]
    calls = f" and {document['mean_calls']:g} calls" if document["mean_calls"] else ""
    about = (
        f"{document['tasks']} {document['part']} tasks, {document['samples']} answers each; "
        f"{document['mean_tokens']:g} tokens{calls} in the mean, {document['finished']:.1%} ended by themselves"
    )
    return Group(Text(of), as_table(rows), Text(about))
