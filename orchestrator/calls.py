"""Tell validators which commitments are theirs to look at, and remember who was called (`muster.protocol.looks`).

The order of a commitment is made when it is first needed, once the block that draws it is read, and stays: it goes with
each verdict into storage. Where a reorg takes that block it is made again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, and_, bindparam, exists, func, or_, select, update

from muster.constants import HOUR_SECONDS, SAMPLE_BLOCKS
from muster.ledger.chain_follower import Follower
from muster.ledger.database import Database
from muster.ledger.documents import newest_sums
from muster.ledger.queries import ONE, Queries, upload_of
from muster.ledger.statements import insert_once
from muster.ledger.tables import calls, commitments, nodes, seals, uploads, verdicts
from muster.ledger.tallies import DAY_HOURS, CommitmentState, find_commitment
from muster.protocol.acceptance import Opinion, eligible
from muster.protocol.hashes import hex_hash
from muster.protocol.looks import LAPSES, LINK_HOURS, Seat, Seating, call_order
from muster.protocol.messages import CallAnswer, CallQuestion
from muster.runtime import problems
from muster.runtime.kept import KeptAnswers
from orchestrator.auth import Caller

DAY_SECONDS: Final = DAY_HOURS * HOUR_SECONDS


@dataclass(frozen=True)
class _CallFacts:
    """What the database says of a commitment that validators may be called to."""

    committed: CommitmentState | None
    block: int | None
    stored_at: int
    """Second of its file's receipt; 0 without one."""
    call: Any
    """Its row of the table `calls`, if it has one."""


@dataclass(frozen=True)
class _Called:
    """A call, and the verdicts that there are about its commitment."""

    root: str
    call: Seating
    said: Sequence[Opinion]


class Calls:
    """Calls validators. One per service."""

    def __init__(self, queries: Queries, follower: Follower, database: Database) -> None:
        self._queries, self._follower, self._database = queries, follower, database
        self._making = KeptAnswers(0.0)
        """One at a time for each commitment, however many ask."""

    async def answer(self, caller: Caller, asked: CallQuestion) -> CallAnswer:
        """Answer a validator whether it may look now. Raises RefusedError where no one is called yet."""
        caller.active_validator()
        found = await self._read(asked.node, asked.index)
        if found.root != asked.root:
            raise problems.conflict(f"commitment {asked.index} of {asked.node} is to root {found.root}")
        own = next((one for one in found.said if one.validator == caller.address), None)
        if own is not None and own.reason != "data_missing":
            return CallAnswer(order=list(found.call.order), opens=found.call.opens, may_look=False)
        came, now = [(one.validator, one.came) for one in found.said if one is not own], self._queries.chain.now
        return CallAnswer(
            order=list(found.call.order),
            opens=found.call.opens,
            may_look=found.call.may_look(caller.address, came, now),
            turn_at=found.call.asks_again(caller.address, came, now),
        )

    async def order(self, node: str, index: int) -> CallAnswer:
        """Return who is called to a commitment, for anybody. Raises RefusedError where no one is yet."""
        call = (await self._read(node, index)).call
        return CallAnswer(order=list(call.order), opens=call.opens, may_look=False)

    async def _read(self, node: str, index: int) -> _Called:
        await self.ensure(node, index)

        def read(connection: Connection) -> _Called | None:
            facts, given = _facts(connection, node, index), {"node": node, "index": index}
            if facts.committed is None:
                raise problems.not_found(f"there is no commitment {index} of {node} yet")
            said = [Opinion(*list(one)[2:]) for one in connection.execute(ONE.opinions, given)]
            if facts.call is None:
                return None
            call = self._queries.call_of(facts.call.order, facts.call.opens, facts.call.hash)
            return _Called(facts.committed.root, call, [one for one in eligible(said, call) if one.trusted])

        found = await self._database.read(read)
        if found is None:
            raise problems.too_early(f"the block after commitment {index} of {node} is not read yet")
        return found

    async def ensure(self, node: str, index: int) -> None:
        """Call validators to a commitment, unless that is done or its drawing block is not there."""
        facts = await self._database.read(partial(_facts, node=node, index=index))
        if facts.committed is None:
            await self._follower.next_poll()  # it may have been mined a moment ago
            facts = await self._database.read(partial(_facts, node=node, index=index))
        if facts.committed is not None and facts.committed.day is None and facts.call is None:
            await self._making.get((node, index, facts.block), partial(self._make, node, index, facts))

    async def _make(self, node: str, index: int, facts: _CallFacts) -> None:
        """Draw the order of a commitment, if its drawing block is there."""
        assert facts.block is not None
        drawn = facts.block + SAMPLE_BLOCKS
        if self._follower.head_number < drawn:
            await self._follower.next_poll()
        made, drawing = await self._follower.chain.blocks([facts.block, drawn])
        if made is None or drawing is None or self._follower.head_number < drawn:
            return

        def write(connection: Connection) -> None:
            seats = self._seats(connection, drawn, drawing.timestamp)
            order = call_order(
                seats,
                block_hash=drawing.hash,
                node=node,
                index=index,
                at=drawing.timestamp,
                terms=self._queries.terms,
            )
            row = {"node": node, "index": index, "block": drawn, "hash": hex_hash(drawing.hash)}
            row |= {"order": json.dumps(order), "opens": max(made.timestamp, facts.stored_at)}
            if insert_once(connection, calls, row):
                self._queries.update_status(connection, node, index)

        await self._database.write(write)

    # Who is called last

    def _seats(self, connection: Connection, block: int, at: int) -> list[Seat]:
        """Return the validators that may be called. `block`: the drawing one, `at` its second."""
        query = select(*nodes.c["address", "joined"]).where(nodes.c.role == "validator", nodes.c.status == "active")
        known = connection.execute(query.where(nodes.c.block <= block)).all()
        lapses, sums = self._lapses(connection, at), newest_sums(connection)
        return [
            Seat(
                row.address,
                row.joined,
                rests=lapses[row.address] >= LAPSES
                or sums.get(row.address, {}).get("barred_until", 0) > at
                or _owes_link(connection, row.address, at),
            )
            for row in known
        ]

    def _lapses(self, connection: Connection, at: int) -> Counter[str]:
        """Count the places that validators let lapse in the UTC day of a second, up to it."""
        day = at // DAY_SECONDS * DAY_SECONDS
        found = list[tuple[str, int]]()
        ended = select(calls.c.lapsed).where(calls.c.lapsed > "", calls.c.opens >= day - DAY_SECONDS)
        for text in connection.execute(ended).scalars():
            found += map(tuple, json.loads(text))
        came: dict[tuple[str, int], list[tuple[str, int]]] = {}
        arrived: Any = connection.execute(_CAME).all()
        for node, index, validator, second in arrived:
            came.setdefault((node, index), []).append((validator, second))
        pending: Any = connection.execute(_PENDING).all()
        for node, index, *row in pending:
            call, said = self._queries.call_of(*row), came.get((node, index), [])
            lapsed = _lapsed(call, said, at)
            found += lapsed
            if len(call.takers(said)) == call.places or all(one.end <= at for one in call.rounds(said)):
                mine = calls.c.node == node, calls.c.index == index
                connection.execute(update(calls).where(*mine).values(lapsed=json.dumps(lapsed) if lapsed else ""))
        return Counter(validator for validator, second in found if day <= second <= at)


