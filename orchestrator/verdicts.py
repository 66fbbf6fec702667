"""Decide which verdicts are taken: signed by an active validator of the run, about a commitment and file that exist.

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
from sqlalchemy import Connection, bindparam, delete, func, select, update

from muster.clients.storage import ContentStore, DocumentStore
from muster.constants import MAX_EVIDENCE_BYTES, UNNAMED_SECONDS
from muster.errors import CheckError, MismatchError, StorageError
from muster.protocol.eip712 import Domain
from muster.protocol.messages import Address, Hash, Message, Verdict
from muster.protocol.receipts import check_verdict
from muster.runtime import telemetry
from orchestrator import problems, tallies
from orchestrator.auth import Caller
from orchestrator.calls import Calls
from orchestrator.chain_follower import Follower
from orchestrator.commitment_status import CommitmentStatus
from orchestrator.database import Database
from orchestrator.events import record_event
from orchestrator.queries import NAMED, Queries, named, same_work
from orchestrator.statements import add_all, insert_each, insert_once, row_of
from orchestrator.summaries import gone_work, leave
from orchestrator.tables import calls, cases, counts, evidence, uploads, verdicts
from orchestrator.uploads import full

MAX_UNNAMED: Final = 256
"""Bundles a validator may post before a verdict names one of them: evidence takes room by the verdict, not by the
request."""

VERDICTS: Final = telemetry.counter("verdicts", "Verdicts received", ("outcome",))
log = telemetry.logger("orchestrator")


class KeptCall(Message):
    """Who was called to look at a commitment, as a row of the table `calls` says."""

    block: int
    hash: Hash
    order: str
    opens: int


class KeptVerdict(Message):
    """A verdict as storage keeps it: a rebuild finds when it came, and who was called."""

    verdict: Verdict
    came: int
    call: KeptCall | None


@dataclass(frozen=True)
class RecordedVerdict:
    """A verdict that is recorded. `stored`: the file in storage that it is in."""

    kept: KeptVerdict
    received: float
    stored: str


class Verdicts:
    """Receives verdicts. One per service."""

    def __init__(
        self,
        where: Domain,
        queries: Queries,
        follower: Follower,
        database: Database,
        calls: Calls,
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
        self._calls = calls
        self._known = database.together(what_is_known, writes=False)
        self._write = database.together(self.write_all)
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
        if known.earlier == verdict:
            if verdict.evidence is not None:  # it may have been posted again
                await self._database.write(lambda connection: mark_named(connection, verdict), news=False)
            return False
        if known.call is None and (known.committed is None or known.committed.day is None):
            await self._calls.ensure(verdict.node, verdict.index)
            known = await self._known(verdict)

        # 3. The rules and the evidence.
        refusal = refuse_verdict(verdict, known)
        if refusal is not None:
            raise refusal
        if verdict.evidence is not None and not await self.evidence.exists(verdict.evidence):
            raise problems.not_found(f"no evidence {verdict.evidence} is kept here", "post the evidence first")

        # 4. Storage, then the database: a verdict that is acknowledged is kept in both.
        kept = KeptVerdict(verdict=verdict, came=self._queries.chain.now, call=known.call)
        stored = await self.copies.add(kept.model_dump_json().encode())
        if await self.record(kept, time.time(), stored):
            return True
        known = await self._known(verdict)
        if known.earlier == verdict:  # the same request, twice at the same time
            return False
        raise refuse_verdict(verdict, known) or problems.conflict("another verdict was faster")

    async def record(self, kept: KeptVerdict, received: float, stored: str = "") -> bool:
        """Record a verdict and its effect. Return False when its validator has given one on the commitment before.

        `stored`: the file in storage that it is in.
        """
        new, found = await self._write(RecordedVerdict(kept, received, stored))
        if not new:
            return False
        verdict = kept.verdict
        log.info(
            "verdict", node=verdict.node, index=verdict.index, accepted=verdict.accepted, status=found and found.state
        )
        return True

    def write_all(
        self, connection: Connection, given: Sequence[RecordedVerdict]
    ) -> list[tuple[bool, CommitmentStatus | None]]:
        """Record verdicts; return of each whether it is new, and what became of its commitment."""
        # 1. The verdicts, and the calls that came with them from storage.
        _keep_calls(connection, [one.kept for one in given])
        kept, counted = _keep(connection, given)

        # 2. What follows from the new ones.
        new = [(number, one.kept.verdict) for number, one in zip(kept, given, strict=True) if number is not None]
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
        about = [(one.kept.verdict.node, one.kept.verdict.index) for one in given]
        return [(number is not None, states.get(work)) for number, work in zip(kept, about, strict=True)]

    async def shows(self, name: str, reader: Caller | None) -> bool:
        """Return whether a reader gets a bundle: once a case on chain names it, and before that who posted it."""
        named = select(cases.c.evidence).where(cases.c.evidence == name)
        if reader is not None:
            posted = evidence.c.hash == name, evidence.c.validator == reader.address
            named = named.union(select(evidence.c.hash).where(*posted))
        return await self._database.read(lambda connection: connection.execute(named).first() is not None)

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
    call: KeptCall | None


_KEY: Final = ("validator", "node", "index", "root")
"""Columns of a verdict that no other has all of."""
_SAME: Final = [verdicts.c[name] == bindparam(name) for name in _KEY]
_FILE: Final = select(uploads.c.file_hash).where(*(uploads.c[name] == bindparam(name) for name in _KEY[1:]))
_EARLIER: Final = select(verdicts.c.document).where(*_SAME)
_ABOUT: Final = select(_EARLIER.scalar_subquery(), _FILE.scalar_subquery())
_REMOVE: Final = delete(verdicts).where(*_SAME).returning(*verdicts.c["accepted", "stored"])
"""Made once, as others here: making a statement takes many times as long as running it."""
_CALL: Final = select(*calls.c["block", "hash", "order", "opens"]).where(
    calls.c.node == bindparam("node"), calls.c.index == bindparam("index")
)


def what_is_known(connection: Connection, given: Sequence[Verdict]) -> list[Known]:
    """Read what the database says about the subject of each verdict."""
    found = []
    for verdict in given:
        key = verdict.model_dump(include=set(_KEY))
        earlier, file_hash = connection.execute(_ABOUT, key).one()
        call = connection.execute(_CALL, {"node": verdict.node, "index": verdict.index}).one_or_none()
        known = Known(
            earlier=Verdict.model_validate_json(earlier) if earlier else None,
            committed=tallies.find_commitment(connection, verdict.node, verdict.index),
            file_hash=file_hash,
            call=None if call is None else KeptCall.of(call),
        )
        found.append(known)
    return found


def refuse_verdict(verdict: Verdict, known: Known) -> Exception | None:
    """Return why a properly signed verdict is not taken, or None. Pure."""
    what = f"commitment {verdict.index} of {verdict.node}"
    if verdict.accepted != (verdict.reason is None):
        return problems.malformed("a rejection has a reason, an acceptance none")
    if known.earlier is not None and not _gives_way(known.earlier, verdict, known.call):
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


def _gives_way(earlier: Verdict, verdict: Verdict, call: KeptCall | None) -> bool:
    """Return whether a verdict takes the place of an earlier one: its file was missing, or its block is gone. Pure."""
    is_missing = earlier.reason == "data_missing" and verdict.reason != "data_missing"
    return is_missing or (call is not None and verdict.drawn_by == call.hash != earlier.drawn_by)


def mark_named(connection: Connection, verdict: Verdict) -> None:
    """Stop counting this verdict's evidence as posted without a verdict."""
    if verdict.evidence is not None:
        posted = evidence.c.validator == verdict.validator, evidence.c.hash == verdict.evidence
        connection.execute(update(evidence).where(*posted).values(expiry=0))


