"""Restore uploads, verdicts, reports, what the trainer shows, environments, names and scores that the database lacks.

It may be new, or an older copy: what it has is left as it is. Summaries of days whose detail is gone come first. What a
sweep that was killed left of such a day is not read again. Each is checked as if it had just arrived over HTTP, apart
from checks against the state of that moment. A file in the wrong place, or with another's signature, is left out and
named in the log. The service answers once this has ended; killed half way, it starts again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, select

from muster.clients.storage import ContentStore, documents_in
from muster.errors import CheckError, RefusedError, StorageError
from muster.protocol.announcements import BenchmarkScore, NodeName
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import content_hash
from muster.protocol.keys import RunKeys
from muster.protocol.messages import (
    MAX_LIST_CHARS,
    EnvironmentDecision,
    ShownLooks,
    ShownMaster,
    Upload,
    UploadReceipt,
    Verdict,
)
from muster.protocol.receipts import check_receipt, check_upload, check_verdict
from muster.runtime import telemetry
from muster.tasksets.contribution_pack import MAX_PACK_BYTES, Pack, read_pack
from orchestrator.database import MAX_BATCH, Database
from orchestrator.environments import Environments
from orchestrator.page.announcements import Announcements, Operators
from orchestrator.reports import KeptReport, Reports
from orchestrator.retention import Retention
from orchestrator.shown import ShownDocuments
from orchestrator.summaries import DayOfWork, SignedDay, day_in, leave, read_day
from orchestrator.tables import environments as packs
from orchestrator.tables import steps
from orchestrator.tables import uploads as uploads_table
from orchestrator.tables import verdicts as verdicts_table
from orchestrator.uploads import Uploads
from orchestrator.verdicts import KeptVerdict, Verdicts

log = telemetry.logger("orchestrator")
Document = TypeVar("Document", bound=BaseModel)
Known = Mapping[str, int]
"""What the database has of storage (`_known`)."""


async def rebuild(
    database: Database,
    where: Domain,
    run: int,
    keys: RunKeys,
    *,
    runs: str,
    uploads: Uploads,
    verdicts: Verdicts,
    shown: ShownDocuments,
    reports: Reports,
    environments: Environments,
    announcements: Announcements,
    operators: Operators,
    retention: Retention,
) -> None:
    """Fill a database from storage with what it lacks. `runs`: the Runs contract."""
    # 1. What is left of days whose detail is gone, then what members sent about all other work.
    left = _Left(await _restore_summaries(database, retention, where, run, keys))
    known = await database.read(_known)
    kept_uploads = await _restore_uploads(uploads, where, run, keys, left, known)
    await verdicts.restore_evidence(runs)
    kept_verdicts = await _restore_verdicts(verdicts, where, run, left, known)
    await database.write(left.note, news=False)

    # 2. What is about no commitment.
    await _restore_shown(shown, run, keys)
    kept_reports = await documents_of(reports.copies, KeptReport, lambda _: None)
    query = select(steps.c.step, steps.c.received)
    received = dict(await database.read(lambda connection: [(step, at) for step, at in connection.execute(query)]))
    kept_reports = [k for k in kept_reports if k.report.run == run and k.received > received.get(k.report.step, -1.0)]
    for kept in sorted(kept_reports, key=lambda k: k.received):
        await reports.record(kept)
    listed = await database.read(lambda connection: set(connection.execute(select(packs.c.hash)).scalars()))
    for pack in await _packs(environments, listed):
        await environments.record(pack, 0.0)
        listed.add(pack.hash)
    kept_decisions = await documents_of(environments.decisions, EnvironmentDecision, environments.check_decision)
    for decision in sorted(kept_decisions, key=lambda one: (one.decided, one.environment)):
        if decision.run == run and decision.environment in listed:
            with suppress(RefusedError):  # a later one is known
                await environments.apply(decision)
    kept_names = await documents_of(announcements.names, NodeName, announcements.check_name)
    await announcements.restore_names(kept_names, operators)
    await announcements.restore_scores(
        await documents_of(announcements.scores, BenchmarkScore, announcements.check_score)
    )
    counts = {"uploads": kept_uploads, "verdicts": kept_verdicts, "reports": len(kept_reports)}
    if any(counts.values()):
        log.info("rebuilt from storage", **counts)


def _known(connection: Connection) -> Counter[str]:
    """Return the bytes that the database has of each file in storage, by name, with an end of line per document."""
    found = Counter[str]()
    for text in connection.execute(select(uploads_table.c.document)).scalars():
        found[content_hash(text.encode())] = len(text.encode()) + 1
    for row in connection.execute(select(*verdicts_table.c["stored", "size"])):
        found[row.stored] += row.size + 1
    return found


async def _in_order(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Await writes in their order: those that share a transaction together."""
    left = iter(works)
    while some := list(islice(left, MAX_BATCH)):
        await asyncio.gather(*some)


