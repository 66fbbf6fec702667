"""Tell at a start whether the database has all that storage has: by a mark, a random number that each has.

A process writes a new mark to storage before it serves. The last one that stops in good order copies it to the
database. Where the two differ, a process was killed or an older copy of the database was restored: what members have
receipts for may be in storage alone, so the database is filled from there (`orchestrator.rebuild`) before anything is
answered.
"""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import select

from muster.clients.storage import ContentStore
from muster.errors import StorageError
from muster.protocol.hashes import content_hash
from muster.runtime import telemetry
from orchestrator.database import Database
from orchestrator.statements import upsert
from orchestrator.tables import meta

_KEY: Final = "rebuilt"
_QUERY: Final = select(meta.c.value).where(meta.c.key == _KEY)

log = telemetry.logger("orchestrator")


class StartMark:
    """The marks of one run."""

    def __init__(self, database: Database, storage_url: str, about: str) -> None:
        """`about`: what the database belongs to. Storage may have files of several runs."""
        self._database = database
        self._store = ContentStore(storage_url, "marks")
        self._name = content_hash(about.encode())

    async def is_same(self) -> bool:
        """Return whether the database has the mark of storage. Raises StorageError."""
        kept = await self._database.read(lambda connection: connection.execute(_QUERY).scalar())
        return bool(kept) and kept == await self._store.mark(self._name)

    async def renew(self) -> None:
        """Write a new mark to storage: from now on the database may know less. Raises StorageError."""
        await self._store.set_mark(self._name, secrets.token_hex(16))

    async def settle(self) -> None:
        """Copy storage's mark to the database, in which nothing is written any more."""
        try:
            row = {"key": _KEY, "value": await self._store.mark(self._name)}
            await self._database.write(lambda connection: upsert(connection, meta, row), news=False)
        except StorageError as error:
            log.warning("the next start reads storage again", error=str(error))
