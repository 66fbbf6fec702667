"""Looks as a run's trainer counted them: the hours' lists, checked, and what follows from them for a validator's pay.

The one reader of lists: for a validator's claims and status, the page, the demo's report and `muster look verify`. A
list says who is paid; the chain says what of that was posted and paid. `read_call` says who was called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from muster.chain.reads import ChainReader
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import HOUR_SECONDS, SAMPLE_BLOCKS
from muster.contracts import wages
from muster.contracts.codec import Transaction
from muster.contracts.runs import HourSealed
from muster.contracts.wages import Posted, Pot
from muster.errors import CheckError, MalformedError, MismatchError, NotFoundError, RefusedError
from muster.protocol.draws import opens_chain
from muster.protocol.eip712 import Domain
from muster.protocol.keys import RunKeys
from muster.protocol.looks import Seat, call_order, settles_at, wages_tree
from muster.protocol.messages import LookList, SignedText
from muster.protocol.receipts import open_text
from muster.protocol.terms import Terms
from muster.verification.look_facts import CalledWork, ShownLink
from muster.verification.rules import CommittedWork

MAX_LISTS: Final = 48
"""Lists that are read back for the one whose root was posted."""


def check_list(where: Domain, shown: SignedText, run: int, keys: RunKeys) -> LookList:
    """Return a list of this run. Raises CheckError unless its trainer signed it, of when it was due or later."""
    found, signer = open_text(where, shown, "looks", LookList)
    if found.run != run:
        raise MismatchError(f"it is a list of run {found.run}")
    if signer.lower() not in {one.keys.trainer.lower() for one in keys.since(settles_at(found.hour))}:
        raise MismatchError(f"the looks of hour {found.hour} are signed by {signer}, which was not the run's trainer")
    if len({one.validator.lower() for one in found.totals}) != len(found.totals):
        raise MalformedError(f"the list of hour {found.hour} names a validator's total twice")
    return found


def totals_of(found: LookList) -> dict[str, int]:
    """Return what each validator has earned after a list, in token wei."""
    return {one.validator: one.total for one in found.totals}


def root_of(run: int, totals: dict[str, int]) -> bytes:
    """Return the root that is posted for these totals, at least one."""
    return wages_tree(run, totals).root


@dataclass(frozen=True)
class WageAccount:
    """What a validator earned by looking, in token wei."""

    earned: int
    """By the latest list."""
    posted: int
    """Of that, what the root that was posted last says: it can be claimed."""
    paid: int
    barred_until: int = 0
    """Second until which it counts no more; 0: it counts."""
    claim: Transaction[int] | None = None
    """Pays the difference; None where there is none, or the list of the posted root is not to be had."""

    @property
    def due(self) -> int:
        return max(0, self.posted - self.paid)


@dataclass(frozen=True)
class WageCover:
    """How far the owner's money for looks reaches, in token wei."""

    pot: Pot
    left: int
    """Of what was funded, what no list has counted yet."""
    hourly: int
    """What the looks of the latest list's hour cost."""

    @property
    def hours(self) -> float | None:
        """Return for how many hours the money covers looks like these; None where they cost nothing."""
        return self.left / self.hourly if self.hourly else None


