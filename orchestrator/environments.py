"""Receive environments of strangers into the log, and what the run's owner decides about them.

The rules:

1. A pack is its author's: the key that signed it sends it. Authors need be no members of the run, so all about their
   requests is bounded, and nothing of them is remembered but what is kept: the same again changes nothing.
2. A pack is read before it is kept (`muster.tasksets.contribution_pack`), never run. The owner checks whether it
   scores as it says before admitting it.
3. A name and version of an author is one pack, for ever. So many of an author's packs may wait for the owner, so many
   of all, and so many may be listed that the owner has not refused: what it refuses takes no place.
4. The run's owner decides by a signed message, the later one counts. Everybody can check both signatures.
5. Packs are files in storage; the author's claim of each is in the log, and so are decisions.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, select
from starlette.requests import Request

from muster.clients.storage import ContentStore
from muster.constants import REQUEST_LIFETIME_SECONDS
from muster.ledger.database import Database
from muster.ledger.queries import member_of
from muster.ledger.tables import entries
from muster.protocol.eip712 import Domain, recover_signer
from muster.protocol.messages import EnvironmentDecision, SubmittedEnvironment
from muster.runtime import problems, telemetry
from muster.settings.schema import OrchestratorSettings
from muster.tasksets.contribution_pack import ANYWHERE, MAX_PACK_BYTES, read_pack
from orchestrator.auth import Caller
from orchestrator.log import Kind, Log, Offered, Taken
from orchestrator.upload_slots import FILE_SECONDS, UploadSlots

MAX_OF_AUTHOR: Final = 8
"""Environments of one author that may wait for the owner."""
MAX_WAITING: Final = 128
"""Environments that may wait for the owner: a gibibyte."""
MAX_LISTED: Final = 1_000
"""Environments that wait or are admitted."""
STRANGERS_SHARE: Final = 2
"""Members of the run and its owner find room until all of it is taken, others until one part in so many is: keys cost
nothing."""
AT_ONCE: Final = 1
"""Packs that are received at the same time: reading the largest takes a second of this process. Two of one name and
version would both be listed."""

log = telemetry.logger("orchestrator")


@dataclass(frozen=True)
class SubmissionCounts:
    """What is listed already."""

    listed: int
    waiting: int
    of_author: int


class ClaimKind(Kind[SubmittedEnvironment]):
    """Submitted environments. The signature of each is its author's claim, which is for no chain."""

    @property
    def is_signed(self) -> bool:
        return True

    def open(self, where: Domain, signed: Any) -> tuple[SubmittedEnvironment, str]:
        return signed, recover_signer(ANYWHERE, signed.claim)


