"""Read the database: as the messages that go out, and as single facts that other modules decide by."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from sqlalchemy import Connection, Table, and_, bindparam, exists, func, or_, select, tuple_

from muster.constants import HOUR_SECONDS, MAX_ACCEPTED
from muster.protocol.keys import Keys, RunKeys
from muster.protocol.looks import Seating, hold_seconds
from muster.protocol.messages import AcceptedCommitment, Demand, NodeReport, Upload, Verdict
from muster.protocol.terms import Terms
from muster.protocol.work_rules import RunFacts, blocking_reason
from orchestrator.commitment_status import (
    UNREFUTED,
    CaseState,
    CommitmentStatus,
    Opinion,
    State,
    commitment_status,
    ended_status,
)
from orchestrator.database import LANE, Database
from orchestrator.gas_pace import hourly_gas
from orchestrator.kept import KeptAnswers
from orchestrator.read_model import read_nodes
from orchestrator.run_facts import ChainState, KeptFacts, latest_step, read_facts
from orchestrator.statements import ANY_OF, rows_of_any
from orchestrator.tables import WAITING, calls, cases, commitments, nodes, uploads, verdicts
from orchestrator.tallies import OUTCOME, STATES, CommitmentState, set_statuses

MAX_NODE_VERDICTS: Final = 50

MAX_KEPT_VERSIONS: Final = 4
"""Answers that are kept, each of a version of the database and an hour: what all ask for, and what is being made."""

_LISTED: Final = ("step", "node", "index", "root", "file_hash", "size")


@dataclass(frozen=True)
class NodeRecord:
    """A node of the run, as the chain has it."""

    address: str
    operator: str
    role: str
    status: str

    @property
    def active(self) -> bool:
        return self.status == "active"


class Queries:
    """Queries about one run. Answers that everybody polls are kept per version of the database."""

    def __init__(
        self,
        database: Database,
        run: int,
        terms: Terms,
        keys: RunKeys | None = None,
        *,
        batch_groups: int,
        demand_batches: float,
    ) -> None:
        self._database = database
        self.run = run
        self.terms = terms
        self.keys = keys or RunKeys()
        """As the follower read them last."""
        self._groups_wanted = batch_groups * demand_batches
        self._kept = KeptAnswers(math.inf, most=MAX_KEPT_VERSIONS)
        self.chain = ChainState()
        """What the follower read at its last poll."""

    @property
    def keys_now(self) -> Keys:
        """Return the keys in force at the newest block that was read."""
        return self.keys.at(self.chain.now)

    async def upload(self, node: str, index: int, root: str) -> Upload | None:
        """Return which file a node uploaded for (index, root)."""
        return await self._database.read(lambda connection: upload_of(connection, node, index, root))

    async def accepted(self, min_step: int) -> bytes:
        """Return accepted commitments that no report has used or left out, oldest first, as a JSON list.

        The oldest MAX_ACCEPTED within the async level, of these the ones of `min_step` and later: whatever is asked
        for, it is read once for each version of the database.
        """
        found = await self._keep("accepted", 0, lambda connection: _encoded(self._accepted(connection)))
        return _as_list(found, min_step)

    def _accepted(self, connection: Connection) -> list[AcceptedCommitment]:
        """Return the oldest accepted commitments that can still be trained on, with the verdicts that accepted them."""
        order = ("step", "block", "node", "index")
        oldest = (latest_step(connection) or 0) - self.terms.async_level
        first = select(*commitments.c[order], commitments.c.root, *uploads.c["file_hash", "size"])
        first = first.join(uploads, same_work(commitments, uploads.c)).where(WAITING, commitments.c.step >= oldest)
        first = first.order_by(*commitments.c[order]).limit(MAX_ACCEPTED).subquery()
        query = (
            select(*first.c[_LISTED], calls.c.order, calls.c.opens, verdicts.c.came, verdicts.c.document)
            .join(verdicts, same_work(first, verdicts.c))
            .join(calls, and_(calls.c.node == first.c.node, calls.c.index == first.c.index))
            .join(nodes, nodes.c.address == verdicts.c.validator)
            .where(nodes.c.status != "jailed", nodes.c.role == "validator", DRAWN)
            .order_by(*first.c[order], verdicts.c.id)
        )
        signed: dict[tuple, list[tuple[Verdict, int]]] = defaultdict(list)
        for *row, came, document in connection.execute(query):
            signed[tuple(row)].append((Verdict.model_validate_json(document), came))
        works = []
        for (*listed, called, opens), given in signed.items():
            takers = self.call_of(called, opens).takers((verdict.validator, came) for verdict, came in given)
            accepts = [verdict for verdict, _ in given if verdict.accepted and verdict.validator in takers]
            works.append(AcceptedCommitment(**dict(zip(_LISTED, listed, strict=True)), verdicts=accepts))
        return works

    def call_of(self, order: str, opens: int) -> Seating:
        """Return the call that a row of the table `calls` is."""
        return Seating(json.loads(order), opens, hold_seconds(self.terms), self.terms.accepts_required)

    async def demand(self) -> Demand:
        """Return whether fewer fresh groups wait for the trainer than it needs, and it still needs any."""
        return (await self._work())[1]

    async def facts(self) -> RunFacts:
        """Return what limits the workers of this run now, for `muster.protocol.work_rules` to judge."""
        return (await self._work())[0].at(self.chain)

    async def _work(self) -> tuple[KeptFacts, Demand]:
        """Return both, read at once: each needs all workers."""
        chain = self.chain
        return await self._keep("work", chain.now // HOUR_SECONDS, lambda connection: self._read(connection, chain))

    def _read(self, connection: Connection, chain: ChainState) -> tuple[KeptFacts, Demand]:
        kept = read_facts(connection, chain.now // HOUR_SECONDS, self.terms)
        facts = kept.at(chain)
        if facts.step is None:
            return kept, Demand(run=self.run, step=0, wanted=False, waiting_groups=0)
        query = (
            select(func.count())
            .where(commitments.c.status.in_(UNREFUTED), commitments.c.spent.is_(False))
            .where(commitments.c.step >= facts.step - self.terms.async_level)
        )
        waiting = connection.execute(query).scalar() or 0
        waiting *= self.terms.groups_per_commitment
        demand = Demand(
            run=self.run,
            step=facts.step,
            wanted=not (facts.closed or facts.finished) and waiting < self._groups_wanted,
            waiting_groups=waiting,
            newcomers=len(facts.newcomers),
            able_workers=len(facts.able),
        )
        return kept, demand

    async def node_report(self, address: str) -> NodeReport | None:
        """Return how a node's commitments ended; None for a stranger. `accepted` and `rejected` count commitments."""
        facts = await self.facts()
        return await self._database.read(lambda connection: self._node_report(connection, address, facts))

    def _node_report(self, connection: Connection, address: str, facts: RunFacts) -> NodeReport | None:
        found = read_nodes(connection, select(nodes).where(nodes.c.address == address))
        if not found:
            return None
        made = found[0].commitments
        return NodeReport(
            address=address,
            commitments=made.total,
            rollouts=made.total * self.terms.positions,
            accepted=made.accepted,
            rejected=found[0].rejected,
            verdicts=_latest_about(connection, address),
            blocked=blocking_reason(facts.workers[address], facts) if address in facts.workers else "",
            hourly_gas=hourly_gas(connection, address, self.terms, self.chain.now),
        )

    async def _keep(self, name: str, hour: int, make: Callable[[Connection], Any]) -> Any:
        """Return an answer, computed once for each version of the database and hour, however many ask meanwhile."""

        async def read() -> Any:
            LANE.set("members")  # of the task that makes it for all, though a stranger may have asked first
            return await self._database.read(make)

        return await self._kept.get((name, await self._database.current_version(), hour), read)

    def update_status(self, connection: Connection, node: str, index: int) -> None:
        """Decide a commitment's status again."""
        self.update_statuses(connection, ONE, node=node, index=index)

    def update_statuses(
        self, connection: Connection, which: CommitmentSelection, **given: Any
    ) -> dict[tuple[str, int], CommitmentStatus]:
        """Decide the selected commitments again, as all is now; return their statuses by node and index."""
        found = self.decide(connection, which, **given)
        set_statuses(connection, [(one, new.state, new.reason) for one, new in found])
        return {(one.node, one.index): new for one, new in found}

    def decide(
        self, connection: Connection, which: CommitmentSelection, **given: Any
    ) -> list[tuple[CommitmentState, CommitmentStatus]]:
        """Return the selected commitments as they are counted, each with the status that it is to have."""
        opinions, opened = defaultdict[tuple, list[Opinion]](list), defaultdict[tuple, list[CaseState]](list)
        for row in connection.execute(which.opinions, given):
            opinions[row.node, row.index].append(Opinion(*list(row)[2:]))
        for row in connection.execute(which.cases, given):
            opened[row.node, row.index].append(CaseState(*list(row)[2:]))
        rows: Any = connection.execute(which.calls, given) if opinions else ()
        called = {(node, index): self.call_of(order, opens) for node, index, order, opens in rows}
        work = [CommitmentState(*row) for row in connection.execute(which.states, given)]
        found = []
        for one in work:
            if one.ended is not None:
                found.append(ended_status(cast(State, one.ended), one.ended_by, jailed=one.jailed))
                continue
            status = commitment_status(
                opinions[one.node, one.index],
                opened[one.node, one.index],
                jailed=one.jailed,
                accepts_required=self.terms.accepts_required,
                call=called.get((one.node, one.index)),
            )
            found.append(status)
        return list(zip(work, found, strict=True))