@dataclass
class LooksReader:
    """Reads the lists of one run. Methods raise TRANSIENT errors."""

    chain: ChainReader
    client: OrchestratorClient
    run: int

    async def list(self, hour: int | None = None) -> LookList | None:
        """Return the list of an hour, else the latest, checked; None where there is none."""
        try:
            shown = await self.client.looks(self.run, hour)
        except NotFoundError:
            return None
        return check_list(self.client.domain, shown, self.run, await self.chain.keys(self.run))

    async def readable(self, hour: int) -> LookList | None:
        """Return the list of an hour, None as well where it is not what it must be: others say what counts."""
        try:
            return await self.list(hour)
        except CheckError as error:
            if isinstance(error, RefusedError):
                raise
            return None

    async def posted(self) -> LookList | None:
        """Return the list whose root was posted last; None where none was, or the list is not to be had."""
        roots = [one.root for one in await self.chain.all_events(Posted) if one.run == self.run]
        latest = await self.list() if roots else None
        for hour in range(latest.hour, latest.hour - MAX_LISTS, -1) if latest else ():
            found = latest if latest and hour == latest.hour else await self.readable(hour)
            if found is not None and found.totals and root_of(self.run, totals_of(found)) == roots[-1]:
                return found
        return None

    async def account(self, validator: str) -> WageAccount:
        """Return what a validator earned, and how it claims what is due."""
        latest, posted = await self.list(), await self.posted()
        paid = await self.chain.call(wages.paid_to(self.run, validator))
        barred = next((one.barred_until for one in latest.totals if one.validator == validator), 0) if latest else 0
        earned = totals_of(latest).get(validator, 0) if latest else 0
        totals = totals_of(posted) if posted else {}
        total = totals.get(validator, 0)
        account = WageAccount(earned, total, paid, barred)
        if not account.due:
            return account
        tree = wages_tree(self.run, totals)
        place = sorted(totals, key=lambda one: int(one, 16)).index(validator)
        return replace(account, claim=wages.claim(self.run, tree.root, validator, total, tree.proof(place)))

    async def cover(self) -> WageCover:
        """Return how far the owner's money reaches."""
        pot, latest = await self.chain.call(wages.pot(self.run)), await self.list()
        counted = sum(totals_of(latest).values()) if latest else 0
        hourly = sum(look.counted for look in latest.looks) if latest else 0
        return WageCover(pot, max(0, pot.funded - counted), hourly)


def check_order(
    order: Sequence[str], seats: Sequence[Seat], *, block_hash: bytes, node: str, index: int, at: int, terms: Terms
) -> None:
    """Raise MismatchError unless validators are called in this order to a commitment, whichever of `seats` rest.

    Who rests is the orchestrator's word: a validator sees it by being called last. The rest is as `call_order`.
    """
    drawn = {"block_hash": block_hash, "node": node, "index": index, "at": at, "terms": terms}
    for first in range(len(order), -1, -1):
        before = set(order[:first])
        if call_order([replace(seat, rests=seat.address not in before) for seat in seats], **drawn) == list(order):
            return
    raise MismatchError(f"the orchestrator calls others to commitment {index} of {node} than the block's hash does")


async def shown_links(chain: ChainReader, seals: Iterable[HourSealed]) -> dict[tuple[str, int], ShownLink]:
    """Return by validator and hour the links that seals show; none that is not of its validator's chain.

    The contract does not look at links. Raises TRANSIENT errors.
    """
    seals = list(seals)
    who = sorted({one.validator for one in seals})
    nodes = dict(zip(who, await chain.nodes(who), strict=True))
    seconds = await chain.block_times({one.at.block for one in seals})

    def is_true(seal: HourSealed) -> bool:
        node = nodes[seal.validator]
        return opens_chain(node.draw_tip, seal.link, seal.hour - node.registered_at // HOUR_SECONDS)

    true = await asyncio.to_thread(lambda: [one for one in seals if is_true(one)])
    return {(one.validator, one.hour): ShownLink(one.link, seconds[one.at.block]) for one in true}


async def read_call(chain: ChainReader, client: OrchestratorClient, terms: Terms, c: CommittedWork) -> CalledWork:
    """Return who is called to a commitment, as the orchestrator says and the chain allows. Raises TRANSIENT errors."""
    drawing, committed = await chain.block(c.block + SAMPLE_BLOCKS), await chain.block(c.block)
    answer, [node] = await client.call(c.run, c.node, c.index), await chain.nodes([c.node])
    seats, at, active = await chain.seats(c.run, drawing.timestamp), drawing.timestamp, await chain.validators(c.run)
    seats = [seat for seat in seats if seat.address in answer.order or seat.address in active]  # others left meanwhile
    check_order(answer.order, seats, block_hash=drawing.hash, node=c.node, index=c.index, at=at, terms=terms)
    if answer.opens < committed.timestamp:
        raise MismatchError(f"the orchestrator opens commitment {c.index} of {c.node} before it was made")
    order = tuple(answer.order)
    return CalledWork(c, order, answer.opens, drawing.hash, operator=node.operator, work_class=node.work_class)