class Environments:
    """Receives environments, and decisions about them. One per service."""

    def __init__(
        self, run: int, owner: str, database: Database, documents: Log, settings: OrchestratorSettings
    ) -> None:
        self._run, self._owner, self._database, self._documents = run, owner, database, documents
        self._submissions = settings.submissions
        self._slots = UploadSlots(AT_ONCE, AT_ONCE * MAX_PACK_BYTES)
        self.packs = ContentStore(settings.storage_url, "environments")
        documents.add_kind(
            ClaimKind(
                name="environment",
                message=SubmittedEnvironment,
                noun="environment",
                key=lambda submitted: submitted.hash,
                could_sign=lambda submitted, signer: signer == submitted.claim.author,
                fits=lambda connection, offered: self._expect_place(connection, offered.document),
                about=lambda submitted: (submitted.claim.author, submitted.claim.version),
            )
        )
        documents.add_kind(
            Kind(
                name="decision",
                message=EnvironmentDecision,
                noun="decision",
                key=lambda decision: decision.environment,
                may_sign=lambda _connection, _decision: {owner},
                could_sign=lambda _decision, signer: signer == owner,
                fits=self._fits,
                replaces=lambda new, earlier: new.decided > earlier.decided,
                about=lambda decision: ("", int(decision.admitted)),
            )
        )

    async def receive(self, request: Request, caller: Caller) -> Taken:
        """Receive a pack from its author into storage, and its claim into the log.

        Raises RefusedError when it may not be sent, MalformedError and MismatchError when it is no pack.
        """

        def look(connection: Connection) -> Taken | None:
            known = self._documents.latest(connection, "environment", caller.request.body_hash)
            if known is not None:
                return Taken(False, known.place)
            return self._expect_room(connection, caller.address)

        # 1. Whether it may be sent at all, from what was signed: the body is not read yet.
        if (known := await self._database.read(look)) is not None:
            return known

        # 2. Read it.
        async with self._slots.body(request, caller, limit=MAX_PACK_BYTES, seconds=FILE_SECONDS) as body:
            pack = await asyncio.to_thread(read_pack, body)
            if pack.contribution.author != caller.address:
                raise problems.not_allowed(
                    f"the environment is signed by {pack.contribution.author}, the request by {caller.address}",
                    "submit it with the author's key",
                )
            about = {"run": self._run, "tasks": len(pack.contribution.tasks), "size": len(body)}
            submitted = SubmittedEnvironment.of(pack, pack.contribution, **about)

            # 3. Keep it, then list it: one after the other, so that nothing is kept that cannot be listed.
            await self._database.read(lambda connection: self._expect_place(connection, submitted))
            await self.packs.put_named(pack.hash, pack.data)
            taken = await self._documents.take("environment", submitted)
        log.info("environment submitted", environment=pack.hash, author=caller.address, bytes=len(body))
        return taken

    def _expect_room(self, connection: Connection, author: str) -> None:
        """Raise RefusedError where an author may not submit another environment."""
        member = author == self._owner or member_of(connection, author) is not None
        refusal = refusal_of(author, _counts(connection, author), self._submissions, member=member)
        if refusal is not None:
            raise refusal

    def _expect_place(self, connection: Connection, submitted: SubmittedEnvironment) -> str:
        """Raise RefusedError where there is no room, or the author's name and version are another pack's."""
        claim = submitted.claim
        self._expect_room(connection, claim.author)
        same = entries.c.kind == "environment", entries.c.subject == claim.author, entries.c.number == claim.version
        for row in connection.execute(select(entries.c.text).where(*same, entries.c.key != submitted.hash)):
            if SubmittedEnvironment.model_validate_json(row.text).claim.name == claim.name:
                raise problems.conflict(
                    f"{claim.author} has submitted another {claim.name} {claim.version}",
                    "raise the version in environment.toml",
                )
        return ""

    def expect_owner(self, caller: Caller) -> None:
        """Raise RefusedError unless the run's owner calls: of others not even the body is read."""
        if caller.address != self._owner:
            raise problems.not_allowed(
                f"{caller.address} is not the owner of run {self._run}, {self._owner}", "use the owner's key"
            )

    def _fits(self, connection: Connection, offered: Offered[EnvironmentDecision]) -> str:
        decision = offered.document
        if decision.decided > time.time() + REQUEST_LIFETIME_SECONDS:
            raise problems.malformed("the decision is of the future", "set this machine's clock")
        if self._documents.latest(connection, "environment", decision.environment) is None:
            raise problems.not_found(f"no environment {decision.environment} is listed here", "muster env list")
        return ""


def _counts(connection: Connection, author: str) -> SubmissionCounts:
    query = select(*entries.c["kind", "key", "subject", "number"]).order_by(entries.c.place)
    rows = connection.execute(query.where(entries.c.kind.in_(("environment", "decision")))).all()
    admitted = {row.key: row.number for row in rows if row.kind == "decision"}
    waiting = [row.subject for row in rows if row.kind == "environment" and row.key not in admitted]
    return SubmissionCounts(len(waiting) + sum(admitted.values()), len(waiting), waiting.count(author))


def refusal_of(author: str, counts: SubmissionCounts, submissions: str, *, member: bool) -> Exception | None:
    """Return why an author may not submit another environment, or None. Pure."""
    if submissions == "nobody" or (submissions == "members" and not member):
        taken = "no environments" if submissions == "nobody" else "environments of members of the run only"
        return problems.not_allowed(f"this orchestrator takes {taken}", "ask the owner of the run")
    share = 1 if member else STRANGERS_SHARE
    if counts.listed >= MAX_LISTED // share:
        return problems.conflict(f"{counts.listed} environments are listed: there is no room", "ask the owner")
    if counts.of_author >= MAX_OF_AUTHOR:
        return problems.conflict(f"{counts.of_author} environments of {author} wait for the owner already", "wait")
    if counts.waiting >= MAX_WAITING // share:
        return problems.conflict(f"{counts.waiting} environments wait for the owner already", "try again tomorrow")
    return None
