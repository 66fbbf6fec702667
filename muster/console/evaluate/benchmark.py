"""Evaluate a checkpoint on a published benchmark: what `muster eval CHECKPOINT gsm8k` does."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Group
from rich.text import Text

from muster.authoring.benchmarks.data import BenchmarkData, fetch_files, load_benchmark, prompts_of
from muster.authoring.benchmarks.definitions import Benchmark, BenchmarkItem
from muster.authoring.benchmarks.scoring import BenchmarkScorer
from muster.authoring.benchmarks.summary import summarize
from muster.authoring.evaluation.records import RecordFile
from muster.authoring.tasks.duplicates import Benchmarks
from muster.clients.evaluation import MAX_BUDGET, EvalRequest, Sampling, TaskResult
from muster.console.evaluate.benchmark_publish import BenchmarkPublisher
from muster.console.evaluate.eval_options import EvalOptions, Subject
from muster.console.sampling import check_ks, estimate_cells, model_hashes, record_tasks
from muster.console.session import Session, as_table, to_json
from muster.console.tasks.import_options import run_reference
from muster.environments.scoring import Scorers
from muster.environments.task import Task
from muster.errors import CheckError, ConfigError
from muster.models.files import context_of, load_tokenizer
from muster.protocol.hashes import content_hash
from muster.protocol.prompts import prompt_tokens
from muster.runtime.documents import canonical_json
from muster.runtime.files import write_durably
from muster.tasksets.taskset import TaskSet

FOLDER: Final = Path(".muster/eval")
"""Where published files are kept, and results without --out."""
SHOWN: Final = 10
"""Items and reasons that an error or a note names."""


async def evaluate_benchmark(
    session: Session,
    benchmark: Benchmark,
    subject: Subject,
    options: EvalOptions,
    publisher: BenchmarkPublisher | None = None,
) -> None:
    """Ask, score, write, publish if that is wanted, and print. Goes on where an interrupted evaluation stopped.

    Raises CheckError for items that are trained on, ConfigError for a file, model or record file that does not fit, and
    as a publisher.
    """
    model, against = subject.model, [TaskSet.open(path) for path in options.against]
    if subject.task_set is not None:
        against.append(subject.task_set)
    template = benchmark.prompt if options.prompt is None else benchmark.check_prompt(options.prompt)
    samples, begun = options.samples or benchmark.samples, time.monotonic()
    ks = check_ks(options.k, samples, benchmark.ks)
    hashes = await asyncio.to_thread(model_hashes, model)
    paths = options.data or await asyncio.to_thread(fetch_files, benchmark, FOLDER / "hub", session.note)
    with Scorers() as scorers:
        # 1. Read the published files; find what is trained on.
        scorer = await asyncio.to_thread(BenchmarkScorer, benchmark, scorers)
        with await asyncio.to_thread(_load, session, benchmark, scorer, scorers, paths, options) as data:
            trained = await asyncio.to_thread(trained_on, data.items, against)
            kept = _without(benchmark, data.items, trained, skip=options.skip_trained)
            if publisher:
                publisher.check_whole(benchmark, data, trained)
            prompts = prompts_of([data.items[i] for i in kept], template)

            # 2. What the result depends on.
            sampling = await asyncio.to_thread(_sampling, benchmark, subject, prompts, options)
            identity = {
                "benchmark": benchmark.name,
                **{name: "0x" + value.hex() for name, value in hashes.items()},
                "data": data.files,
                "prompt": template,
                "prompts_sha256": content_hash(prompts),
                "scorers": scorer.hashes(),
                "sampling": {name: value for name, value in asdict(sampling).items() if name != "budgets"},
                "against": ["0x" + one.root.hex() for one in against],
                "window": options.contests().to_document() if benchmark.dated else None,
                **subject.of_run,
            }
            out = options.out or FOLDER / f"{benchmark.name}-{content_hash(canonical_json(identity))[2:14]}.json"

            # 3. Ask and score what is not in the records yet.
            with RecordFile(out.with_suffix(".items.jsonl"), identity) as records, _file_of(prompts) as path:
                digest = hashlib.sha256(prompts).digest()
                request = EvalRequest(model, path, digest, "prompts", len(kept), sampling)
                await record_tasks(session, request, records, partial(_scored, scorer, data, kept))
                document = {
                    **identity,
                    "left_out": dict(data.report.left_out),
                    "trained_on": [data.items[i].id for i in sorted(trained)],
                    "manifests": {name: one.to_document() for name, one in scorer.manifests.items()},
                    "records": {"name": records.path.name, "sha256": records.sha256()},
                    **summarize(benchmark, records.records(), samples, ks),
                }

    # 4. Write, publish and print what it came to.
    write_durably(out, (to_json(document) + "\n").encode())
    published = await publisher.publish(benchmark, document) if publisher else {}
    document |= {"model": str(model), "out": str(out), "seconds": round(time.monotonic() - begun, 1), **published}
    session.result(document, _for_people(document))


def trained_on(items: Sequence[BenchmarkItem], against: Sequence[TaskSet]) -> set[int]:
    """Return the items, by number, that stand in the training tasks of these sets."""
    known = Benchmarks(item.compared for item in items)
    found: set[int] = set()
    for task_set in against:
        for _, task in task_set.train:
            found |= known.found_in(task.text)
    return found


def _scored(scorer: BenchmarkScorer, data: BenchmarkData, kept: Sequence[int], answered: TaskResult) -> dict[str, Any]:
    """Return the record of an item: its answers, each with its scores."""
    item, reference = data.items[kept[answered.task]], data.reference(kept[answered.task])
    samples = [
        {
            **{"text": answer.text, "tokens": answer.tokens, "finished": answer.finished},
            **asdict(scorer.score(item, reference, answer.text)),
        }
        for answer in answered.shown
    ]
    return {"id": item.id, "units": item.units, "samples": samples}


def _load(
    session: Session,
    benchmark: Benchmark,
    scorer: BenchmarkScorer,
    scorers: Scorers,
    paths: Sequence[Path],
    options: EvalOptions,
) -> BenchmarkData:
    session.note(f"reading {', '.join(path.name for path in paths)} …")
    environments = list(scorer.environments.values())
    runs = run_reference(scorers.sandbox)
    data = load_benchmark(benchmark, paths, runs, environments, options.contests(), options.limit)
    for number, reason in data.report.examples[:SHOWN]:
        session.note(f"row {number} is left out: {reason}")
    if (count := data.report.left_out.total()) > SHOWN:
        session.note(f"{count} rows are left out")
    return data


def _without(benchmark: Benchmark, items: Sequence[BenchmarkItem], trained: set[int], *, skip: bool) -> list[int]:
    """Return the items that are asked. Raises CheckError for those that are trained on and not to be left out."""
    if trained and not skip:
        names = [items[i].id for i in sorted(trained)]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise CheckError(
            f"{len(names)} of {len(items)} items of {benchmark.name} are trained on: {', '.join(names[:SHOWN])}{more}",
            hint="train on a set without them (muster tasks import --decontaminate), or add --skip-trained",
        )
    kept = [i for i in range(len(items)) if i not in trained]
    if not kept:
        raise CheckError(f"all {len(items)} items of {benchmark.name} are trained on")
    return kept


def _sampling(benchmark: Benchmark, subject: Subject, prompts: bytes, options: EvalOptions) -> Sampling:
    """Return how every item is asked. The published length limit gives way to a smaller context of the model."""
    most = options.max_tokens
    if most is None:
        tokenizer, context = load_tokenizer(subject.model), context_of(subject.model)
        tasks = [Task.from_line(line) for line in prompts.splitlines()]
        longest = max(len(prompt_tokens(tokenizer, task, benchmark.max_tokens, thinks=False)) for task in tasks)
        room = benchmark.max_tokens if context is None else context - longest
        if room < 1:
            raise ConfigError(
                f"a prompt of {longest} tokens does not fit the model's context of {context}",
                hint="choose a model with a longer context, or fewer items (--limit)",
            )
        most = min(benchmark.max_tokens, room)
    usual = subject.usual.model_copy(
        update={"budgets": (min(most, MAX_BUDGET),), "max_tokens": most, "temperature": benchmark.temperature}
    )
    return options.sampling(options.samples or benchmark.samples, usual)


@contextmanager
def _file_of(data: bytes) -> Iterator[Path]:
    """Yield a file with these bytes, for the block; it has no name, so a killed process leaves none behind."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        yield Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")


def _for_people(document: dict[str, Any]) -> Group:
    rows = [{"rule": row["rule"], "": row["measure"], **estimate_cells(row)} for row in document["figures"]]
    sampling = document["sampling"]
    about = (
        f"{document['items']} items of {document['benchmark']}, {sampling['samples']} answers each at temperature "
        f"{sampling['temperature']:g}; {document['mean_tokens']:g} tokens in the mean, "
        f"{document['cut_off']:.1%} cut off at {sampling['max_tokens']}"
    )
    left = sum(document["left_out"].values())
    more = [Text(f"{left} rows were left out; the result says why")] if left else []
    if published := document.get("published"):
        more.append(Text(f"published as the score of step {published['step']}, by {published['by']}"))
    return Group(Text(document["model"]), as_table(rows), Text(about), *more, Text(f"wrote {document['out']}"))