def _encoded(works: Sequence[AcceptedCommitment]) -> list[tuple[int, bytes]]:
    return [(work.step, work.model_dump_json().encode()) for work in works]


def _as_list(works: Sequence[tuple[int, bytes]], min_step: int) -> bytes:
    return b"[" + b",".join(text for step, text in works if step >= min_step) + b"]"


# Single facts, for callers that have a connection


def same_work(table: Any, work: Any) -> Any:
    """Return the condition that a row is about the commitment and root of `work`: a message, a row, or columns."""
    return and_(table.c.node == work.node, table.c.index == work.index, table.c.root == work.root)


_MEMBERS: Final = select(*nodes.c["address", "operator", "role", "status"]).where(nodes.c.address.in_(ANY_OF))
_LAST: Final = select(func.max(commitments.c.index)).where(commitments.c.node == bindparam("node"))
"""Made once, as others here: making a statement takes many times as long as running it."""


def members_of(connection: Connection, addresses: Sequence[str]) -> list[NodeRecord | None]:
    """Return the nodes of these addresses, None for what is none of the run."""
    found = {row.address: NodeRecord(*row) for row in rows_of_any(connection, _MEMBERS, addresses)}
    return [found.get(address) for address in addresses]


def member_of(connection: Connection, address: str) -> NodeRecord | None:
    """Return the node of this address, if it is one of the run."""
    return members_of(connection, [address])[0]


