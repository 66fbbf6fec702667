"""Which judgements count: signed by an active validator of the run, about a commitment and file that exist.

A verdict names the next link of its validator's hash chain, fixed when it registered: it decides which rows were
re-run, so no link may be used twice and none may be made up. Both are checked here, so that everybody who reads a
verdict can trust the sample to be drawn and not chosen.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Final

from eth_utils.crypto import keccak
from sqlalchemy import Connection, select

from muster import telemetry
from muster.constants import DRAW_CHAIN_LENGTH
from muster.errors import MismatchError
from muster.hashes import hash_bytes
from muster.messages import Verdict
from muster.signing import Domain, check_verdict
from muster.storage import ContentStore
from orchestrator import problems
from orchestrator.auth import Caller
from orchestrator.database import Database, insert_once
from orchestrator.follower import Follower
from orchestrator.happenings import tell
from orchestrator.ledger import Committed, Ledger, commitment_of, upload_of
from orchestrator.standing import Standing
from orchestrator.tables import verdicts

MAX_UNTOLD: Final = 256
"""Bundles a validator may post before a verdict names one of them: evidence takes room by the verdict, not by the
request."""

WRONG_LINK_PAUSE: Final = 20.0
"""A validator whose link was wrong waits so many times as long as finding that out took: it can take as many hashes as
its chain has links, which is seconds."""

VERDICTS: Final = telemetry.counter("verdicts", "Verdicts received", ("outcome",))
log = telemetry.logger("orchestrator")


class Verdicts:
    """Receives judgements. One per service."""

    def __init__(
        self, where: Domain, ledger: Ledger, follower: Follower, database: Database, *, storage_url: str
    ) -> None:
        self._where = where
        self._ledger = ledger
        self._follower = follower
        self._database = database
        self.evidence = ContentStore(storage_url, "evidence")
        self.copies = ContentStore(storage_url, "verdicts")
        self._untold: dict[str, set[str]] = {}
        """By validator, the evidence that no verdict of its has named; since the start."""
        self._not_before: dict[str, float] = {}
        """By validator, the monotonic second before which no link of its is checked."""

    def expect_evidence(self, caller: Caller) -> None:
        """Refuse a bundle of a caller who may not post any, or no more of them now."""
        member = caller.member
        if member is None or member.role != "validator" or not member.active:
            raise problems.not_allowed(f"{caller.address} is no active validator of this run", "muster validator join")
        untold = self._untold.setdefault(caller.address, set())
        if len(untold) >= MAX_UNTOLD and caller.request.body_hash not in untold:
            raise problems.try_later(f"no verdict names {len(untold)} bundles of {caller.address}: post these first")
        untold.add(caller.request.body_hash)

    async def receive(self, caller: Caller, verdict: Verdict) -> bool:
        """Take a verdict; whether it is new. The same one again changes nothing, another one is refused."""
        if verdict.run != self._ledger.run:
            raise problems.another_run(verdict.run, self._ledger.run)
        member = caller.member
        if member is None or member.role != "validator" or not member.active:
            raise problems.not_allowed(f"{caller.address} is no active validator of this run", "muster validator join")
        if verdict.validator != caller.address:
            raise problems.not_allowed(f"the verdict is {verdict.validator}'s, the request {caller.address}'s")
        try:
            check_verdict(self._where, verdict)
        except MismatchError as error:
            raise problems.not_allowed(str(error), "check chain.chain_id and the address book") from error
        known = await self._database.read(lambda connection: what_is_known(connection, verdict))
        if known.committed is None:
            await self._follower.next_look()
            known = await self._database.read(lambda connection: what_is_known(connection, verdict))
        if known.told == verdict:
            self._named(verdict)
            return False
        refusal = refuse_verdict(verdict, known)
        if refusal is not None:
            raise refusal
        if verdict.evidence is not None and not await self.evidence.exists(verdict.evidence):
            raise problems.not_found(f"no evidence {verdict.evidence} is kept here", "post the evidence first")
        await self._check_link(verdict, known.below or (-1, member.draw_tip))
        self._named(verdict)
        await self.copies.put(verdict.model_dump_json().encode())
        if await self.record(verdict, time.time()):
            return True
        known = await self._database.read(lambda connection: what_is_known(connection, verdict))
        if known.told == verdict:  # the same request, twice at the same time
            return False
        raise refuse_verdict(verdict, known) or problems.conflict("another verdict was faster")

    def _named(self, verdict: Verdict) -> None:
        """A verdict that counts names this evidence."""
        self._untold.get(verdict.validator, set()).discard(verdict.evidence or "")

    async def _check_link(self, verdict: Verdict, below: tuple[int, str]) -> None:
        """The preimage is the link of the validator's chain that it says it is: hashed often enough, it gives `below`.

        One at a time of each validator, and none for a while after a wrong one.
        """
        began = time.monotonic()
        if began < self._not_before.get(verdict.validator, 0):
            raise problems.try_later(f"a link of {verdict.validator} is being checked, or was wrong a moment ago")
        self._not_before[verdict.validator] = math.inf
        start, known = below
        try:
            found = await asyncio.to_thread(_hash_times, hash_bytes(verdict.preimage), verdict.draw_index - start)
        finally:
            now = time.monotonic()
            self._not_before[verdict.validator] = now + WRONG_LINK_PAUSE * (now - began)
        if found != hash_bytes(known):
            raise problems.conflict(f"the preimage is not link {verdict.draw_index} of {verdict.validator}'s chain")
        del self._not_before[verdict.validator]

    async def record(self, verdict: Verdict, received: float) -> bool:
        """Note a verdict and what follows from it. False when it is known, or when its link is another verdict's."""
        row = {
            "validator": verdict.validator,
            "node": verdict.node,
            "index": verdict.index,
            "root": verdict.root,
            "accepted": verdict.accepted,
            "reason": verdict.reason,
            "draw_index": verdict.draw_index,
            "preimage": verdict.preimage,
            "document": verdict.model_dump_json(),
            "received": received,
        }

        def write(connection: Connection) -> tuple[bool, Standing | None]:
            if not insert_once(connection, verdicts, row):
                return False, None
            if not verdict.accepted:
                data = {"node": verdict.node, "index": verdict.index, "reason": verdict.reason}
                source = f"verdict:{verdict.validator}:{verdict.node}:{verdict.index}:{verdict.root[:10]}"
                tell(connection, "rejected", {**data, "validator": verdict.validator}, source)
            return True, self._ledger.restand(connection, verdict.node, verdict.index)

        new, found = await self._database.write(write)
        if not new:
            return False
        VERDICTS.labels(verdict.reason or "accepted").inc()
        log.info(
            "verdict", node=verdict.node, index=verdict.index, accepted=verdict.accepted, standing=found and found.state
        )
        return True


