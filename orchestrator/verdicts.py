"""Decide which verdicts count: signed by an active validator of the run, about a commitment and file that exist.

Which rows were re-run follows from the chain: the validator shows the link that drew them when it seals the hour
(`muster.protocol.draws`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, Table, bindparam, delete, func, select, update

from muster.clients.storage import ContentStore, DocumentStore
from muster.constants import MAX_EVIDENCE_BYTES, UNNAMED_SECONDS
from muster.errors import CheckError, MismatchError, StorageError
from muster.protocol.eip712 import Domain
from muster.protocol.messages import Address, Verdict
from muster.protocol.receipts import check_verdict
from muster.runtime import telemetry
from orchestrator import problems, tallies
from orchestrator.auth import Caller
from orchestrator.chain_follower import Follower
from orchestrator.commitment_status import CommitmentStatus
from orchestrator.database import Database
from orchestrator.events import record_event
from orchestrator.queries import NAMED, Queries, named, same_work
from orchestrator.statements import add_all, insert_each, insert_once, row_of
from orchestrator.summaries import gone_work, leave
from orchestrator.tables import cases, counts, evidence, hidden_verdicts, uploads, verdicts
from orchestrator.uploads import full

MAX_UNNAMED: Final = 256
"""Bundles a validator may post before a verdict names one of them: evidence takes room by the verdict, not by the
request."""

VERDICTS: Final = telemetry.counter("verdicts", "Verdicts received", ("outcome",))
log = telemetry.logger("orchestrator")


class Verdicts:
    """Receives verdicts. One per service."""

    def __init__(
        self,
        where: Domain,
        queries: Queries,
        follower: Follower,
        database: Database,
        *,
        storage_url: str,
        key_bytes: float = math.inf,
    ) -> None:
        """`key_bytes`: of evidence that is kept of one validator before anything names it."""
        self._key_bytes = key_bytes
        self._where = where
        self._queries = queries
        self._follower = follower
        self._database = database
        self._known = database.together(what_is_known, writes=False)
        hides = queries.hides
        self._write = database.together(self._hide_all if hides else self.write_all, news=not hides)
        self.evidence = ContentStore(storage_url, "evidence")
        self.copies = DocumentStore(storage_url, "verdicts")

    async def expect_evidence(self, caller: Caller, size: int = 0) -> None:
        """Refuse a bundle of a caller that may not post any, or no more of them now. `size`: its bytes."""
        caller.active_validator()
        now, posted = time.time(), evidence.c.validator == caller.address
        row = {"validator": caller.address, "hash": caller.request.body_hash, "size": size}

        def write(connection: Connection) -> bool:
            unnamed = set(connection.execute(select(evidence.c.hash).where(posted, evidence.c.expiry > now)).scalars())
            if row["hash"] not in unnamed and len(unnamed) >= MAX_UNNAMED:
                return False
            if insert_once(connection, evidence, row | {"expiry": now + UNNAMED_SECONDS}):
                refusal = full(connection, caller.address, self._key_bytes, self._queries.chain.now)
                if refusal is not None:
                    raise refusal
            return True

        if not await self._database.write(write, news=False):
            raise problems.try_later(f"no verdict names {MAX_UNNAMED} bundles of {caller.address}: post these first")

    async def receive(self, caller: Caller, verdict: Verdict) -> bool:
        """Take a verdict; return whether it is new. The same one again changes nothing, another one is refused."""
        # 1. The sender and the signature.
        if verdict.run != self._queries.run:
            raise problems.another_run(verdict.run, self._queries.run)
        caller.active_validator()
        if verdict.validator != caller.address:
            raise problems.not_allowed(f"the verdict is {verdict.validator}'s, the request {caller.address}'s")
        try:
            check_verdict(self._where, verdict)
        except MismatchError as error:
            raise problems.not_allowed(str(error), "check chain.chain_id and the address book") from error

        # 2. What is known of its subject. The commitment may have been mined a moment ago.
        known = await self._known(verdict)
        if known.committed is None:
            await self._follower.next_poll()
            known = await self._known(verdict)
        if known.earlier == verdict:
            if verdict.evidence is not None:  # it may have been posted again
                await self._database.write(
                    lambda connection: mark_named(connection, verdict, hidden=self._queries.hides), news=False
                )
            return False

        # 3. The rules and the evidence.
        graded = self._queries.terms.has_private_tests
        refusal = refuse_verdict(verdict, known, graded=graded)
        if refusal is not None:
            raise refusal
        if verdict.evidence is not None and not await self.evidence.exists(verdict.evidence):
            raise problems.not_found(f"no evidence {verdict.evidence} is kept here", "post the evidence first")

        # 4. Storage, then the database: a verdict that is acknowledged is kept in both.
        stored = await self.copies.add(verdict.model_dump_json().encode())
        if await self.record(verdict, time.time(), stored):
            return True
        known = await self._known(verdict)
        if known.earlier == verdict:  # the same request, twice at the same time
            return False
        raise refuse_verdict(verdict, known, graded=graded) or problems.conflict("another verdict was faster")

    async def record(self, verdict: Verdict, received: float, stored: str = "") -> bool:
        """Record a verdict and its effect. Return False when its validator has given one on the commitment before.

        `stored`: the file in storage that it is in.
        """
        new, found = await self._write((verdict, received, stored))
        if not new:
            return False
        log.info(
            "verdict", node=verdict.node, index=verdict.index, accepted=verdict.accepted, status=found and found.state
        )
        return True

    def show(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Record verdicts that were hidden (`orchestrator.hidden`) for everybody."""
        given = [(Verdict.model_validate_json(row.document), row.received, row.stored) for row in rows]
        self.write_all(connection, given)

    def _hide_all(
        self, connection: Connection, given: Sequence[tuple[Verdict, float, str]]
    ) -> list[tuple[bool, CommitmentStatus | None]]:
        """Keep verdicts without any effect but for the trainer; return as `write_all`."""
        kept, _ = _keep(connection, hidden_verdicts, given)
        for verdict, *_ in given:
            mark_named(connection, verdict, hidden=True)
        return [(number is not None, None) for number in kept]

    def write_all(
        self, connection: Connection, given: Sequence[tuple[Verdict, float, str]]
    ) -> list[tuple[bool, CommitmentStatus | None]]:
        """Record verdicts; return of each whether it is new, and what became of its commitment."""
        # 1. The verdicts.
        kept, counted = _keep(connection, verdicts, given)

        # 2. What follows from the new ones.
        new = [(number, verdict) for number, (verdict, *_) in zip(kept, given, strict=True) if number is not None]
        for _, verdict in new:
            VERDICTS.labels(verdict.reason or "accepted").inc()
        counted.update((verdict.validator, "accepts" if verdict.accepted else "rejections") for _, verdict in new)
        add_all(connection, counts, counted)
        for number, verdict in new:
            mark_named(connection, verdict)
            if not verdict.accepted:
                _record_rejection(connection, verdict, number)
        works = {(verdict.node, verdict.index) for _, verdict in new}
        states = self._queries.update_statuses(connection, NAMED, **named(works)) if works else {}
        found = zip(kept, given, strict=True)
        return [(number is not None, states.get((one.node, one.index))) for number, (one, *_) in found]

    async def shows(self, name: str) -> bool:
        """Return whether a bundle may be read: once a verdict that names it is public, or a case asks jurors to."""
        if not self._queries.hides:
            return True
        named = select(evidence.c.hash).where(evidence.c.hash == name, evidence.c.expiry == 0)
        asked = select(cases.c.evidence).where(cases.c.evidence == name)
        return await self._database.read(lambda connection: connection.execute(named.union(asked)).first() is not None)

    async def restore_evidence(self, runs: str) -> None:
        """Record which evidence about this run there is besides, as posted now. `runs`: the Runs contract."""
        ours, now = (self._where.chain_id, runs.lower(), self._queries.run), time.time()
        names = select(evidence.c.hash)
        known = set(await self._database.read(lambda connection: connection.execute(names).scalars().all()))
        async for name, size in self.evidence.sizes():
            if name in known:
                continue
            try:
                about = _BundleHead.model_validate_json(await self.evidence.get(name, MAX_EVIDENCE_BYTES))
            except (ValidationError, CheckError, StorageError):
                continue  # it may be another run's, so it stays
            row = {"validator": about.accuser, "hash": name, "expiry": now + UNNAMED_SECONDS, "size": size}
            if (about.chain_id, about.runs.lower(), about.run) == ours:
                await self._database.write(partial(insert_once, table=evidence, row=row), news=False)


