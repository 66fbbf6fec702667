"""The owner's side of traps: who is picked to plant one, tickets, and what is public once an epoch's master is shown.

The master of a trap epoch is the owner's secret, and what its lottery picks is the node's and the owner's. So every
answer to a question is a signature of one size, made in one way, be it a promise or not. A ticket is given

1. to an active worker whom the owner did not exclude (`orchestrator.no_tickets`), for a commitment that the lottery
   picks, of a step that is published;
2. for a map of exactly as many rows as a trap has, which the node has signed with the commitment's root;
3. once the file of that root is here, with the second of its receipt, and before the chain is seen to have the
   commitment; not for a second in which another storage key signed;
4. once: the same request gets the same ticket, another map for the same root none;
5. while its epoch's master is secret.

Tickets and maps are kept in storage too. They are secret before their epoch's master is on chain.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection
from typing import Final

from eth_utils.address import to_checksum_address
from sqlalchemy import Connection, select

from muster.clients.storage import ContentStore
from muster.errors import CheckError
from muster.grading.masters import Masters
from muster.protocol.eip712 import UNSIGNED, Domain, TypedSigner, sign_message
from muster.protocol.hashes import hash_bytes
from muster.protocol.masters import epoch_of
from muster.protocol.messages import (
    OpenedTrap,
    TicketRequest,
    TrapAnswer,
    TrapPage,
    TrapPromise,
    TrapQuestion,
    TrapTicket,
)
from muster.protocol.terms import Terms
from muster.protocol.traps import check_consent, check_map, is_picked
from muster.runtime import telemetry
from orchestrator import problems
from orchestrator.auth import Caller
from orchestrator.database import Database
from orchestrator.planted import KeptTicket
from orchestrator.queries import Queries, next_index_of, upload_of
from orchestrator.run_facts import latest_step
from orchestrator.statements import insert_once, row_of
from orchestrator.tables import checkpoints, nodes, tickets, trap_masters
from orchestrator.tallies import find_commitment

AHEAD: Final = 4
"""Indices a node may ask about from its next one on: fewer than it may upload for, since it makes two ahead at most."""

PAGE: Final = 100
"""Opened traps of one answer."""

GIVEN: Final = telemetry.counter("trap_tickets", "Tickets of traps given to workers")
log = telemetry.logger("orchestrator")


class TrapDesk:
    """Answers workers, and shows what is opened. One per service."""

    def __init__(
        self,
        where: Domain,
        signer: TypedSigner,
        queries: Queries,
        database: Database,
        masters: Masters | None,
        receipt_second: Callable[[], int],
        *,
        storage_url: str,
        no_tickets: Collection[str] = (),
    ) -> None:
        """`receipt_second`: as `Uploads.receipt_second`. `no_tickets`: nodes that are promised nothing."""
        self._where = where
        self._signer = signer
        self._queries = queries
        self._database = database
        self._masters = masters
        self._receipt_second = receipt_second
        self._no_tickets = {node.lower() for node in no_tickets}
        self.copies = ContentStore(storage_url, "tickets")

    @property
    def _terms(self) -> Terms:
        return self._queries.terms

    async def answer(self, caller: Caller, question: TrapQuestion) -> TrapAnswer:
        """Answer whether a commitment is to be a trap, as only the asking node can tell."""
        picked, next_index = await self._database.read(
            lambda connection: (
                self._is_picked(connection, caller, question.index, question.step),
                next_index_of(connection, caller.address),
            )
        )
        if not next_index <= question.index < next_index + AHEAD:
            raise problems.conflict(
                f"index {question.index} is not one of the node's next {AHEAD}, from {next_index} on"
            )
        node = to_checksum_address(secrets.token_bytes(20))
        promise = TrapPromise(
            run=self._queries.run,
            node=caller.address if picked else node,
            index=question.index,
            step=question.step,
            signature=UNSIGNED,
        )
        return TrapAnswer(signature=sign_message(self._signer, self._where, promise).signature)

    async def give(self, caller: Caller, request: TicketRequest) -> TrapTicket:
        """Return the ticket of a trap whose file is here. Raises RefusedError as the module's rules say."""
        # 1. Who asks, and about what.
        consent = request.consent
        if consent.run != self._queries.run:
            raise problems.another_run(consent.run, self._queries.run)
        if consent.node != caller.address:
            raise problems.not_allowed(f"the trap is {consent.node}'s, the request {caller.address}'s")
        try:
            check_consent(self._where, consent)
            check_map(self._terms, consent.index, request.map, consent.map_root)
        except CheckError as error:
            raise problems.not_allowed(str(error)) from error

        # 2. Whether there is one, or may be.
        known = await self._database.read(lambda connection: self._known(connection, caller, request))
        if known is not None:
            if known.consent.map_root != consent.map_root:
                raise problems.conflict(f"index {consent.index} has a ticket of this root and of another map")
            return known.ticket

        # 3. Storage, then the database.
        self._receipt_second()  # what was read of the chain is new, and this key is the storage key
        ticket = sign_message(self._signer, self._where, consent)
        kept = KeptTicket(step=request.step, trap=OpenedTrap(ticket=ticket, consent=consent, map=request.map))
        await self.copies.put(kept.model_dump_json().encode())
        if not await self.record(kept, time.time()):
            return await self.give(caller, request)  # another request with this node's key was faster
        GIVEN.inc()
        return ticket

    def _known(self, connection: Connection, caller: Caller, request: TicketRequest) -> OpenedTrap | None:
        """Return the trap whose ticket was given for this root. Raises RefusedError where none may be given."""
        consent = request.consent
        same = [tickets.c[name] == getattr(consent, name) for name in ("node", "index", "root")]
        document = connection.execute(select(tickets.c.document).where(*same)).scalar()
        if document is not None:
            return KeptTicket.model_validate_json(document).trap
        if find_commitment(connection, consent.node, consent.index) is not None:
            raise problems.conflict(f"index {consent.index} is committed: a ticket would be too late")
        if not self._is_picked(connection, caller, consent.index, request.step):
            raise problems.not_allowed(f"commitment {consent.index} of {caller.address} is to be no trap")
        upload = upload_of(connection, consent.node, consent.index, consent.root)
        if upload is None:
            raise problems.conflict(f"no file of index {consent.index} and this root is uploaded", "upload it first")
        if consent.stored_at != (second := upload.receipt.stored_at):
            raise problems.conflict(f"the ticket is of second {consent.stored_at}, the file's receipt of {second}")
        if self._queries.keys.at(second).storage_key != self._signer.address:
            raise problems.conflict(f"another storage key signed in second {second}: a ticket of it would not count")
        return None

    def _is_picked(self, connection: Connection, caller: Caller, index: int, step: int) -> bool:
        """Return whether the lottery picks a commitment and its node may have a ticket. Raises RefusedError."""
        # 1. Who asks about what.
        if self._masters is None:
            raise problems.not_found("this orchestrator has no masters of traps", "set orchestrator.trap_masters")
        member, newest = caller.member, latest_step(connection)
        if member is None or member.role != "worker" or not member.active:
            raise problems.not_allowed(f"{caller.address} is no active worker of this run", "muster worker join")
        if newest is None or step > newest:
            raise problems.too_early(f"step {step} is not published")

        epoch = epoch_of(self._terms.trap_series, step)
        if _is_shown(connection, epoch):
            raise problems.conflict(f"the master of trap epoch {epoch} is shown, so it has no more traps")

        # 2. What the lottery says.
        joined = select(checkpoints.c.entropy).join(nodes, nodes.c.first_step == checkpoints.c.step)
        entropy = connection.execute(joined.where(nodes.c.address == caller.address)).scalar()
        if entropy is None:
            raise problems.too_early(f"the first step of {caller.address} is not published")
        master = self._masters.of(epoch)
        every, node = self._terms.trap_every, caller.address
        picked = is_picked(master=master, entropy=hash_bytes(entropy), node=node, index=index, every=every)
        return picked and node.lower() not in self._no_tickets

    async def record(self, kept: KeptTicket, received: float) -> bool:
        """Record a ticket. Return False when its (node, index, root) has one."""
        epoch = epoch_of(self._terms.trap_series, kept.step)
        row = row_of(tickets, kept.trap.ticket, epoch=epoch, document=kept.model_dump_json(), received=received)
        return await self._database.write(lambda connection: insert_once(connection, tickets, row), news=False)

    async def opened(self, epoch: int, after: int) -> TrapPage:
        """Return the traps of an epoch whose master is shown, in the order of their tickets after a cursor."""
        query = select(tickets.c.id, tickets.c.document).where(tickets.c.epoch == epoch, tickets.c.id > after)
        query = query.order_by(tickets.c.id).limit(PAGE)
        found = await self._database.read(
            lambda connection: connection.execute(query).all() if _is_shown(connection, epoch) else None
        )
        if found is None:
            raise problems.too_early(f"the master of trap epoch {epoch} is not shown")
        traps = [KeptTicket.model_validate_json(document).trap for _, document in found]
        return TrapPage(traps=traps, cursor=found[-1][0] if found else after)


def _is_shown(connection: Connection, epoch: int) -> bool:
    return connection.execute(select(trap_masters.c.epoch).where(trap_masters.c.epoch == epoch)).scalar() is not None
