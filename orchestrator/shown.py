"""Take what the trainer shows and everybody reads: lists of looks, grades of private tests, and their masters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, select

from muster.clients.storage import ContentStore
from muster.constants import HOUR_SECONDS
from muster.errors import MismatchError
from muster.protocol.hashes import content_hash
from muster.protocol.looks import settles_at
from muster.protocol.masters import check_master
from muster.protocol.messages import LookList, ShownMaster, StepDocument
from muster.runtime import telemetry
from orchestrator import problems
from orchestrator.auth import Caller
from orchestrator.database import Database
from orchestrator.log import Earlier, Kind, Log, Offered, Placed, by_trainer
from orchestrator.queries import Queries
from orchestrator.statements import insert_once, upsert
from orchestrator.tables import grades, meta

_SUMS: Final = "looks"
"""What the lists of looks sum up to, in the table `meta`."""

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
        row = {"hash": name, "hour": self._queries.chain.now // HOUR_SECONDS}
        return await self._database.write(partial(insert_once, table=grades, row=row), news=False)


def newest_sums(connection: Connection) -> Mapping[str, Any]:
    """Return by validator the `total` in token wei and `barred_until` that the newest list says.

    And how many of its rows all lists say were `checked`, and how many were `false`.
    """
    text = connection.execute(select(meta.c.value).where(meta.c.key == _SUMS)).scalar()
    return json.loads(text) if text else {}


def _add_lists(connection: Connection, found: Sequence[Placed[LookList]]) -> None:
    for one in found:
        sums = _summed(newest_sums(connection), one.document)
        upsert(connection, meta, {"key": _SUMS, "value": json.dumps(sums)})
        listed = one.document
        log.info("looks counted", hour=listed.hour, looks=len(listed.looks), checks=len(listed.checks))


def _summed(before: Mapping[str, Any], listed: LookList) -> dict[str, Any]:
    """Add a list to what the lists before it say. Pure."""
    sums = {validator: dict(one) for validator, one in before.items()}

    def of(validator: str) -> dict[str, Any]:
        return sums.setdefault(validator, {"total": 0, "barred_until": 0, "checked": 0, "false": 0})

    for total in listed.totals:
        of(total.validator).update(total=total.total, barred_until=total.barred_until)
    for check in listed.checks:
        of(check.validator)["checked"] += 1
        of(check.validator)["false"] += check.outcome == "false"
    return sums
