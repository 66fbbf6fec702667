"""Restore uploads, evidence, grades and the log where the database lacks them.

It may be new, or an older copy: what it has is left as it is. Summaries of days whose detail is gone come first. What a
sweep that was killed left of such a day is not read again. Each is checked as if it had just arrived over HTTP, apart
from checks against the state of that moment. A file in the wrong place, or with another's signature, is left out and
named in the log. The service answers once this has ended; killed half way, it starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, select

from muster.clients.storage import ContentStore
from muster.errors import CheckError, StorageError
from muster.ledger.database import MAX_BATCH, Database
from muster.ledger.summaries import DayOfWork, SignedDay, day_in, leave, read_day
from muster.ledger.tables import uploads as uploads_table
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import content_hash
from muster.protocol.keys import RunKeys
from muster.protocol.messages import (
    Upload,
    UploadReceipt,
)
from muster.protocol.receipts import check_receipt, check_upload
from muster.runtime import telemetry
from orchestrator.log import Log
from orchestrator.retention import Retention
from orchestrator.shown import ShownDocuments
from orchestrator.uploads import Uploads
from orchestrator.verdicts import Verdicts

log = telemetry.logger("orchestrator")


async def rebuild(
    database: Database,
    where: Domain,
    run: int,
    keys: RunKeys,
    *,
    runs: str,
    documents: Log,
    uploads: Uploads,
    verdicts: Verdicts,
    shown: ShownDocuments,
    retention: Retention,
) -> None:
    """Fill a database from storage with what it lacks. `runs`: the Runs contract."""
    # 1. What is left of days whose detail is gone, then files, and what is in no log.
    ended = await _restore_summaries(database, retention, where, run, keys)
    known = await database.read(_known)
    left = _Left(ended)
    kept_uploads = await _restore_uploads(uploads, where, run, keys, left, known)
    await verdicts.restore_evidence(runs)
    await database.write(left.note, news=False)
    async for name in shown.grades.names():
        await shown.record_grades(name)

    # 2. The log.
    forgotten = {place for day in ended for first, last in day.places for place in range(first, last + 1)}
    taken = await documents.catch_up(lambda entry: entry.at.place in forgotten, forgotten)
    if kept_uploads or taken:
        log.info("rebuilt from storage", uploads=kept_uploads, documents=taken)


def _known(connection: Connection) -> set[str]:
    """Return the names of the files of uploads that the database has."""
    documents = connection.execute(select(uploads_table.c.document)).scalars()
    return {content_hash(text.encode()) for text in documents}


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

    def takes(self, name: str, receipt: UploadReceipt) -> bool:
        """Note an upload and its file if they are about such a day; return whether they are."""
        day = day_in(self.ended, receipt.node, receipt.index)
        if day is not None:
            self.files.extend([(day, "uploads", name), (day, "files", receipt.file_hash)])
        return day is not None

    def note(self, connection: Connection) -> None:
        """Let the next sweep delete them."""
        for day, kind, name in self.files:
            leave(connection, [(kind, name)], day)


async def _restore_uploads(
    uploads: Uploads, where: Domain, run: int, keys: RunKeys, left: _Left, known: Collection[str]
) -> int:
    """Record the uploads of the run; return how many."""
    found = list[tuple[str, Upload]]()
    async for name in uploads.records.names():
        if name not in known:
            try:
                upload = Upload.model_validate_json(await uploads.records.get(name))
                check_receipt(where, upload.receipt, keys)
                check_upload(where, upload)
            except (ValidationError, CheckError, StorageError) as error:
                _leave_out(uploads.records, name, error)
            else:
                found.append((name, upload))
    ours = [one for name, one in found if one.receipt.run == run and not left.takes(name, one.receipt)]
    ours.sort(key=lambda one: one.receipt.stored_at)  # the first receipt of a file counts
    await _in_order(uploads.record(upload, 0.0) for upload in ours)
    return len(ours)


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


def _leave_out(store: ContentStore, name: str, error: Exception) -> None:
    log.warning("left out", kind=store.kind, name=name, reason=str(error).splitlines()[0])
