"""Which judgements count: signed by an active validator of the run, about a commitment and file that exist.

A verdict names the next link of its validator's hash chain, fixed when it registered: it decides which rows were
re-run, so no link may be used twice and none may be made up. Both are checked here, so that everybody who reads a
verdict can trust the sample to be drawn and not chosen.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from eth_utils.crypto import keccak
from sqlalchemy import select

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
from orchestrator.ledger import Ledger, Member
from orchestrator.tables import verdicts

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
        if verdict.accepted != (verdict.reason is None):
            raise problems.malformed("a rejection has a reason, an acceptance none")
        if await self._told_before(verdict):
            return False
        await self._check_work(verdict)
        await self._check_link(verdict, member)
        await self.copies.put(verdict.model_dump_json().encode())
        return await self.record(verdict, time.time())

    async def _told_before(self, verdict: Verdict) -> bool:
        query = select(verdicts.c.document).where(
            verdicts.c.validator == verdict.validator,
            verdicts.c.node == verdict.node,
            verdicts.c.index == verdict.index,
            verdicts.c.root == verdict.root,
        )
        async with self._database.read() as connection:
            document = (await connection.execute(query)).scalar_one_or_none()
        if document is None:
            return False
        if Verdict.model_validate_json(document) != verdict:
            raise problems.conflict(f"{verdict.validator} has judged this commitment of {verdict.node} otherwise")
        return True

    async def _check_work(self, verdict: Verdict) -> None:
        """The commitment exists as the verdict describes it, and so do the file and the evidence it names."""
        committed = await self._ledger.commitment(verdict.node, verdict.index)
        if committed is None:
            await self._follower.next_look()
            committed = await self._ledger.commitment(verdict.node, verdict.index)
        what = f"commitment {verdict.index} of {verdict.node}"
        if committed is None:
            raise problems.not_found(f"there is no {what} yet", "try again when the chain was read further")
        if (committed.step, committed.root) != (verdict.step, verdict.root):
            raise problems.conflict(f"{what} is to root {committed.root} at step {committed.step}")
        upload = await self._ledger.upload(verdict.node, verdict.index, verdict.root)
        if verdict.reason != "data_missing" and (upload is None or upload.receipt.file_hash != verdict.file_hash):
            raise problems.conflict(f"{verdict.file_hash} is not the file uploaded for {what}")
        if verdict.evidence is not None and not await self.evidence.exists(verdict.evidence):
            raise problems.not_found(f"no evidence {verdict.evidence} is kept here", "post the evidence first")

    async def _check_link(self, verdict: Verdict, member: Member) -> None:
        """The preimage is the link of the validator's chain that it says it is, and was not used before."""
        if verdict.draw_index >= DRAW_CHAIN_LENGTH:
            raise problems.malformed(f"draw index {verdict.draw_index} is beyond the hash chain")
        query = select(verdicts.c.draw_index, verdicts.c.preimage)
        query = query.where(verdicts.c.validator == verdict.validator, verdicts.c.draw_index <= verdict.draw_index)
        async with self._database.read() as connection:
            below = (await connection.execute(query.order_by(verdicts.c.draw_index.desc()).limit(1))).one_or_none()
        if below is not None and below.draw_index == verdict.draw_index:
            raise problems.conflict(f"link {verdict.draw_index} of {verdict.validator}'s hash chain was used before")
        start, known = (below.draw_index, below.preimage) if below else (-1, member.draw_tip)
        found = await asyncio.to_thread(_hash_times, hash_bytes(verdict.preimage), verdict.draw_index - start)
        if found != hash_bytes(known):
            raise problems.conflict(f"the preimage is not link {verdict.draw_index} of {verdict.validator}'s chain")

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
        async with self._database.write() as connection:
            if not await insert_once(connection, verdicts, row):
                return False
            found = await self._ledger.restand(connection, verdict.node, verdict.index)
            if not verdict.accepted:
                data = {"node": verdict.node, "index": verdict.index, "reason": verdict.reason}
                source = f"verdict:{verdict.validator}:{verdict.node}:{verdict.index}:{verdict.root[:10]}"
                await tell(connection, "rejected", {**data, "validator": verdict.validator}, source)
        VERDICTS.labels(verdict.reason or "accepted").inc()
        log.info("verdict", node=verdict.node, index=verdict.index, accepted=verdict.accepted, standing=found)
        return True


def _hash_times(value: bytes, times: int) -> bytes:
    for _ in range(times):
        value = keccak(value)
    return value