def next_index_of(connection: Connection, node: str) -> int:
    """Return the index of the node's next commitment, as far as the chain was read."""
    last = connection.execute(_LAST, {"node": node}).scalar()
    return 0 if last is None else last + 1


_UPLOAD: Final = select(uploads.c.document).where(
    *(uploads.c[name] == bindparam(name) for name in ("node", "index", "root"))
)


def upload_of(connection: Connection, node: str, index: int, root: str) -> Upload | None:
    document = connection.execute(_UPLOAD, {"node": node, "index": index, "root": root}).scalar_one_or_none()
    return Upload.model_validate_json(document) if document else None


def verdict_of(connection: Connection, validator: str, work: Any) -> Verdict | None:
    """Return a validator's verdict on a commitment. `work` as in `same_work`."""
    query = select(verdicts.c.document).where(verdicts.c.validator == validator, same_work(verdicts, work))
    document = connection.execute(query).scalar_one_or_none()
    return Verdict.model_validate_json(document) if document else None


def _latest_about(connection: Connection, node: str) -> list[Verdict]:
    """Return verdicts about a node's work, rejections first, then the latest."""
    query = select(verdicts.c.document).where(verdicts.c.node == node)
    texts = connection.execute(query.order_by(verdicts.c.accepted, verdicts.c.id.desc()).limit(MAX_NODE_VERDICTS))
    return [Verdict.model_validate_json(text) for text in texts.scalars()]


