"""Receive grades of private tests: each what its validator's verdict committed to, and none before enough did.

A validator shows its grades once the run's required number of validators have accepted, so each of these graded
without having seen the others' grades. It shows them while there is time to accuse it. Where verdicts are hidden
(`orchestrator.hidden`), so are grades, and a validator shows them at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, select

from muster.clients.storage import DocumentStore
from muster.constants import HOUR_SECONDS
from muster.errors import MismatchError
from muster.grading.shown import read_committed
from muster.protocol.eip712 import Domain
from muster.protocol.messages import ShownGrades, Verdict
from muster.runtime import telemetry
from orchestrator import problems
from orchestrator.auth import Caller
from orchestrator.database import Database
from orchestrator.queries import HIDDEN, PUBLIC, Queries, opinions_of, same_work, verdict_of
from orchestrator.statements import insert_once, row_of
from orchestrator.tables import commitments, grades, hidden_grades

SHOW_HOURS: Final = 48
"""Full hours after a commitment's hour in which its grades are taken. For 72 a case can be opened
(Runs.UNSEALED_WINDOW_HOURS), and who shows wrong ones in the last of them could not be taken to court any more."""

SHOWN: Final = telemetry.counter("grades", "Grades of private tests received")
log = telemetry.logger("orchestrator")


class Grades:
    """Receives grades. One per service."""

    def __init__(self, where: Domain, queries: Queries, database: Database, *, storage_url: str) -> None:
        self._where = where
        self._queries = queries
        self._database = database
        self.copies = DocumentStore(storage_url, "grades")

    async def receive(self, caller: Caller, shown: ShownGrades) -> bool:
        """Take grades; return whether they are new. The same ones again change nothing, others are refused."""
        # 1. The sender, and the form.
        statement = shown.statement
        if statement.run != self._queries.run:
            raise problems.another_run(statement.run, self._queries.run)
        caller.active_validator()
        if statement.validator != caller.address:
            raise problems.not_allowed(f"the grades are {statement.validator}'s, the request {caller.address}'s")

        # 2. They open what the verdict committed to, and enough others are committed.
        verdict, accepts, known, hour = await self._database.read(lambda connection: self._known(connection, shown))
        if verdict is None:
            raise problems.not_found(f"there is no verdict of {statement.validator} on this commitment")
        try:
            read_committed(self._where, shown, verdict)
        except MismatchError as error:
            raise problems.not_allowed(str(error)) from error
        required = self._queries.terms.accepts_required
        if accepts is not None and accepts < required:
            raise problems.too_early(f"{accepts} validators have accepted it; grades are shown once {required} have")
        if not known and hour is not None and self._queries.chain.now > (hour + 1 + SHOW_HOURS) * HOUR_SECONDS:
            raise problems.conflict(
                f"commitment {statement.index} of {statement.node} is older than {SHOW_HOURS} hours: there would be no "
                "time to open a case about its grades",
                "grades are shown as soon as enough validators have accepted",
            )

        # 3. Storage, then the database. Signed again they are the same grades, and are not stored again.
        if known:
            return False
        stored = await self.copies.add(shown.model_dump_json().encode())
        return await self.record(shown, time.time(), stored)

    def _known(self, connection: Connection, shown: ShownGrades) -> tuple[Verdict | None, int | None, bool, int | None]:
        """Return the verdict, how many trusted validators accept, if its grades are known, the commitment's hour.

        How many accept is None while that is hidden.
        """
        statement = shown.statement
        hidden = verdict_of(connection, statement.validator, statement, HIDDEN)
        said = HIDDEN if hidden else PUBLIC
        opinions = opinions_of(connection, statement.node, statement.index, statement.root, said)
        accepts = {opinion.validator for opinion in opinions if opinion.trusted and opinion.accepted}
        known = any(one.validator == statement.validator and one.grades for one in opinions)
        made = select(commitments.c.hour).where(same_work(commitments, statement))
        hour = connection.execute(made).scalar_one_or_none()
        verdict = hidden or verdict_of(connection, statement.validator, statement)
        return verdict, None if hidden else len(accepts), known, hour

    async def record(self, shown: ShownGrades, received: float, stored: str = "") -> bool:
        """Record grades and their effect. Return False when they are known. `stored`: the file that they are in."""
        statement = shown.statement
        row = _row_of(shown, received, stored)
        if self._queries.hides:
            new = await self._database.write(partial(insert_once, table=hidden_grades, row=row), news=False)
        else:
            new = await self._database.write(partial(self._write, row=row))
        if new:
            log.info("grades", node=statement.node, index=statement.index)
        return new

    def show(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Record grades that were hidden (`orchestrator.hidden`) for everybody."""
        for row in rows:
            shown = ShownGrades.model_validate_json(row.document)
            self._write(connection, _row_of(shown, row.received, row.stored))

    def _write(self, connection: Connection, row: Mapping[str, Any]) -> bool:
        new = insert_once(connection, grades, row)
        if new:
            SHOWN.inc()
            self._queries.update_status(connection, row["node"], row["index"])
        return new


def _row_of(shown: ShownGrades, received: float, stored: str) -> dict[str, Any]:
    return row_of(grades, shown.statement, document=shown.model_dump_json(), received=received, stored=stored)
