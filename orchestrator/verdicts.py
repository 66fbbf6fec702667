"""Decide which verdicts are taken: signed by an active validator of the run, about a commitment and file that exist.

Which rows were re-run follows from the chain: the validator shows the link that drew them when it seals the hour
(`muster.protocol.draws`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, and_, bindparam, select, update

from muster.clients.storage import ContentStore
from muster.constants import MAX_EVIDENCE_BYTES, UNNAMED_SECONDS
from muster.errors import CheckError, StorageError
from muster.ledger import tallies
from muster.ledger.database import Database
from muster.ledger.documents import KEY, KeptCall, Placed, record_verdicts
from muster.ledger.queries import Queries
from muster.ledger.statements import insert_once
from muster.ledger.summaries import gone_work
from muster.ledger.tables import calls, cases, files, uploads
from muster.protocol.eip712 import Domain
from muster.protocol.messages import Address, Verdict
from muster.runtime import problems, telemetry
from orchestrator.auth import Caller
from orchestrator.calls import Calls
from orchestrator.log import Kind, Log, Offered, Taken
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
        database: Database,
        documents: Log,
        calls: Calls,
        *,
        storage_url: str,
        key_bytes: float = math.inf,
    ) -> None:
        """`key_bytes`: of evidence that is kept of one validator before anything names it."""
        self._key_bytes = key_bytes
        self._where = where
        self._queries = queries
        self._database = database
        self._documents = documents
        self._calls = calls
        self.evidence = ContentStore(storage_url, "evidence")
        documents.add_kind(
            Kind(
                name="verdict",
                message=Verdict,
                noun="verdict",
                key=lambda verdict: ":".join(str(getattr(verdict, name)) for name in KEY),
                may_sign=lambda _connection, verdict: {verdict.validator},
                could_sign=lambda verdict, signer: signer == verdict.validator,
                fits=_fits,
                replaces=lambda _new, _earlier: True,
                about=lambda verdict: (verdict.node, verdict.index),
                project=self._project,
            )
        )

    async def expect_evidence(self, caller: Caller, size: int = 0) -> None:
        """Refuse a bundle of a caller that may not post any, or no more of them now. `size`: its bytes."""
        caller.active_validator()
        now, posted = time.time(), held_by(caller.address)
        row = _row(caller.address, caller.request.body_hash, size, now)

        def write(connection: Connection) -> bool:
            unnamed = set(connection.execute(select(files.c.name).where(posted, files.c.expiry > now)).scalars())
            if row["name"] not in unnamed and len(unnamed) >= MAX_UNNAMED:
                return False
            if insert_once(connection, files, row):
                refusal = full(connection, caller.address, self._key_bytes, self._queries.chain.now)
                if refusal is not None:
                    raise refusal
            return True

        if not await self._database.write(write, news=False):
            raise problems.try_later(f"no verdict names {MAX_UNNAMED} bundles of {caller.address}: post these first")

    async def receive(self, caller: Caller, verdict: Verdict) -> Taken:
        """Take a verdict; return its place, and whether it is new. Another one of the same validator is refused."""
        # 1. The sender.
        caller.active_validator()
        if verdict.validator != caller.address:
            raise problems.not_allowed(f"the verdict is {verdict.validator}'s, the request {caller.address}'s")

        # 2. Who was called, and the evidence. The commitment may have been mined a moment ago.
        key = {"node": verdict.node, "index": verdict.index}
        if not await self._database.read(lambda connection: connection.execute(_CALL, key).one_or_none()):
            await self._calls.ensure(verdict.node, verdict.index)
        if verdict.evidence is not None and not await self.evidence.exists(verdict.evidence):
            raise problems.not_found(f"no evidence {verdict.evidence} is kept here", "post the evidence first")

        # 3. The log.
        taken = await self._documents.take("verdict", verdict)
        if not taken and verdict.evidence is not None:  # it may have been posted again
            await self._database.write(lambda connection: mark_named(connection, verdict), news=False)
        return taken

    def _project(self, connection: Connection, found: Sequence[Placed[Verdict]]) -> None:
        for one in found:
            VERDICTS.labels(one.document.reason or "accepted").inc()
            mark_named(connection, one.document)
        states = record_verdicts(connection, self._queries, found)
        for verdict in (one.document for one in found):
            state = states.get(work := (verdict.node, verdict.index))
            log.info("verdict", node=work[0], index=work[1], accepted=verdict.accepted, status=state and state.state)

    async def shows(self, name: str, reader: Caller | None) -> bool:
        """Return whether a reader gets a bundle: once a case on chain names it, and before that who posted it."""
        named = select(cases.c.evidence).where(cases.c.evidence == name)
        if reader is not None:
            named = named.union(select(files.c.name).where(held_by(reader.address), files.c.name == name))
        return await self._database.read(lambda connection: connection.execute(named).first() is not None)

    async def restore_evidence(self, runs: str) -> None:
        """Record which evidence about this run there is besides, as posted now. `runs`: the Runs contract."""
        ours, now = (self._where.chain_id, runs.lower(), self._queries.run), time.time()
        names = select(files.c.name).where(files.c.kind == "evidence", files.c.holder != "")
        known = set(await self._database.read(lambda connection: connection.execute(names).scalars().all()))
        async for name, size in self.evidence.sizes():
            if name in known:
                continue
            try:
                about = _BundleHead.model_validate_json(await self.evidence.get(name, MAX_EVIDENCE_BYTES))
            except (ValidationError, CheckError, StorageError):
                continue  # it may be another run's, so it stays
            row = _row(about.accuser, name, size, now)
            if (about.chain_id, about.runs.lower(), about.run) == ours:
                await self._database.write(partial(insert_once, table=files, row=row), news=False)


def held_by(validator: str) -> Any:
    """Return the condition that a file is evidence which a validator posted."""
    return and_(files.c.kind == "evidence", files.c.holder == validator)


def _row(validator: str, name: str, size: int, now: float) -> dict[str, Any]:
    """Return the row of evidence that is posted now."""
    expiry = now + UNNAMED_SECONDS
    return {"kind": "evidence", "holder": validator, "name": name, "size": size, "expiry": expiry, "hour": 0}


class _BundleHead(BaseModel):
    """What says of a bundle of evidence which run it is about."""

    chain_id: int
    runs: Address
    run: int
    accuser: Address


_FILE: Final = select(uploads.c.file_hash).where(*(uploads.c[name] == bindparam(name) for name in KEY[1:]))
_CALL: Final = select(*calls.c["block", "hash", "order", "opens"]).where(
    calls.c.node == bindparam("node"), calls.c.index == bindparam("index")
)


def _fits(connection: Connection, offered: Offered[Verdict]) -> str:
    """Return who was called, as JSON. Raises RefusedError for a verdict that does not fit chain, file and log."""
    verdict = offered.document
    key = verdict.model_dump(include=set(KEY[1:]))
    committed = tallies.find_commitment(connection, verdict.node, verdict.index)
    row = connection.execute(_CALL, {"node": verdict.node, "index": verdict.index}).one_or_none()
    call = None if row is None else KeptCall.of(row)
    refusal = refuse_verdict(
        verdict,
        committed,
        earlier=offered.earlier and offered.earlier.document,
        file_hash=connection.execute(_FILE, key).scalar(),
        call=call,
    )
    if refusal is not None:
        raise refusal
    return "" if call is None else call.model_dump_json()


def refuse_verdict(
    verdict: Verdict,
    committed: tallies.CommitmentState | None,
    *,
    earlier: Verdict | None,
    file_hash: str | None,
    call: KeptCall | None,
) -> Exception | None:
    """Return why a properly signed verdict is not taken, or None. Pure.

    committed: its commitment; earlier: this validator's last verdict on it; file_hash: the file uploaded for it.
    """
    what = f"commitment {verdict.index} of {verdict.node}"
    if verdict.accepted != (verdict.reason is None):
        return problems.malformed("a rejection has a reason, an acceptance none")
    if earlier is not None and not gives_way(earlier, verdict, call):
        return problems.conflict(f"{verdict.validator} has given another verdict on {what}")
    if committed is not None and committed.day is not None:
        return gone_work(what, committed.day)
    if committed is None:
        return problems.not_found(f"there is no {what} yet", "try again once the orchestrator has read more blocks")
    if (committed.step, committed.root) != (verdict.step, verdict.root):
        return problems.conflict(f"{what} is to root {committed.root} at step {committed.step}")
    if verdict.reason != "data_missing" and file_hash != verdict.file_hash:
        return problems.conflict(f"{verdict.file_hash} is not the file uploaded for {what}")
    return None


def gives_way(earlier: Verdict, verdict: Verdict, call: KeptCall | None) -> bool:
    """Return whether a verdict takes the place of an earlier one: its file was missing, or its block is gone. Pure."""
    is_missing = earlier.reason == "data_missing" and verdict.reason != "data_missing"
    return is_missing or (call is not None and verdict.drawn_by == call.hash != earlier.drawn_by)


def mark_named(connection: Connection, verdict: Verdict) -> None:
    """Stop counting this verdict's evidence as posted without a verdict."""
    if verdict.evidence is not None:
        posted = held_by(verdict.validator), files.c.name == verdict.evidence
        connection.execute(update(files).where(*posted).values(expiry=0))