class _BundleHead(BaseModel):
    """What says of a bundle of evidence which run it is about."""

    chain_id: int
    runs: Address
    run: int
    accuser: Address


@dataclass(frozen=True)
class Known:
    """What the database says about the subject of a verdict."""

    earlier: Verdict | None
    """This validator's earlier verdict on this commitment."""
    committed: tallies.CommitmentState | None
    file_hash: str | None
    """The file uploaded for it."""


_KEY: Final = ("validator", "node", "index", "root")
"""Columns of a verdict that no other has all of."""
_SAME: Final = {table: [table.c[name] == bindparam(name) for name in _KEY] for table in (verdicts, hidden_verdicts)}
_FILE: Final = select(uploads.c.file_hash).where(*(uploads.c[name] == bindparam(name) for name in _KEY[1:]))
_EARLIER: Final = [select(table.c.document).where(*same).scalar_subquery() for table, same in _SAME.items()]
_ABOUT: Final = select(func.coalesce(*reversed(_EARLIER)), _FILE.scalar_subquery())
"""Made once, as others here: making a statement takes many times as long as running it."""


def what_is_known(connection: Connection, given: Sequence[Verdict]) -> list[Known]:
    """Read what the database says about the subject of each verdict."""
    found = []
    for verdict in given:
        key = verdict.model_dump(include=set(_KEY))
        earlier, file_hash = connection.execute(_ABOUT, key).one()
        known = Known(
            earlier=Verdict.model_validate_json(earlier) if earlier else None,
            committed=tallies.find_commitment(connection, verdict.node, verdict.index),
            file_hash=file_hash,
        )
        found.append(known)
    return found


