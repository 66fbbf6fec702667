"""Tell at a start whether the database has all that storage has: by a mark, a random number that each has.

A process writes a new mark to both before it serves. In the database it counts once the last process has stopped in
good order. Where the one that counts is not storage's, a process was killed, an older copy of the database was
restored, or another database was used: what members have receipts for may be in storage alone, so the database is
filled from there (`orchestrator.rebuild`) before anything is answered.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from sqlalchemy import select

from muster.clients.storage import ContentStore
from muster.errors import ConfigError
from muster.ledger.database import Database
from muster.ledger.statements import upsert
from muster.ledger.tables import meta
from muster.protocol.hashes import content_hash

_KEY: Final = "rebuilt"
"""Of the mark that counts."""
_NEXT: Final = "mark"
"""Of that of the process that started last."""


class StartMark:
    def __init__(self, database: Database, storage_url: str, about: str) -> None:
        """`about`: what the database belongs to, and storage too."""
        self._database = database
        self._store = ContentStore(storage_url, "marks")
        self._name = content_hash(about.encode())

    async def is_same(self) -> bool:
        """Return whether the database has the mark of storage.

        Raises StorageError, and ConfigError for the storage of another run: each deletes what its own database does not
        name, and a node of one could have a file of the other deleted.
        """
        if any([name != self._name async for name in self._store.names()]):
            raise ConfigError(
                f"{self._store.url} keeps the files of another run", hint="set orchestrator.storage_url to an own place"
            )
        kept = await self._kept(_KEY)
        return bool(kept) and kept == await self._store.mark(self._name)

    async def renew(self) -> None:
        """Write a new mark: from now on the database may know less than storage. Raises StorageError."""
        mark = secrets.token_hex(16)
        await self._write(_NEXT, mark)
        await self._store.set_mark(self._name, mark)

    async def latest(self) -> str:
        """Return the mark of the process that started last. Raises StorageError."""
        return await self._kept(_NEXT)

    async def settle(self, mark: str) -> None:
        """Let a mark count, now that nothing more is written. Storage may have that of another database by now."""
        await self._write(_KEY, mark)

    async def _kept(self, key: str) -> Any:
        query = select(meta.c.value).where(meta.c.key == key)
        return await self._database.read(lambda connection: connection.execute(query).scalar())

    async def _write(self, key: str, mark: str) -> None:
        row = {"key": key, "value": mark}
        await self._database.write(lambda connection: upsert(connection, meta, row), news=False)
