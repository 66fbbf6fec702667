"""Grade everything again once an epoch's master is public: how many of the grades that validators showed come out.

`muster grades check` starts it. It needs no key, trusts neither the orchestrator nor any validator, and sends
nothing: masters come from the chain, statements are checked by their signatures, files by their committed roots.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from muster.contracts.registry import Status
from muster.contracts.runs import WorkCommitted
from muster.errors import CheckError, UnreachableError, UsageError
from muster.grading.grades import RowGrade
from muster.grading.shown import read_committed
from muster.protocol.hashes import hex_hash
from muster.protocol.masters import epoch_of
from muster.protocol.messages import ShownGrades, Verdict
from muster.rollouts.leaves import rollout_tree
from muster.runtime import telemetry
from muster.settings.schema import Settings
from muster.verification.checks import grade_rows
from muster.verification.rules import CommittedWork
from validator.context import RunVerificationContext
from validator.evidence import read_work
from validator.verify import BadWorkError, connected, show_document

_log = telemetry.logger("validator")
T = TypeVar("T")

MAX_EXAMPLES = 20
"""Wrong grades that are named."""


@dataclass
class GradeReport:
    """What grading again came to."""

    commitments: int = 0
    """Whose grades were shown, and graded again."""
    grades: int = 0
    """Rows that validators graded, once for each validator."""
    reproduced: int = 0
    """Those that come to the same reward, parts and fuel."""
    unsure: int = 0
    """Those that another processor may grade otherwise, as their validator or this machine says. Not in `grades`."""
    void: int = 0
    """Rows whose sealed reference does not open, or cannot be scored by, once for each validator."""
    unchecked: int = 0
    """Statements whose commitment cannot be graded here: its file is gone; or which fit no verdict."""
    wrong: Counter[str] = field(default_factory=Counter)
    """Rows that come to something else, by validator."""
    convicted: Counter[str] = field(default_factory=Counter)
    """The same of validators that were convicted: what they said counts for nothing, and is in no other number."""
    examples: list[str] = field(default_factory=list)


async def check_grades(settings: Settings, run: int | None, epoch: int | None, *, as_json: bool) -> None:
    """Grade again, and print how much came out. Raises BadWorkError unless every grade did."""
    settings = settings if run is None else settings.model_copy(update={"run": run})
    async with connected(settings) as connection:
        context = await connection.context()
        terms = context.rules.terms
        if not terms.has_private_tests:
            raise UsageError(f"run {settings.run} has no private tests", hint="muster run show --terms")
        shown, _ = await context.masters.revealed()
        if shown < (epoch or 1):
            raise UnreachableError(
                f"the master of epoch {epoch or 1} of run {settings.run} is not revealed yet",
                hint="its owner reveals it when the epoch is over: muster run reveal-master",
            )
        epochs = set(range(1, shown + 1)) if epoch is None else {epoch}
        report = await grade_again(context, settings.run, epochs)
    total = report.grades
    document: dict[str, Any] = {
        "run": settings.run,
        "epochs": sorted(epochs),
        **vars(report),
        "wrong": dict(report.wrong),
        "convicted": dict(report.convicted),
        "share": round(report.reproduced / total, 6) if total else None,
    }
    show_document(document, as_json=as_json)
    if report.reproduced < total or report.unchecked:
        raise BadWorkError(f"{report.reproduced} of {total} grades come out, {report.unchecked} statements unchecked")


async def grade_again(context: RunVerificationContext, run: int, epochs: set[int]) -> GradeReport:
    """Grade every commitment of these epochs again whose grades validators have shown."""
    # 1. What was committed, accepted and shown.
    committed = [event for event in await context.chain.all_events(WorkCommitted) if event.run == run]
    works = {(event.node, event.index, hex_hash(event.root)): CommittedWork.of(event) for event in committed}
    judged = await _all_pages(context.client.verdicts, run)
    verdicts = {(one.validator, one.node, one.index, one.root): one for one in judged}
    by_work: dict[tuple[str, int, str], list[ShownGrades]] = defaultdict(list)
    all_shown = await _all_pages(context.client.grades, run)
    for shown in all_shown:
        said = shown.statement
        by_work[said.node, said.index, said.root].append(shown)

    validators = sorted({shown.statement.validator for shown in all_shown})
    nodes = await context.chain.nodes(validators)
    convicted = {name for name, node in zip(validators, nodes, strict=True) if node.status == Status.JAILED}

    # 2. Each commitment once, and every statement about it.
    report = GradeReport()
    for key, statements in by_work.items():
        work = works.get(key)
        if work is None or epoch_of(context.rules.terms.grade_series, work.step) not in epochs:
            continue
        try:
            ours = await _grade(context, work)
        except CheckError as error:
            _log.warning("cannot be graded here", node=work.node, index=work.index, reason=str(error))
            report.unchecked += len(statements)
            continue
        report.commitments += 1
        for shown in statements:
            verdict = verdicts.get((shown.statement.validator, *key))
            _compare(report, context, ours, shown, verdict, convicted=shown.statement.validator in convicted)
    return report


def _compare(
    report: GradeReport,
    context: RunVerificationContext,
    ours: tuple[RowGrade, ...],
    shown: ShownGrades,
    verdict: Verdict | None,
    *,
    convicted: bool,
) -> None:
    """Count what one validator's grades of a commitment come to."""
    said = shown.statement
    try:
        if verdict is None:
            raise CheckError("there is no verdict that it opens")
        theirs = {grade.position: grade for grade in read_committed(context.domain, shown, verdict)}
    except CheckError as error:
        _log.warning("a statement does not count", validator=said.validator, index=said.index, reason=str(error))
        report.unchecked += 1
        return
    expected = {grade.position: grade for grade in ours}
    if convicted:
        report.convicted[said.validator] += sum(
            expected.get(position) != theirs.get(position) for position in {*expected, *theirs}
        )
        return
    for position in sorted({*expected, *theirs}):
        mine, stated = expected.get(position), theirs.get(position)
        if mine is not None and stated is not None and (mine.unsure or stated.unsure):
            report.unsure += 1
            continue
        report.grades += 1
        report.void += mine is not None and not mine.parts
        if mine == stated:
            report.reproduced += 1
            continue
        report.wrong[said.validator] += 1
        if len(report.examples) < MAX_EXAMPLES:
            report.examples.append(f"{said.validator} on row {position} of commitment {said.index} of {said.node}")


async def _grade(context: RunVerificationContext, work: CommittedWork) -> tuple[RowGrade, ...]:
    """Grade a commitment's rows of private tests. Raises CheckError or UnreachableError."""
    rollouts = await read_work(work, context)
    if (await asyncio.to_thread(rollout_tree, rollouts)).root != work.root:
        raise CheckError("the file is not what was committed to")
    draw, master = await context.draw(work), await context.master(work.step)
    assert master is not None
    await context.ensure_tasks((group.task for group in draw.groups), work.step)
    return await asyncio.to_thread(grade_rows, rollouts, draw, context.rules, master)


async def _all_pages(read: Callable[[int, str | None], Awaitable[tuple[list[T], str]]], run: int) -> list[T]:
    found: list[T] = []
    cursor = None
    while True:
        page, cursor = await read(run, cursor)
        if not page:
            return found
        found += page
