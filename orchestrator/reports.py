"""Receive the trainer's reports of its updates: metrics for people, and which files are used up."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from pydantic import Field
from sqlalchemy import Connection, Table, delete, select

from muster.clients.storage import DocumentStore
from muster.protocol.messages import Message, StepReport
from muster.runtime import telemetry
from orchestrator import problems, tallies
from orchestrator.auth import Caller
from orchestrator.database import Database
from orchestrator.events import record_event
from orchestrator.page import series
from orchestrator.queries import Queries
from orchestrator.statements import insert_new, insert_once, upsert
from orchestrator.tables import MAX_METRIC, hidden_spent, hidden_steps, spent, steps

MAX_FILES: Final = 10_000
"""Most files one report may name."""

STEP: Final = telemetry.gauge("reported_step", "Newest policy step the trainer reported")
log = telemetry.logger("orchestrator")


class KeptReport(Message):
    """A report as storage keeps it: among several of one step, the one received last counts."""

    report: StepReport
    received: float = Field(ge=0)


class Reports:
    """Receives the trainer's reports. One per service."""

    def __init__(self, queries: Queries, database: Database, *, storage_url: str) -> None:
        self._queries = queries
        self._database = database
        self.copies = DocumentStore(storage_url, "steps")
        self._has_warned = False

    async def receive(self, caller: Caller, run: int, report: StepReport) -> None:
        """Take a report. A later one of the same step replaces it: a restarted trainer may train a step again.

        Of an earlier report of the same batch, metrics, stages and refused files stay that the later one lacks: the
        trainer does not measure them twice.
        """
        if not caller.is_trainer:
            raise problems.not_allowed(f"{caller.address} is not the run's trainer {self._queries.keys_now.trainer}")
        if report.run != run:
            raise problems.another_run(report.run, self._queries.run)
        if len(report.batch) + len(report.dropped) > MAX_FILES:
            raise problems.malformed(f"a report names at most {MAX_FILES} files")
        kept = KeptReport(report=report, received=time.time())
        await self.copies.add(kept.model_dump_json().encode())
        await self.record(kept)
        log.info("step", step=report.step, files=len(report.batch), finished=report.finished)

    async def record(self, kept: KeptReport) -> None:
        """Record a report, and that its files are used up, in the database."""
        await self._database.write(partial(self._hide if self._queries.hides else self._write, kept=kept))
        STEP.set(kept.report.step)

    def show(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Record reports that were hidden (`orchestrator.hidden`) for everybody."""
        connection.execute(delete(hidden_spent).where(hidden_spent.c.step.in_([row.step for row in rows])))
        for row in rows:
            report = StepReport.model_validate_json(row.document)
            self._write(connection, KeptReport(report=report, received=row.received))

    def _hide(self, connection: Connection, kept: KeptReport) -> None:
        """Keep a report for the trainer, and show of it only what depends on no verdict."""
        report = _with_earlier(kept.report, connection, hidden_steps)
        upsert(connection, hidden_steps, _row_of(report, kept.received))
        connection.execute(delete(hidden_spent).where(hidden_spent.c.step == report.step))
        rows = [{"file_hash": name, "step": report.step, "used": used} for name, used in _files_of(report).items()]
        insert_new(connection, hidden_spent, rows)
        bare = StepReport(run=report.run, step=report.step, metrics={}, finished=report.finished)
        shown = _report_in(connection, steps, report.step)
        if shown is None or (report.finished and not (shown.finished or shown.batch or shown.metrics)):
            upsert(connection, steps, _row_of(bare, kept.received))
            self._note_finished(connection, bare)

    def _write(self, connection: Connection, kept: KeptReport) -> None:
        report = _with_earlier(kept.report, connection, steps)
        upsert(connection, steps, _row_of(report, kept.received))
        self._use_up(connection, report.step, _files_of(report))
        self._warn_of(series.record(connection, report.step, report.metrics))
        shown = {"step": report.step, "metrics": report.metrics, "files": len(report.batch)}
        record_event(connection, "step", shown, f"step:{report.step}:{kept.received}")
        self._note_finished(connection, report)

    def _note_finished(self, connection: Connection, report: StepReport) -> None:
        if report.finished:
            record_event(connection, "finished", {"step": report.step}, f"finished:{report.step}")

    def _warn_of(self, left_out: list[str]) -> None:
        """Warn once of metrics that charts will not show."""
        if left_out and not self._has_warned:
            self._has_warned = True
            log.warning(
                "charts leave out some of the trainer's metrics",
                metrics=[name[:MAX_METRIC] for name in left_out[:3]],
                of=len(left_out),
                hint=f"a run can have {series.MAX_NAMES} metrics, whose names print and have {MAX_METRIC} characters",
            )

    def _use_up(self, connection: Connection, step: int, files: Mapping[str, bool]) -> None:
        """Note which files a step has used or left out, in place of what was noted before; and count them again."""
        before, had_batch = tallies.spent_by(connection, step), tallies.has_batch(connection, step)
        connection.execute(delete(spent).where(spent.c.step == step))
        for name, used in files.items():
            insert_once(connection, spent, {"file_hash": name, "step": step, "used": used})
        for sign, works in ((-1, before), (1, tallies.spent_by(connection, step))):
            for node, index, used in works:
                tallies.mark_spent(connection, node, index)
                tallies.add(connection, node, "files", sign * used)
        trained = tallies.has_batch(connection, step) - had_batch
        tallies.add(connection, self._queries.keys_now.trainer, "updates", trained)


def _row_of(report: StepReport, received: float) -> dict[str, Any]:
    return {"step": report.step, "document": report.model_dump_json(), "received": received}


def _files_of(report: StepReport) -> dict[str, bool]:
    """Return whether a report has used each file that it names."""
    return dict.fromkeys(report.dropped, False) | dict.fromkeys(report.batch, True)


def _report_in(connection: Connection, table: Table, step: int) -> StepReport | None:
    document = connection.execute(select(table.c.document).where(table.c.step == step)).scalar()
    return StepReport.model_validate_json(document) if document else None


def _with_earlier(report: StepReport, connection: Connection, table: Table) -> StepReport:
    """Add to a report the metrics, stages and refused files of an earlier one of the same step and batch."""
    earlier = _report_in(connection, table, report.step)
    if earlier is None or earlier.batch != report.batch:
        return report
    both = {
        "metrics": earlier.metrics | report.metrics,
        "stages": earlier.stages | report.stages,
        "dropped": list(dict.fromkeys([*report.dropped, *earlier.dropped]))[:MAX_FILES],
    }
    return report.model_copy(update=both)