@dataclass(frozen=True)
class Known:
    """What the database says about the subject of a verdict."""

    told: Verdict | None
    """What this validator said of this commitment before."""
    committed: Committed | None
    file_hash: str | None
    """The file uploaded for it."""
    below: tuple[int, str] | None
    """Index and preimage of the nearest link, at or below the verdict's, that its validator has used."""


def what_is_known(connection: Connection, verdict: Verdict) -> Known:
    """Collect it."""
    told = select(verdicts.c.document).where(
        verdicts.c.validator == verdict.validator,
        verdicts.c.node == verdict.node,
        verdicts.c.index == verdict.index,
        verdicts.c.root == verdict.root,
    )
    document = connection.execute(told).scalar_one_or_none()
    links = select(verdicts.c.draw_index, verdicts.c.preimage)
    links = links.where(verdicts.c.validator == verdict.validator, verdicts.c.draw_index <= verdict.draw_index)
    below = connection.execute(links.order_by(verdicts.c.draw_index.desc()).limit(1)).one_or_none()
    upload = upload_of(connection, verdict.node, verdict.index, verdict.root)
    return Known(
        told=Verdict.model_validate_json(document) if document else None,
        committed=commitment_of(connection, verdict.node, verdict.index),
        file_hash=upload.receipt.file_hash if upload else None,
        below=tuple(below) if below else None,
    )


def refuse_verdict(verdict: Verdict, known: Known) -> Exception | None:
    """Why a verdict that is properly signed does not count, or None. Pure."""
    what = f"commitment {verdict.index} of {verdict.node}"
    if verdict.accepted != (verdict.reason is None):
        return problems.malformed("a rejection has a reason, an acceptance none")
    if verdict.draw_index >= DRAW_CHAIN_LENGTH:
        return problems.malformed(f"draw index {verdict.draw_index} is beyond the hash chain")
    if known.told is not None:
        return problems.conflict(f"{verdict.validator} has judged {what} otherwise")
    if known.committed is None:
        return problems.not_found(f"there is no {what} yet", "try again when the chain was read further")
    if (known.committed.step, known.committed.root) != (verdict.step, verdict.root):
        return problems.conflict(f"{what} is to root {known.committed.root} at step {known.committed.step}")
    if verdict.reason != "data_missing" and known.file_hash != verdict.file_hash:
        return problems.conflict(f"{verdict.file_hash} is not the file uploaded for {what}")
    if known.below is not None and known.below[0] == verdict.draw_index:
        return problems.conflict(f"link {verdict.draw_index} of {verdict.validator}'s hash chain was used before")
    return None


def _hash_times(value: bytes, times: int) -> bytes:
    for _ in range(times):
        value = keccak(value)
    return value