def _keep_calls(connection: Connection, given: Sequence[KeptVerdict]) -> None:
    """Record the calls of verdicts from storage that the database lacks: who let places lapse is not known of them."""
    for one in given:
        if one.call is not None:
            row = {"node": one.verdict.node, "index": one.verdict.index, **one.call.model_dump(), "lapsed": ""}
            insert_once(connection, calls, row)


def _keep(
    connection: Connection, given: Sequence[RecordedVerdict]
) -> tuple[list[int | None], Counter[tuple[Any, ...]]]:
    """Write verdicts, one that is not new perhaps in place of an earlier one.

    Return the numbers of the new ones, and what those whose place was taken add to what is counted.
    """
    rows = [
        row_of(
            verdicts,
            one.kept.verdict,
            came=one.kept.came,
            document=one.kept.verdict.model_dump_json(),
            received=one.received,
            stored=one.stored,
            size=len(one.kept.model_dump_json().encode()),
        )
        for one in given
    ]
    numbers, counted, kept = _insert(connection, rows), Counter[tuple[Any, ...]](), list[int | None]()
    for row, one in zip(rows, given, strict=True):
        key = tuple(row[name] for name in _KEY)
        number = numbers.pop(key, None)
        if number is None and (gone := _make_room(connection, row, one.kept)):
            counted.subtract(gone)
            number = _insert(connection, [row]).get(key)
        if number is None and row["stored"]:
            leave(connection, [("verdicts", row["stored"])], 0)
        kept.append(number)
    return kept, counted


def _make_room(connection: Connection, row: Mapping[str, Any], kept: KeptVerdict) -> list[tuple[str, str]]:
    """Delete the validator's earlier verdict on this commitment, if it gives way; return what was counted of it."""
    key = {name: row[name] for name in _KEY}
    earlier = connection.execute(_EARLIER, key).scalar()
    if earlier is None or not _gives_way(Verdict.model_validate_json(earlier), kept.verdict, kept.call):
        return []
    gone = connection.execute(_REMOVE, key).one()
    leave(connection, [("verdicts", gone.stored)] if gone.stored else [], 0)
    return [(row["validator"], "accepts" if gone.accepted else "rejections")]


def _insert(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], int]:
    """Insert verdicts; return the numbers of the new ones."""
    return {tuple(key): number for number, *key in insert_each(connection, verdicts, rows, "id", *_KEY)}


def _record_rejection(connection: Connection, verdict: Verdict, number: int) -> None:
    """Record the event of a rejection, whose row has this number, unless it has been replaced already."""
    query = select(func.count()).where(same_work(verdicts, verdict), verdicts.c.accepted.is_(False))
    rejections = max(1, connection.execute(query.where(verdicts.c.id <= number)).scalar_one())
    data = {"node": verdict.node, "index": verdict.index, "reason": verdict.reason, "rejections": rejections}
    source = f"verdict:{verdict.validator}:{verdict.node}:{verdict.index}:{verdict.root[:10]}"
    record_event(connection, "rejected", {**data, "validator": verdict.validator}, source)
