"""Take what the trainer shows and everybody reads: lists of looks, grades of private tests, and their masters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection

from muster.clients.storage import ContentStore
from muster.constants import HOUR_SECONDS
from muster.errors import MismatchError
from muster.ledger.database import Database
from muster.ledger.documents import Placed, add_list
from muster.ledger.queries import Queries
from muster.ledger.statements import insert_once
from muster.ledger.tables import TRAINER, files
from muster.protocol.hashes import content_hash
from muster.protocol.looks import settles_at
from muster.protocol.masters import check_master
from muster.protocol.messages import LookList, ShownMaster, StepDocument
from muster.runtime import problems, telemetry
from orchestrator.auth import Caller
from orchestrator.log import Earlier, Kind, Log, Offered, by_trainer

log = telemetry.logger("orchestrator")


class ShownDocuments:
    """What the trainer shows. One per service."""

    def __init__(self, queries: Queries, database: Database, documents: Log, *, storage_url: str) -> None:
        self._queries, self._database, self._documents = queries, database, documents
        self.grades = ContentStore(storage_url, "grades")
        documents.add_kind(
            Kind(
                name="looks",
                message=LookList,
                noun="list",
                key=lambda listed: str(listed.hour),
                **by_trainer(queries),
                fits=self._expect_settled,
                about=lambda listed: ("", listed.hour),
                project=_add_lists,
            )
        )
        documents.add_kind(
            Kind(
                name="master",
                message=ShownMaster,
                noun="master",
                key=lambda shown: str(shown.epoch),
                **by_trainer(queries),
                fits=self._expect_of_terms,
                about=lambda shown: ("", shown.epoch),
            )
        )
        documents.add_kind(
            Kind(
                name="step",
                message=StepDocument,
                noun="step",
                key=lambda said: content_hash(said.to_bytes()),
                **by_trainer(queries),
                about=lambda said: ("", said.step),
            )
        )

    def expect_trainer(self, caller: Caller) -> None:
        """Raise RefusedError unless the caller is the run's trainer."""
        if not caller.is_trainer:
            raise problems.not_allowed(f"{caller.address} is not the run's trainer {self._queries.keys_now.trainer}")

    def _expect_settled(self, connection: Connection, offered: Offered[LookList]) -> str:
        listed = offered.document
        if settles_at(listed.hour) > self._queries.chain.now:  # of a key that is stolen, it could be the last for ever
            raise problems.too_early(f"the looks of hour {listed.hour} do not count yet")
        latest: Earlier[LookList] | None = self._documents.latest(connection, "looks")
        if latest is not None and latest.document.hour >= listed.hour:
            raise problems.conflict(f"there is another list of hour {listed.hour}, or one of a later hour")
        return ""

    def _expect_of_terms(self, _connection: Connection, offered: Offered[ShownMaster]) -> str:
        shown = offered.document
        try:
            check_master(self._queries.terms.grade_series, shown.epoch, bytes.fromhex(shown.master[2:]))
        except MismatchError as error:
            raise problems.not_allowed(str(error)) from error
        return ""

    async def take_grades(self, name: str, text: bytes) -> bool:
        """Take the grades of a file of a batch, whose content hash is `name`; return whether they are new."""
        return await self.record_grades(await self.grades.put(text))

    async def record_grades(self, name: str) -> bool:
        """Record which grades storage keeps; return whether they are new."""
        row = {"kind": "grades", "holder": TRAINER, "name": name, "hour": self._queries.chain.now // HOUR_SECONDS}
        return await self._database.write(partial(insert_once, table=files, row=row), news=False)


def _add_lists(connection: Connection, found: Sequence[Placed[LookList]]) -> None:
    for one in found:
        listed = one.document
        add_list(connection, listed)
        log.info("looks counted", hour=listed.hour, looks=len(listed.looks), checks=len(listed.checks))
