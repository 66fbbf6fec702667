"""List submitted environments, and what the run's owner decides about them.

The rules:

1. A pack is its author's: the key that signed it sends it. Authors need be no members of the run, so all about their
   requests is bounded, and nothing of them is remembered but what is kept: the same again changes nothing.
2. A pack is read before it is kept (`muster.tasksets.contribution_pack`), never run. The owner checks whether it
   scores as it says before admitting it.
3. A name and version of an author is one pack, for ever. So many of an author's packs may wait for the owner, so many
   of all, and so many may be listed that the owner has not refused: what it refuses takes no place.
4. The run's owner decides by a signed message, the later one counts. Everybody can check both signatures.
5. Packs are copied to storage, from which a new database is filled; decisions are in the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, case, func, literal, select, update
from sqlalchemy import Integer as SqlInteger
from starlette.requests import Request

from muster.clients.storage import ContentStore
from muster.constants import REQUEST_LIFETIME_SECONDS
from muster.ledger.database import Database
from muster.ledger.documents import Placed
from muster.ledger.queries import member_of
from muster.ledger.statements import insert_once, row_of
from muster.ledger.tables import environments
from muster.protocol.messages import EnvironmentDecision, EnvironmentPage, ListedEnvironment
from muster.runtime import problems, telemetry
from muster.settings.schema import OrchestratorSettings
from muster.tasksets.contribution_pack import MAX_PACK_BYTES, Pack, read_pack
from orchestrator.auth import Caller
from orchestrator.log import Kind, Log, Offered
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
MAX_PAGE: Final = 100
AT_ONCE: Final = 1
"""Packs that are received at the same time: reading the largest takes a second of this process."""

log = telemetry.logger("orchestrator")


@dataclass(frozen=True)
class SubmissionCounts:
    """What is listed already."""

    listed: int
    waiting: int
    of_author: int


class Environments:
    """Receives and lists environments. One per service."""

    def __init__(
        self, run: int, owner: str, database: Database, documents: Log, settings: OrchestratorSettings
    ) -> None:
        self._run = run
        self._owner = owner
        self._database = database
        self._submissions = settings.submissions
        self._slots = UploadSlots(AT_ONCE, AT_ONCE * MAX_PACK_BYTES)
        self.packs = ContentStore(settings.storage_url, "environments")
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
                project=_decide,
            )
        )

    async def receive(self, request: Request, caller: Caller) -> bool:
        """Receive a pack from its author; return whether it is new.

        Raises RefusedError when it may not be sent, MalformedError and MismatchError when it is no pack.
        """
        # 1. Whether it may be sent at all, from what was signed: the body is not read yet.
        name = caller.request.body_hash

        def look(connection: Connection) -> tuple[bool, bool, SubmissionCounts]:
            known = connection.execute(select(environments.c.id).where(environments.c.hash == name)).first()
            member = member_of(connection, caller.address) is not None
            return known is not None, member or caller.address == self._owner, _counts(connection, caller.address)

        known, member, counts = await self._database.read(look)
        if known:
            return False
        refusal = refusal_of(caller.address, counts, self._submissions, member=member)
        if refusal is not None:
            raise refusal

        # 2. Read it.
        async with self._slots.body(request, caller, limit=MAX_PACK_BYTES, seconds=FILE_SECONDS) as body:
            pack = await asyncio.to_thread(read_pack, body)
            if pack.contribution.author != caller.address:
                raise problems.not_allowed(
                    f"the environment is signed by {pack.contribution.author}, the request by {caller.address}",
                    "submit it with the author's key",
                )

            # 3. Keep it, then list it: one after the other, so that nothing is kept that cannot be listed.
            refusal = await self.record(pack, time.time(), member=member, dry=True)
            if refusal is None:
                await self.packs.put_named(pack.hash, pack.data)
                refusal = await self.record(pack, time.time(), member=member)
        if refusal is not None:
            raise refusal
        log.info("environment submitted", environment=pack.hash, author=caller.address, bytes=len(body))
        return True

    async def record(self, pack: Pack, received: float, *, member: bool = False, dry: bool = False) -> Exception | None:
        """List a pack, unless `dry`; return why it cannot be listed, if so. `member`: whether its author is one."""
        tasks, size = len(pack.contribution.tasks), len(pack.data)
        listed = ListedEnvironment.of(pack, pack.contribution, tasks=tasks, size=size, state="waiting")
        others = {"hash": pack.hash, "state": listed.state, "decided": -1, "document": listed.model_dump_json()}
        row = row_of(environments, listed.claim, **others, received=received)

        def write(connection: Connection) -> Exception | None:
            refusal = refusal_of(listed.claim.author, _counts(connection, listed.claim.author), "anyone", member=member)
            if refusal is not None and received:
                return refusal
            named = [environments.c[column] == row[column] for column in ("author", "name", "version")]
            known = connection.execute(select(environments.c.hash).where(*named)).scalar()
            if known in (None, pack.hash):
                if not dry:
                    insert_once(connection, environments, row)
                return None
            return problems.conflict(
                f"{listed.claim.author} has submitted another {listed.claim.name} {listed.claim.version}",
                "raise the version in environment.toml",
            )

        return await self._database.write(write, news=not dry)

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
        listed = select(environments.c.id).where(environments.c.hash == decision.environment)
        if connection.execute(listed).first() is None:
            raise problems.not_found(f"no environment {decision.environment} is listed here", "muster env list")
        return ""

    async def page(self, after: int) -> EnvironmentPage:
        """Return the environments after a cursor, in the order in which they came."""
        query = select(environments.c.id, environments.c.document).where(environments.c.id > literal(after, SqlInteger))
        query = query.order_by(environments.c.id).limit(MAX_PAGE)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return EnvironmentPage(
            environments=[ListedEnvironment.model_validate_json(row.document) for row in rows],
            cursor=rows[-1].id if rows else after,
        )


def _decide(connection: Connection, found: Sequence[Placed[EnvironmentDecision]]) -> None:
    for decision in (one.document for one in found):
        here = environments.c.hash == decision.environment
        document = connection.execute(select(environments.c.document).where(here)).scalar()
        if document is None:  # in a database that is filled again its pack may be damaged in storage
            continue
        listed = ListedEnvironment.model_validate_json(document)
        state = "admitted" if decision.admitted else "refused"
        text = listed.model_copy(update={"state": state, "decision": decision}).model_dump_json()
        changed = update(environments).where(here).values(state=state, decided=decision.decided, document=text)
        connection.execute(changed)


def _counts(connection: Connection, author: str) -> SubmissionCounts:
    own = func.sum(case((environments.c.author == author, 1), else_=0))
    rows = connection.execute(select(environments.c.state, func.count(), own).group_by(environments.c.state)).all()
    waiting = [(count, int(of_author)) for state, count, of_author in rows if state == "waiting"]
    listed = sum(count for state, count, _ in rows if state != "refused")
    return SubmissionCounts(listed, *(waiting[0] if waiting else (0, 0)))


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
