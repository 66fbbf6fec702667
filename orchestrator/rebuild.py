"""Restore uploads, verdicts, grades, reports, environments, names and scores from storage for a new database.

Each is checked as if it had just arrived over HTTP, apart from checks against the state of that moment. A file in the
wrong place, or with another's signature, is left out and named in the log. The service answers once this has ended;
killed half way, it starts again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import select

from muster.clients.storage import ContentStore, documents_in
from muster.errors import CheckError, MismatchError, StorageError
from muster.grading.shown import read_committed
from muster.protocol.announcements import BenchmarkScore, NodeName
from muster.protocol.eip712 import Domain
from muster.protocol.messages import EnvironmentDecision, ShownGrades, Upload, Verdict
from muster.protocol.receipts import check_receipt, check_upload, check_verdict
from muster.runtime import telemetry
from muster.tasksets.contribution_pack import MAX_PACK_BYTES, Pack, read_pack
from orchestrator.database import Database, upsert
from orchestrator.environments import Environments
from orchestrator.grades import Grades
from orchestrator.page.announcements import Announcements, Operators
from orchestrator.reports import KeptReport, Reports
from orchestrator.tables import meta
from orchestrator.uploads import Uploads
from orchestrator.verdicts import Verdicts

log = telemetry.logger("orchestrator")
Document = TypeVar("Document", bound=BaseModel)


async def rebuild(
    database: Database,
    where: Domain,
    run: int,
    storage_key: str,
    *,
    uploads: Uploads,
    verdicts: Verdicts,
    grades: Grades,
    reports: Reports,
    environments: Environments,
    announcements: Announcements,
    operators: Operators,
) -> None:
    """Fill a new database from storage; return at once when it was filled before."""
    query = select(meta.c.value).where(meta.c.key == "rebuilt")
    if await database.read(lambda connection: connection.execute(query).scalar()):
        return

    def check_one(upload: Upload) -> None:
        check_receipt(where, upload.receipt, storage_key)
        check_upload(where, upload)

    kept_uploads = [u for u in await documents_of(uploads.records, Upload, check_one) if u.receipt.run == run]
    for upload in sorted(kept_uploads, key=lambda one: one.receipt.stored_at):  # the first receipt of a file counts
        await uploads.record(upload, 0.0)
    kept_verdicts = await documents_of(verdicts.copies, Verdict, lambda verdict: check_verdict(where, verdict))
    kept_verdicts = [verdict for verdict in kept_verdicts if verdict.run == run]
    for verdict in sorted(kept_verdicts, key=lambda v: (v.step, v.node, v.index, v.validator, v.draw_index)):
        await verdicts.record(verdict, 0.0)
    by_work = {(v.validator, v.node, v.index, v.root): v for v in kept_verdicts if v.accepted}

    def check_grades(shown: ShownGrades) -> None:
        one = shown.statement
        verdict = by_work.get((one.validator, one.node, one.index, one.root))
        if verdict is None:
            raise MismatchError("grades without a verdict")
        read_committed(where, shown, verdict)

    kept_grades = await documents_of(grades.copies, ShownGrades, check_grades)
    for shown in sorted(kept_grades, key=lambda g: (g.statement.step, g.statement.node, g.statement.index)):
        await grades.record(shown, 0.0)
    kept_reports = await documents_of(reports.copies, KeptReport, lambda _: None)
    kept_reports = [kept for kept in kept_reports if kept.report.run == run]
    for kept in sorted(kept_reports, key=lambda k: k.received):
        await reports.record(kept)
    kept_packs = await _packs(environments)
    for pack in kept_packs:
        await environments.record(pack, 0.0)
    kept_decisions = await documents_of(environments.decisions, EnvironmentDecision, environments.check_decision)
    listed = {pack.hash for pack in kept_packs}
    for decision in sorted(kept_decisions, key=lambda one: (one.decided, one.environment)):
        if decision.run == run and decision.environment in listed:
            await environments.apply(decision)
    kept_names = await documents_of(announcements.names, NodeName, announcements.check_name)
    await announcements.restore_names(kept_names, operators)
    await announcements.restore_scores(
        await documents_of(announcements.scores, BenchmarkScore, announcements.check_score)
    )
    await database.write(lambda connection: upsert(connection, meta, {"key": "rebuilt", "value": "yes"}))
    if kept_uploads or kept_verdicts or kept_reports:
        counts = {"uploads": len(kept_uploads), "verdicts": len(kept_verdicts), "reports": len(kept_reports)}
        counts |= {"grades": len(kept_grades)} if kept_grades else {}
        log.info("rebuilt from storage", **counts)


async def _packs(environments: Environments) -> list[Pack]:
    """Return all submitted environments that storage keeps, by author, name and version."""
    found = []
    async for name in environments.packs.names():
        try:
            found.append(read_pack(await environments.packs.get(name, MAX_PACK_BYTES)))
        except (CheckError, StorageError) as error:
            _leave_out(environments.packs, name, error)
    return sorted(found, key=lambda pack: (pack.claim.author, pack.claim.name, pack.claim.version))


async def documents_of(store: ContentStore, model: type[Document], check: Callable[[Document], None]) -> list[Document]:
    """Return all documents of a kind that parse and pass the check."""
    found = []
    async for name in store.names():
        try:
            texts = await documents_in(store, name)
        except (CheckError, StorageError) as error:
            _leave_out(store, name, error)
            continue
        for text in texts:
            try:
                document = model.model_validate_json(text)
                check(document)
            except (ValidationError, CheckError) as error:
                _leave_out(store, name, error)
            else:
                found.append(document)
    return found


def _leave_out(store: ContentStore, name: str, error: Exception) -> None:
    log.warning("left out", kind=store.kind, name=name, reason=str(error).splitlines()[0])
