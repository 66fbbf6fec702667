"""Receive the trainer's reports of its updates: metrics for people, and which files are used up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, select

from muster.ledger.database import Database
from muster.ledger.documents import MAX_FILES, Placed, record_report
from muster.ledger.queries import Queries
from muster.ledger.tables import steps
from muster.protocol.messages import StepReport
from muster.runtime import problems, telemetry
from orchestrator.log import Kind, Log, Offered, by_trainer

STEP: Final = telemetry.gauge("reported_step", "Newest policy step the trainer reported")
log = telemetry.logger("orchestrator")


class Reports:
    """What the trainer's reports lead to. One per service."""

    def __init__(self, queries: Queries, database: Database, documents: Log) -> None:
        self._queries = queries
        self._database = database
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
        for one in found:
            report = record_report(connection, self._queries, one)
            STEP.set(report.step)
            log.info("step", step=report.step, files=len(report.batch), finished=report.finished)


def _expect_few(_connection: Connection, offered: Offered[StepReport]) -> str:
    report = offered.document
    if len(report.batch) + len(report.dropped) > MAX_FILES:
        raise problems.malformed(f"a report names at most {MAX_FILES} files")
    return ""