def _lapsed(call: Seating, came: Sequence[tuple[str, int]], at: int) -> list[tuple[str, int]]:
    """Return the validators whose places have lapsed by a second, and when. Pure."""
    over = [one for one in call.rounds(came) if one.end <= at]
    return [(validator, one.end) for one in over for validator in one.holders if validator not in one.takers]


_FILED: Final = exists().where(uploads.c.node == calls.c.node, uploads.c.index == calls.c.index)
_PENDING: Final = select(*calls.c["node", "index", "order", "opens", "hash"]).where(calls.c.lapsed.is_(None), _FILED)
"""No place lapses while there is no file to look at."""
_CAME: Final = (
    select(*verdicts.c["node", "index", "validator", "came"])
    .join(calls, and_(calls.c.node == verdicts.c.node, calls.c.index == verdicts.c.index))
    .where(calls.c.lapsed.is_(None), verdicts.c.refuted.is_(False))
    .where(or_(verdicts.c.drawn_by.is_(None), verdicts.c.drawn_by == calls.c.hash))
)


def _owes_link(connection: Connection, validator: str, at: int) -> bool:
    """Return whether a validator gave verdicts about an hour whose link is overdue. A link shows all earlier ones."""
    last = connection.execute(select(func.max(seals.c.hour)).where(seals.c.validator == validator)).scalar()
    since = 0 if last is None else last + 1
    about = and_(commitments.c.node == verdicts.c.node, commitments.c.index == verdicts.c.index)
    query = (
        select(verdicts.c.id)
        .join(commitments, about)
        .where(
            verdicts.c.validator == validator,
            verdicts.c.came >= since * HOUR_SECONDS,
            commitments.c.hour.between(since, at // HOUR_SECONDS - LINK_HOURS - 1),
        )
    )
    return connection.execute(query.limit(1)).scalar() is not None


_CALL: Final = select(calls).where(calls.c.node == bindparam("node"), calls.c.index == bindparam("index"))
_BLOCK: Final = select(commitments.c.block).where(
    commitments.c.node == bindparam("node"), commitments.c.index == bindparam("index")
)


def _facts(connection: Connection, node: str, index: int) -> _CallFacts:
    committed = find_commitment(connection, node, index)
    if committed is None:
        return _CallFacts(None, None, 0, None)
    given = {"node": node, "index": index}
    block, call = connection.execute(_BLOCK, given).scalar(), connection.execute(_CALL, given).one_or_none()
    upload = upload_of(connection, node, index, committed.root)
    return _CallFacts(committed, block, upload.receipt.stored_at if upload else 0, call)
