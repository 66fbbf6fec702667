"""Restore uploads, verdicts, grades, tickets, reports, environments, names and scores for a new database.

Summaries of days whose detail is gone come first. What a sweep that was killed left of such a day is not read again.
Each is checked as if it had just arrived over HTTP, apart from checks against the state of that moment. A file in the
wrong place, or with another's signature, is left out and named in the log. The service answers once this has ended;
killed half way, it starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, select

from muster.clients.storage import ContentStore, documents_in
from muster.errors import CheckError, MismatchError, StorageError
from muster.grading.shown import read_committed
from muster.protocol.announcements import BenchmarkScore, NodeName
from muster.protocol.eip712 import Domain
from muster.protocol.keys import RunKeys
from muster.protocol.messages import EnvironmentDecision, Grade, ShownGrades, Upload, UploadReceipt, Verdict
from muster.protocol.receipts import check_receipt, check_upload, check_verdict
from muster.protocol.traps import check_consent, check_ticket
from muster.runtime import telemetry
from muster.tasksets.contribution_pack import MAX_PACK_BYTES, Pack, read_pack
from orchestrator.database import Database
from orchestrator.environments import Environments
from orchestrator.grades import Grades
from orchestrator.page.announcements import Announcements, Operators
from orchestrator.planted import KeptTicket
from orchestrator.reports import KeptReport, Reports
from orchestrator.retention import Retention
from orchestrator.statements import upsert
from orchestrator.summaries import DayOfWork, SignedDay, day_in, leave, read_day, restore
from orchestrator.tables import meta
from orchestrator.traps import TrapDesk
from orchestrator.uploads import Uploads
from orchestrator.verdicts import Verdicts

log = telemetry.logger("orchestrator")
Document = TypeVar("Document", bound=BaseModel)


async def rebuild(
    database: Database,
    where: Domain,
    run: int,
    keys: RunKeys,
    *,
    runs: str,
    uploads: Uploads,
    verdicts: Verdicts,
    grades: Grades,
    traps: TrapDesk,
    reports: Reports,
    environments: Environments,
    announcements: Announcements,
    operators: Operators,
    retention: Retention,
) -> None:
    """Fill a new database from storage; return at once when it was filled before. `runs`: the Runs contract."""
    query = select(meta.c.value).where(meta.c.key == "rebuilt")
    if await database.read(lambda connection: connection.execute(query).scalar()):
        return

    # 1. What is left of days whose detail is gone, then what members sent about all other work.
    left = _Left(await _restore_summaries(database, retention, where, run, keys))
    kept_uploads = await _restore_uploads(uploads, where, run, keys, left)
    all_verdicts = await named_documents(verdicts.copies, Verdict, lambda verdict: check_verdict(where, verdict))
    all_verdicts = [(name, verdict) for name, verdict in all_verdicts if verdict.run == run]
    kept_verdicts = [(name, verdict) for name, verdict in all_verdicts if not left.takes("verdicts", name, verdict)]
    for name, verdict in sorted(kept_verdicts, key=lambda one: _order(one[1])):
        await verdicts.record(verdict, 0.0, name)
    await verdicts.restore_evidence(runs)
    kept_grades = await _restore_grades(grades, where, [verdict for _, verdict in all_verdicts], left)
    await database.write(left.note, news=False)

    await _restore_tickets(traps, where, run, keys)

    # 2. What is about no commitment.
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


@dataclass(frozen=True)
class _Left:
    """Files about days whose detail is gone, which a sweep that was killed was to delete."""

    ended: Sequence[DayOfWork]
    """The summaries of these days."""
    files: list[tuple[int, str, str]] = field(default_factory=list)
    """Day, kind and name."""

    def takes(self, kind: str, name: str, work: Verdict | Grade | UploadReceipt) -> bool:
        """Note a file about some work if it is one of them; return whether it is."""
        day = day_in(self.ended, work.node, work.index)
        if day is not None:
            self.files.append((day, kind, name))
            self.files.extend([(day, "files", work.file_hash)] if isinstance(work, UploadReceipt) else [])
        return day is not None

    def note(self, connection: Connection) -> None:
        """Let the next sweep delete them."""
        for day, kind, name in self.files:
            leave(connection, [(kind, name)], day)


async def _restore_uploads(
    uploads: Uploads, where: Domain, run: int, keys: RunKeys, left: _Left
) -> list[tuple[str, Upload]]:
    """Record the uploads of the run; return them with the names of their files."""

    def check(upload: Upload) -> None:
        check_receipt(where, upload.receipt, keys)
        check_upload(where, upload)

    found = await named_documents(uploads.records, Upload, check)
    found = [
        (name, one) for name, one in found if one.receipt.run == run and not left.takes("uploads", name, one.receipt)
    ]
    for _, upload in sorted(found, key=lambda one: one[1].receipt.stored_at):  # the first receipt of a file counts
        await uploads.record(upload, 0.0)
    return found


async def _restore_grades(
    grades: Grades, where: Domain, given: Sequence[Verdict], left: _Left
) -> list[tuple[str, ShownGrades]]:
    """Record the grades that are those of a verdict; return them with the names of their files."""
    by_work = {(v.validator, v.node, v.index, v.root): v for v in given if v.accepted}

    def check(shown: ShownGrades) -> None:
        one = shown.statement
        verdict = by_work.get((one.validator, one.node, one.index, one.root))
        if verdict is None:
            raise MismatchError("grades without a verdict")
        read_committed(where, shown, verdict)

    found = await named_documents(grades.copies, ShownGrades, check)
    found = [(name, shown) for name, shown in found if not left.takes("grades", name, shown.statement)]
    for name, shown in sorted(found, key=lambda one: _order(one[1].statement)):
        await grades.record(shown, 0.0, name)
    return found


async def _restore_tickets(traps: TrapDesk, where: Domain, run: int, keys: RunKeys) -> None:
    """Record the tickets of the run."""

    def check(kept: KeptTicket) -> None:
        check_consent(where, kept.trap.consent)
        check_ticket(where, kept.trap.ticket, kept.trap.consent, keys)

    found = await documents_of(traps.copies, KeptTicket, check)
    for kept in sorted(found, key=lambda one: one.trap.ticket.stored_at):  # the first ticket of a root counts
        if kept.trap.ticket.run == run:
            await traps.record(kept, 0.0)


async def _packs(environments: Environments) -> list[Pack]:
    """Return all submitted environments that storage keeps, by author, name and version."""
    found = []
    async for name in environments.packs.names():
        try:
            found.append(read_pack(await environments.packs.get(name, MAX_PACK_BYTES)))
        except (CheckError, StorageError) as error:
            _leave_out(environments.packs, name, error)
    return sorted(found, key=lambda pack: (pack.claim.author, pack.claim.name, pack.claim.version))


async def _restore_summaries(
    database: Database, retention: Retention, where: Domain, run: int, keys: RunKeys
) -> list[DayOfWork]:
    """Write the summaries of the run into the database; return those that count."""
    ended = list[DayOfWork]()
    for name in sorted([name async for name in retention.summaries.names()]):
        try:
            work = read_day(where, keys, await retention.summaries.get(name, SignedDay.max_bytes))
        except (CheckError, StorageError) as error:
            _leave_out(retention.summaries, name, error)
            continue
        if work.run == run and await database.write(partial(restore, work=work, name=name)):
            ended.append(work)
    return ended


def _order(work: Verdict | Grade) -> tuple[Any, ...]:
    """Sort by work, a verdict that the file was missing before the one that took its place."""
    return work.step, work.node, work.index, work.validator, getattr(work, "reason", None) != "data_missing"


async def documents_of(store: ContentStore, model: type[Document], check: Callable[[Document], None]) -> list[Document]:
    """Return all documents of a kind that parse and pass the check."""
    return [document for _, document in await named_documents(store, model, check)]


async def named_documents(
    store: ContentStore, model: type[Document], check: Callable[[Document], None]
) -> list[tuple[str, Document]]:
    """Return the same, each with the name of its file."""
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
                found.append((name, document))
    return found


def _leave_out(store: ContentStore, name: str, error: Exception) -> None:
    log.warning("left out", kind=store.kind, name=name, reason=str(error).splitlines()[0])