@dataclass(frozen=True)
class _Left:
    """Files about days whose detail is gone, which a sweep that was killed was to delete."""

    ended: Sequence[DayOfWork]
    """The summaries of these days."""
    files: list[tuple[int, str, str]] = field(default_factory=list)
    """Day, kind and name."""

    def takes(self, kind: str, name: str, work: Verdict | UploadReceipt) -> bool:
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


async def _restore_uploads(uploads: Uploads, where: Domain, run: int, keys: RunKeys, left: _Left, known: Known) -> int:
    """Record the uploads of the run; return how many."""

    def check(upload: Upload) -> None:
        check_receipt(where, upload.receipt, keys)
        check_upload(where, upload)

    found = await named_documents(uploads.records, Upload, check, known)
    ours = [one for name, one in found if one.receipt.run == run and not left.takes("uploads", name, one.receipt)]
    ours.sort(key=lambda one: one.receipt.stored_at)  # the first receipt of a file counts
    await _in_order(uploads.record(upload, 0.0) for upload in ours)
    return len(ours)


async def _restore_verdicts(verdicts: Verdicts, where: Domain, run: int, left: _Left, known: Known) -> int:
    """Record the verdicts of the run in the order in which they came; return how many."""
    check = partial(_check_kept, where)
    found = await named_documents(verdicts.copies, KeptVerdict, check, known)
    ours = [
        (name, one) for name, one in found if one.verdict.run == run and not left.takes("verdicts", name, one.verdict)
    ]
    ours.sort(key=lambda named: _order(named[1]))
    await _in_order(verdicts.record(one, 0.0, name) for name, one in ours)
    return len(ours)


def _check_kept(where: Domain, kept: KeptVerdict) -> None:
    check_verdict(where, kept.verdict)


async def _restore_shown(shown: ShownDocuments, run: int, keys: RunKeys) -> None:
    """Record what the trainer showed: lists of looks in the order of their hours, grades, masters."""
    store, trainers, lists = shown.stores["looks"], [one.keys.trainer for one in keys.tenures], list[Any]()
    async for name in store.names():
        try:
            one = ShownLooks.model_validate_json(await store.get(name, 2 * MAX_LIST_CHARS))
            lists.append((shown.read_looks(one, *trainers), name))
        except (ValidationError, CheckError, StorageError) as error:
            _leave_out(store, name, error)
    for listed, name in sorted(lists, key=lambda named: named[0].hour):
        if listed.run == run:
            await shown.record_looks(listed, name)
    for name, one in await named_documents(shown.stores["masters"], ShownMaster, shown.check_master, {}):
        await shown.record("masters", str(one.epoch), name)
    async for name in shown.stores["grades"].names():
        await shown.record("grades", name, name)


async def _packs(environments: Environments, listed: Collection[str]) -> list[Pack]:
    """Return all submitted environments that storage keeps and that are not listed, by author, name and version."""
    found = []
    async for name in environments.packs.names():
        if name in listed:
            continue
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
        if work.run == run and await database.write(partial(retention.restore, work=work, name=name)):
            ended.append(work)
    return ended


def _order(kept: KeptVerdict) -> tuple[Any, ...]:
    """Sort by arrival, a verdict that the file was missing before the one that took its place."""
    work = kept.verdict
    return kept.came, work.step, work.node, work.index, work.validator, work.reason != "data_missing"


async def documents_of(store: ContentStore, model: type[Document], check: Callable[[Document], None]) -> list[Document]:
    """Return all documents of a kind that parse and pass the check."""
    return [document for _, document in await named_documents(store, model, check, {})]


async def named_documents(
    store: ContentStore, model: type[Document], check: Callable[[Document], None], known: Known
) -> list[tuple[str, Document]]:
    """Return those of files that are not known as a whole, each with the name of its file."""
    names, found = [name async for name, size in store.sizes() if known.get(name) != size + 1], []
    for first in range(0, len(names), MAX_BATCH):
        some = names[first : first + MAX_BATCH]
        for name, texts in zip(some, await asyncio.gather(*(_texts(store, name) for name in some)), strict=True):
            for text in texts:
                try:
                    document = model.model_validate_json(text)
                    check(document)
                except (ValidationError, CheckError) as error:
                    _leave_out(store, name, error)
                else:
                    found.append((name, document))
    return found


async def _texts(store: ContentStore, name: str) -> list[bytes]:
    try:
        return await documents_in(store, name)
    except (CheckError, StorageError) as error:
        _leave_out(store, name, error)
        return []


def _leave_out(store: ContentStore, name: str, error: Exception) -> None:
    log.warning("left out", kind=store.kind, name=name, reason=str(error).splitlines()[0])
