"""Take what the trainer shows and everybody reads: lists of looks, grades of private tests, and their masters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal

from sqlalchemy import Connection, func, select

from muster.clients.storage import ContentStore
from muster.constants import HOUR_SECONDS
from muster.errors import MismatchError
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import content_hash
from muster.protocol.looks import settles_at
from muster.protocol.masters import check_master
from muster.protocol.messages import LookList, ShownLooks, ShownMaster
from muster.protocol.receipts import read_looks
from muster.runtime import telemetry
from orchestrator import problems
from orchestrator.auth import Caller
from orchestrator.database import Database
from orchestrator.queries import Queries
from orchestrator.statements import insert_once
from orchestrator.tables import documents

Kind = Literal["looks", "grades", "masters"]
KINDS: Final[tuple[Kind, ...]] = ("looks", "grades", "masters")

log = telemetry.logger("orchestrator")


class ShownDocuments:
    """Takes and finds these documents. One per service."""

    def __init__(self, where: Domain, queries: Queries, database: Database, *, storage_url: str) -> None:
        self._where, self._queries, self._database = where, queries, database
        self.stores = {kind: ContentStore(storage_url, kind) for kind in KINDS}

    def expect_trainer(self, caller: Caller) -> None:
        """Raise RefusedError unless the caller is the run's trainer."""
        if not caller.is_trainer:
            raise problems.not_allowed(f"{caller.address} is not the run's trainer {self._queries.keys_now.trainer}")

    async def take_looks(self, shown: ShownLooks) -> bool:
        """Take an hour's list; return whether it is new. Hours rise, and each has one list."""
        try:
            listed = await asyncio.to_thread(self.read_looks, shown, self._queries.keys_now.trainer)
        except MismatchError as error:
            raise problems.not_allowed(str(error)) from error
        if listed.run != self._queries.run:
            raise problems.another_run(listed.run, self._queries.run)
        if settles_at(listed.hour) > self._queries.chain.now:  # of a key that is stolen, it could be the last for ever
            raise problems.too_early(f"the looks of hour {listed.hour} do not count yet")
        data, key = shown.to_bytes(), hour_key(listed.hour)
        latest = await self._database.read(lambda connection: connection.execute(_LATEST).scalar())
        is_later = latest is None or latest < key
        if is_later and await self.record_looks(listed, await self.stores["looks"].put(data)):
            log.info("looks counted", hour=listed.hour, looks=len(listed.looks), checks=len(listed.checks))
            return True
        if await self.name_of("looks", key) != content_hash(data):
            raise problems.conflict(f"there is another list of hour {listed.hour}, or one of a later hour")
        return False

    def read_looks(self, shown: ShownLooks, *trainers: str) -> LookList:
        """Return the list, checked to be signed by one of these keys. Blocks."""
        return read_looks(self._where, shown, trainers)

    async def record_looks(self, listed: LookList, stored: str) -> bool:
        """Record a list; return False where one of its hour or of a later one is known."""

        def write(connection: Connection) -> bool:
            latest = connection.execute(_LATEST).scalar()
            if latest is not None and latest >= hour_key(listed.hour):
                return False
            sums = json.dumps(_summed(newest_sums(connection), listed))
            row = {"kind": "looks", "key": hour_key(listed.hour), "stored": stored, "hour": listed.hour, "sums": sums}
            return insert_once(connection, documents, row)

        return await self._database.write(write)

    async def take_grades(self, name: str, text: bytes) -> bool:
        """Take the grades of a file of a batch, whose content hash is `name`; return whether they are new."""
        return await self.record("grades", name, await self.stores["grades"].put(text))

    async def take_master(self, shown: ShownMaster) -> bool:
        """Take the master of an epoch; return whether it is new."""
        try:
            self.check_master(shown)
        except MismatchError as error:
            raise problems.not_allowed(str(error)) from error
        return await self.record("masters", str(shown.epoch), await self.stores["masters"].put(shown.to_bytes()))

    def check_master(self, shown: ShownMaster) -> None:
        """Raise MismatchError unless it is the master that the terms name."""
        check_master(self._queries.terms.grade_series, shown.epoch, bytes.fromhex(shown.master[2:]))

    async def record(self, kind: Kind, key: str, stored: str) -> bool:
        """Record a document; return whether it is new."""
        row = {"kind": kind, "key": key, "stored": stored, "hour": self._queries.chain.now // HOUR_SECONDS}
        return await self._database.write(partial(insert_once, table=documents, row=row), news=False)

    async def name_of(self, kind: Kind, key: str | None) -> str | None:
        """Return the name of a document in storage; `key` None: of the latest."""
        query = select(documents.c.stored).where(documents.c.kind == kind)
        query = query.order_by(documents.c.key.desc()) if key is None else query.where(documents.c.key == key)
        return await self._database.read(lambda connection: connection.execute(query.limit(1)).scalar())


def hour_key(hour: int) -> str:
    """Return the key of an hour's list: keys sort as hours do."""
    return f"{hour:010d}"


_LATEST: Final = select(func.max(documents.c.key)).where(documents.c.kind == "looks")
_SUMS: Final = select(documents.c.sums).where(documents.c.kind == "looks").order_by(documents.c.key.desc()).limit(1)


def newest_sums(connection: Connection) -> Mapping[str, Any]:
    """Return by validator the `total` in token wei and `barred_until` that the newest list says.

    And how many of its rows all lists that are kept say were `checked`, and how many were `false`.
    """
    text = connection.execute(_SUMS).scalar()
    return json.loads(text) if text else {}


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