# Commitments whose status is decided


@dataclass(frozen=True)
class CommitmentSelection:
    """Statements that read some commitments and what is said of them."""

    states: Any
    """Rows of CommitmentState."""
    opinions: Any
    cases: Any
    calls: Any
    """Node and index first, in these three."""


_CALLED: Final = and_(calls.c.node == commitments.c.node, calls.c.index == commitments.c.index)
DRAWN: Final = and_(
    verdicts.c.refuted.is_(False), or_(verdicts.c.drawn_by.is_(None), verdicts.c.drawn_by == calls.c.hash)
)
"""Of verdicts: not refuted, and not about rows that another block drew, as after a reorg."""


def _selection(condition: Any) -> CommitmentSelection:
    about = and_(cases.c.node == commitments.c.node, cases.c.index == commitments.c.index)
    opinions = (
        select(*_KEY, *verdicts.c["validator", "accepted", "reason", "came"], nodes.c.status != "jailed")
        .select_from(commitments.join(verdicts, same_work(verdicts, commitments.c)))
        .join(nodes, nodes.c.address == verdicts.c.validator)
        .outerjoin(calls, _CALLED)
        .where(nodes.c.role == "validator", DRAWN, condition)
    )
    return CommitmentSelection(
        STATES.where(condition),
        opinions.order_by(verdicts.c.id),
        select(*_KEY, cases.c.challenger, cases.c.outcome).join(cases, about).where(condition),
        select(*_KEY, calls.c.order, calls.c.opens).join(calls, _CALLED).where(condition),
    )


def named(works: Collection[tuple[str, int]]) -> dict[str, Any]:
    """Return the parameters of NAMED for some commitments, by node and index."""
    owners, indices = zip(*works, strict=True)
    return {"owners": sorted(set(owners)), "indices": sorted(set(indices)), "works": sorted(works)}


def _named_in(table: Table) -> Any:
    """Return the condition that a table has a row about a commitment."""
    about = table.alias()
    return exists().where(about.c.node == commitments.c.node, about.c.index == commitments.c.index)


_KEY: Final = commitments.c["node", "index"]
_VALIDATORS, _OWNERS = verdicts.alias(), nodes.alias()
_JUDGED: Final = select(*_VALIDATORS.c["node", "index"]).where(_VALIDATORS.c.validator == bindparam("validator"))
_CONVICTED: Final = exists().where(_OWNERS.c.address == commitments.c.node, _OWNERS.c.status == "jailed")
_READ: Final = commitments.c.block.between(bindparam("first"), bindparam("last"))

ONE: Final = _selection(and_(commitments.c.node == bindparam("node"), commitments.c.index == bindparam("index")))
NAMED: Final = _selection(
    and_(
        commitments.c.node.in_(bindparam("owners", expanding=True)),  # SQLite finds pairs by no index
        commitments.c.index.in_(bindparam("indices", expanding=True)),
        tuple_(*_KEY).in_(bindparam("works", expanding=True)),
    )
)
"""Those of `named`."""
OF_NODE: Final = _selection(commitments.c.node == bindparam("node"))
JUDGED_BY: Final = _selection(tuple_(*_KEY).in_(_JUDGED))
_ENDED: Final = exists().where(OUTCOME).correlate(commitments)
IN_BLOCKS: Final = _selection(and_(_READ, or_(_named_in(verdicts), _named_in(cases), _CONVICTED, _ENDED)))
"""Those of which anything is known: all others are pending."""
