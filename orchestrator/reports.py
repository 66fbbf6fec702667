"""Receive the trainer's reports of its updates: metrics for people, and which files are used up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, delete, select, update

from muster.protocol.messages import RowCheck, StepReport
from muster.runtime import telemetry
from orchestrator import problems, tallies
from orchestrator.database import Database
from orchestrator.events import record_event
from orchestrator.log import Kind, Log, Offered, Placed, by_trainer
from orchestrator.page import series
from orchestrator.queries import Queries, same_work
from orchestrator.statements import insert_once, upsert
from orchestrator.tables import MAX_METRIC, spent, steps, verdicts

MAX_FILES: Final = 10_000
"""Most files one report may name."""

STEP: Final = telemetry.gauge("reported_step", "Newest policy step the trainer reported")
log = telemetry.logger("orchestrator")


class Reports:
    """What the trainer's reports lead to. One per service."""

    def __init__(self, queries: Queries, database: Database, documents: Log) -> None:
        self._queries = queries
        self._database = database
        self._has_warned = False
        documents.add_kind(
            Kind(
                name="report",
                message=StepReport,
                noun="report",
                key=lambda report: str(report.step),
                **by_trainer(queries),
                fits=_expect_few,
                replaces=lambda _new, _earlier: True,
                about=lambda report: ("", report.step),
                project=self._project,
            )
        )

    async def of_step(self, step: int) -> StepReport | None:
        """Return the last report of a step."""
        query = select(steps.c.document).where(steps.c.step == step)
        document = await self._database.read(lambda connection: connection.execute(query).scalar())
        return StepReport.model_validate_json(document) if document else None

    def _project(self, connection: Connection, found: Sequence[Placed[StepReport]]) -> None:
        """Record reports, and that their files are used up.

        A restarted trainer may train a step again: a later report takes the place of an earlier one of its step. Of an
        earlier one of the same batch, metrics, stages and refused files stay that the later one lacks: the trainer does
        not measure them twice.
        """
        for one in found:
            report = _with_earlier(one.document, connection)
            row = {"step": report.step, "document": report.model_dump_json(), "received": one.at.received}
            upsert(connection, steps, row)
            self._use_up(connection, report.step, _files_of(report))
            self._refute(connection, report.refuted)
            self._warn_of(series.record(connection, report.step, report.metrics))
            shown = {"step": report.step, "metrics": report.metrics, "files": len(report.batch)}
            record_event(connection, "step", shown, f"step:{report.step}:{one.at.received}")
            if report.finished:
                record_event(connection, "finished", {"step": report.step}, f"finished:{report.step}")
            STEP.set(report.step)
            log.info("step", step=report.step, files=len(report.batch), finished=report.finished)

    def _refute(self, connection: Connection, refuted: Sequence[RowCheck]) -> None:
        """Let rejections whose rows the trainer found true take no place, and hold nothing back."""
        for one in refuted:
            rejected = update(verdicts).where(
                verdicts.c.validator == one.validator, same_work(verdicts, one), verdicts.c.accepted.is_(False)
            )
            if connection.execute(rejected.values(refuted=True)).rowcount:
                self._queries.update_status(connection, one.node, one.index)

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


def _expect_few(_connection: Connection, offered: Offered[StepReport]) -> str:
    report = offered.document
    if len(report.batch) + len(report.dropped) > MAX_FILES:
        raise problems.malformed(f"a report names at most {MAX_FILES} files")
    return ""


def _files_of(report: StepReport) -> dict[str, bool]:
    """Return whether a report has used each file that it names."""
    return dict.fromkeys(report.dropped, False) | dict.fromkeys(report.batch, True)


def _with_earlier(report: StepReport, connection: Connection) -> StepReport:
    """Add to a report the metrics, stages and refused files of an earlier one of the same step and batch."""
    document = connection.execute(select(steps.c.document).where(steps.c.step == report.step)).scalar()
    earlier = StepReport.model_validate_json(document) if document else None
    if earlier is None or earlier.batch != report.batch:
        return report
    both = {
        "metrics": earlier.metrics | report.metrics,
        "stages": earlier.stages | report.stages,
        "dropped": list(dict.fromkeys([*report.dropped, *earlier.dropped]))[:MAX_FILES],
    }
    return report.model_copy(update=both)
