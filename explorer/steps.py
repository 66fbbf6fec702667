"""Show steps: roots on chain, sizes, who serves them, and the batch that each was made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field
from sqlalchemy import Connection, select, true

from explorer.rollouts import NamedFile
from explorer.source import PageSource, names_of, rows_of
from muster.ledger.queries import same_work
from muster.ledger.read_model import StepRecord, read_steps
from muster.ledger.tables import commitments, step_tallies, uploads
from muster.protocol.acceptance import UNREFUTED
from muster.protocol.messages import Message, Wei
from muster.protocol.metric_names import DELTA_BYTES, HELD_OUT, REWARD, WHOLE_BYTES
from muster.runtime import problems

MAX_STEPS: Final = 200
"""Steps of one answer."""
MAX_BATCH: Final = 2_000
"""Files of a batch that are shown."""


class StepHead(Message):
    """One policy step. A step can be on chain before its report is here, and the other way round."""

    step: int
    manifest_root: str | None = None
    batch_root: str | None = None
    transaction: str | None = None
    reported: float | None = None
    """Unix seconds (wall clock) at which the report arrived."""
    files: int = 0
    """Rollout files in the batch."""


class StepRow(StepHead):
    reward: float | None
    held_out: float | None
    bytes: int | None
    """Of the whole step."""
    delta_bytes: int | None
    """Of the difference to the step before."""
    commitments: int
    """Made at this policy step."""
    cost: Wei
    """Token wei: pay of those that were not refuted."""


class StepPage(Message):
    """Newest first."""

    run: int
    steps: list[StepRow]
    before: int | None
    """Step to ask for the page after this; None at the end."""
    relays: list[str]
    """Base URLs that serve weights now."""


class BatchFile(NamedFile):
    """A rollout file that a step was made of. `node` is empty where no upload of it is known here, nor is the rest."""

    policy_step: int | None
    rows: int
    """Rollouts in it, as in every file that was accepted."""


class StepView(Message):
    run: int
    step: StepRow
    entropy: str | None = None
    anchor: str | None = None
    block: int | None = None
    metrics: dict[str, float | None] = Field(default_factory=dict)
    stages: dict[str, float] = Field(default_factory=dict)
    """Seconds by stage."""
    batch: list[BatchFile] = Field(default_factory=list)
    batch_files: int = 0
    """How many there are; more than are listed where that is too many."""
    salt: str | None = None
    """First leaf of the batch root, where it has one."""
    dropped: int = 0
    """Files that the trainer will never use."""
    relays: list[str] = Field(default_factory=list)
    commands: list[str] = Field(default_factory=list)
    """That fetch it checked against the chain, and serve it."""


def step_page(
    connection: Connection, source: PageSource, relays: Sequence[str], before: int | None, limit: int
) -> StepPage:
    """Return the steps before one, newest first, from chain and reports."""
    newest = read_steps(connection, limit + 1, lambda step: true() if before is None else step < before)
    return StepPage(
        run=source.run,
        steps=step_rows(connection, source, newest[:limit]),
        before=newest[limit - 1].step if len(newest) > limit else None,
        relays=list(relays),
    )


def step_view(connection: Connection, source: PageSource, relays: Sequence[str], number: int) -> StepView:
    """Return one step. Raises RefusedError where neither chain nor trainer knows it."""
    found = read_steps(connection, 1, lambda step: step == number)
    if not found:
        raise problems.no_step(number, source.run)
    (row,), chain, report = step_rows(connection, source, found), found[0].chain, found[0].report
    batch = report.batch if report else []
    fetching, serving = f"weights fetch --step {number}", f"serve {number} --run {source.run}"
    return StepView.of(
        chain,
        report,
        run=source.run,
        step=row,
        batch=batch_files(connection, source, batch[:MAX_BATCH]),
        batch_files=len(batch),
        dropped=len(report.dropped) if report else 0,
        relays=list(relays),
        commands=[f"muster {one} --url {source.url}" for one in (fetching, serving)] if chain is not None else [],
    )


def step_rows(connection: Connection, source: PageSource, records: Sequence[StepRecord]) -> list[StepRow]:
    """Return a row for each of these steps, in their order."""
    numbers = [one.step for one in records]
    made, cost = Counter[int](), Counter[int]()
    for row in rows_of(connection, select(step_tallies), step_tallies.c.step, numbers):
        made[row.step] += row.count
        cost[row.step] += row.count * source.terms.pay_of(row.work_class) if row.status in UNREFUTED else 0
    return [_step_row(one, made[one.step], cost[one.step]) for one in records]


def _step_row(one: StepRecord, commitments: int, cost: int) -> StepRow:
    metrics = one.report.metrics if one.report else {}
    return StepRow.of(
        one,
        one.chain,
        reported=one.received,
        files=len(one.report.batch) if one.report else 0,
        reward=metrics.get(REWARD),
        held_out=metrics.get(HELD_OUT),
        bytes=_whole(metrics, WHOLE_BYTES),
        delta_bytes=_whole(metrics, DELTA_BYTES),
        commitments=commitments,
        cost=cost,
    )


def batch_files(connection: Connection, source: PageSource, names: Sequence[str]) -> list[BatchFile]:
    """Return the files of a batch in its order: who uploaded each, for which commitment."""
    query = select(*uploads.c["file_hash", "node", "index"], commitments.c.step, commitments.c.status)
    # An upload of another node's file is rejected, so the accepted one is shown where there are several.
    rows = rows_of(connection, query.join(commitments, same_work(uploads, commitments.c)), uploads.c.file_hash, names)
    rows.sort(key=lambda row: row.status == "accepted")
    found = {row.file_hash: row for row in rows}
    called = names_of(connection, [row.node for row in found.values()])
    return [_batch_file(name, found.get(name), called, source.terms.positions) for name in names]


def _batch_file(name: str, row: Any, called: Mapping[str, str], rows: int) -> BatchFile:
    if row is None:
        return BatchFile(file_hash=name, node="", name="", index=0, policy_step=None, rows=rows)
    return BatchFile.of(row, name=called.get(row.node, ""), policy_step=row.step, rows=rows)


def _whole(metrics: Mapping[str, float | None], name: str) -> int | None:
    """Return a metric that counts bytes; None where it was not reported, or is no number of bytes."""
    value = metrics.get(name)
    return int(value) if value is not None and 0 <= value < 1 << 53 else None
