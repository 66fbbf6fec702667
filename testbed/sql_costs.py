"""Count what requests read from a database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, event

from muster.ledger.database import Database


@dataclass
class Reads:
    """What was read: statements with their parameters and, on SQLite, virtual machine steps in hundreds."""

    statements: list[tuple[str, Any]] = field(default_factory=list)
    hundreds: int = 0

    def note(self, _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement != "BEGIN":
            self.statements.append((statement, parameters))

    def step(self) -> int:
        self.hundreds += 1
        return 0


_READS: Final = ContextVar[Reads | None]("reads", default=None)


class CountedDatabase(Database):
    """A database that counts what is read for `reads_of`, and not what other tasks read meanwhile."""

    async def read(self, work: Callable[[Connection], Any]) -> Any:
        reads = _READS.get()
        if reads is None:
            return await super().read(work)

        def counted(connection: Connection) -> Any:
            driver: Any = connection.connection.driver_connection
            event.listen(connection, "before_cursor_execute", reads.note)
            if connection.dialect.name == "sqlite":
                driver.set_progress_handler(reads.step, 100)
            try:
                return work(connection)
            finally:
                if connection.dialect.name == "sqlite":
                    driver.set_progress_handler(None, 100)

        return await super().read(counted)


async def reads_of(ask: Callable[[], Awaitable[Any]]) -> Reads:
    """Return what one call reads, by this task and those that it begins."""
    reads = Reads()
    token = _READS.set(reads)
    try:
        await ask()
    finally:
        _READS.reset(token)
    return reads