def refuse_verdict(verdict: Verdict, known: Known, *, graded: bool = False) -> Exception | None:
    """Return why a properly signed verdict does not count, or None. Pure. `graded`: the run has private tests."""
    what = f"commitment {verdict.index} of {verdict.node}"
    if verdict.accepted != (verdict.reason is None):
        return problems.malformed("a rejection has a reason, an acceptance none")
    if verdict.reason == "wrong_grade":
        return problems.malformed("a wrong grade is a validator's, and no reason to reject a commitment")
    if (verdict.grades is not None) != (graded and verdict.accepted):
        return problems.malformed("an acceptance commits to grades in a run with private tests, and nothing else does")
    earlier = known.earlier  # one whose file was missing gives its place to one whose file has come since
    if earlier is not None and (earlier.reason != "data_missing" or verdict.reason == earlier.reason):
        return problems.conflict(f"{verdict.validator} has given another verdict on {what}")
    if known.committed is not None and known.committed.day is not None:
        return gone_work(what, known.committed.day)
    if known.committed is None:
        return problems.not_found(f"there is no {what} yet", "try again once the orchestrator has read more blocks")
    if (known.committed.step, known.committed.root) != (verdict.step, verdict.root):
        return problems.conflict(f"{what} is to root {known.committed.root} at step {known.committed.step}")
    if verdict.reason != "data_missing" and known.file_hash != verdict.file_hash:
        return problems.conflict(f"{verdict.file_hash} is not the file uploaded for {what}")
    return None


def mark_named(connection: Connection, verdict: Verdict, *, hidden: bool = False) -> None:
    """Stop counting this verdict's evidence as posted without a verdict. hidden: it is not public yet."""
    if verdict.evidence is not None:
        posted = [evidence.c.validator == verdict.validator, evidence.c.hash == verdict.evidence]
        posted += [evidence.c.expiry > 0] if hidden else []
        connection.execute(update(evidence).where(*posted).values(expiry=-1 if hidden else 0))


_MISSING: Final = {
    table: delete(table).where(*same, table.c.reason == "data_missing").returning(table.c.stored)
    for table, same in _SAME.items()
}


def _keep(
    connection: Connection, table: Table, given: Sequence[tuple[Verdict, float, str]]
) -> tuple[list[int | None], Counter[tuple[Any, ...]]]:
    """Write verdicts to a table, one that is not new perhaps in place of an earlier one.

    Return the numbers of the new ones, and what those whose place was taken add to what is counted.
    """
    rows = [
        row_of(table, one, document=one.model_dump_json(), received=received, stored=stored)
        for one, received, stored in given
    ]
    numbers, counted, kept = _insert(connection, table, rows), Counter[tuple[Any, ...]](), list[int | None]()
    for row in rows:
        key = tuple(row[name] for name in _KEY)
        number = numbers.pop(key, None)
        if number is None and _forget_missing(connection, table, row):
            counted[row["validator"], "rejections"] -= 1
            number = _insert(connection, table, [row]).get(key)
        if number is None and row["stored"]:
            leave(connection, [("verdicts", row["stored"])], 0)
        kept.append(number)
    return kept, counted


def _forget_missing(connection: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Delete the validator's earlier verdict on this commitment, if it was that the file is missing."""
    if row["reason"] == "data_missing":
        return False
    files = connection.execute(_MISSING[table], {name: row[name] for name in _KEY}).scalars().all()
    leave(connection, [("verdicts", name) for name in files if name], 0)
    return bool(files)


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], int]:
    """Insert verdicts; return the numbers of the new ones."""
    return {tuple(key): number for number, *key in insert_each(connection, table, rows, "id", *_KEY)}


def _record_rejection(connection: Connection, verdict: Verdict, number: int) -> None:
    """Record the event of a rejection, whose row has this number, unless it has been replaced already."""
    query = select(func.count()).where(same_work(verdicts, verdict), verdicts.c.accepted.is_(False))
    rejections = max(1, connection.execute(query.where(verdicts.c.id <= number)).scalar_one())
    data = {"node": verdict.node, "index": verdict.index, "reason": verdict.reason, "rejections": rejections}
    source = f"verdict:{verdict.validator}:{verdict.node}:{verdict.index}:{verdict.root[:10]}"
    record_event(connection, "rejected", {**data, "validator": verdict.validator}, source)
