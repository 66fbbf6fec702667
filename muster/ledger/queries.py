"""Read the database: as the messages that go out, and as single facts that other modules decide by."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from sqlalchemy import Connection, Table, and_, bindparam, exists, func, or_, select, tuple_

from muster.constants import HOUR_SECONDS
from muster.ledger.database import Database
from muster.ledger.gas_pace import hourly_gas
from muster.ledger.read_model import read_nodes
from muster.ledger.run_facts import ChainState, KeptFacts, read_facts
from muster.ledger.statements import ANY_OF, rows_of_any
from muster.ledger.tables import calls, cases, commitments, nodes, uploads, verdicts
from muster.ledger.tallies import OUTCOME, STATES, CommitmentState, set_statuses
from muster.protocol.acceptance import UNREFUTED, CaseState, Decision, Opinion, State, decide, ended_decision
from muster.protocol.keys import Keys, RunKeys
from muster.protocol.looks import Seating, hold_seconds
from muster.protocol.messages import Demand, NodeReport, Upload, Verdict
from muster.protocol.reasons import Reason
from muster.protocol.terms import Terms
from muster.protocol.work_rules import RunFacts, blocking_reason
from muster.runtime.kept import KeptAnswers

MAX_NODE_VERDICTS: Final = 50

MAX_KEPT_VERSIONS: Final = 4
"""Answers that are kept, each of a version of the database and an hour: what all ask for, and what is being made."""


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
        groups_wanted: float,
    ) -> None:
        """`groups_wanted`: work is wanted while fewer fresh groups wait for the trainer."""
        self._database = database
        self.run = run
        self.terms = terms
        self.keys = keys or RunKeys()
        """As the follower read them last."""
        self.groups_wanted = groups_wanted
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

    def call_of(self, order: str, opens: int, drawn_by: str) -> Seating:
        """Return the call that a row of the table `calls` is."""
        return Seating(json.loads(order), opens, hold_seconds(self.terms), self.terms.accepts_required, drawn_by)

    async def demand(self) -> Demand:
        """Return whether fewer fresh groups wait for the trainer than it needs, and it still needs any."""
        return (await self._work())[1]

    async def facts(self) -> RunFacts:
        """Return what limits the workers of this run now, for `muster.protocol.work_rules` to judge."""
        return (await self._work())[0].at(self.chain)

    async def _work(self) -> tuple[KeptFacts, Demand]:
        """Return both, read at once: each needs all workers."""
        chain = self.chain
        return await self._keep(chain.now // HOUR_SECONDS, lambda connection: self._read(connection, chain))

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
            wanted=not (facts.closed or facts.finished) and waiting < self.groups_wanted,
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

    async def _keep(self, hour: int, make: Callable[[Connection], Any]) -> Any:
        """Return an answer, computed once for each version of the database and hour, however many ask meanwhile."""
        return await self._kept.get((await self._database.current_version(), hour), lambda: self._database.read(make))

    def update_status(self, connection: Connection, node: str, index: int) -> None:
        """Decide a commitment's status again."""
        self.update_statuses(connection, ONE, node=node, index=index)

    def update_statuses(
        self, connection: Connection, which: CommitmentSelection, **given: Any
    ) -> dict[tuple[str, int], Decision]:
        """Decide the selected commitments again, as all is now; return their statuses by node and index."""
        found = self.decide(connection, which, **given)
        set_statuses(connection, [(one, new.state, new.reason) for one, new in found])
        return {(one.node, one.index): new for one, new in found}

    def decide(
        self, connection: Connection, which: CommitmentSelection, **given: Any
    ) -> list[tuple[CommitmentState, Decision]]:
        """Return the selected commitments as they are counted, each with what became of it."""
        opinions, opened = defaultdict[tuple, list[Opinion]](list), defaultdict[tuple, list[CaseState]](list)
        for row in connection.execute(which.opinions, given):
            opinions[row.node, row.index].append(Opinion(*list(row)[2:]))
        for row in connection.execute(which.cases, given):
            opened[row.node, row.index].append(CaseState(*list(row)[2:]))
        rows: Any = connection.execute(which.calls, given) if opinions else ()
        called = {(node, index): self.call_of(*row) for node, index, *row in rows}
        work = [CommitmentState(*row) for row in connection.execute(which.states, given)]
        found = []
        for one in work:
            if one.ended is not None:
                assert one.day is not None, "its summary has a day"
                ended = cast(State, one.ended), cast(Reason | None, one.ended_by)
                found.append(ended_decision(*ended, one.day, jailed=one.jailed))
                continue
            decision = decide(
                opinions[one.node, one.index],
                opened[one.node, one.index],
                jailed=one.jailed,
                accepts_required=self.terms.accepts_required,
                call=called.get((one.node, one.index)),
            )
            found.append(decision)
        return list(zip(work, found, strict=True))


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
_SAID: Final = verdicts.c["validator", "accepted", "reason", "came"]
_ABOUT_ROWS: Final = verdicts.c["position", "drawn_by", "refuted"]


def _selection(condition: Any) -> CommitmentSelection:
    about = and_(cases.c.node == commitments.c.node, cases.c.index == commitments.c.index)
    opinions = (
        select(*_KEY, *_SAID, nodes.c.status != "jailed", *_ABOUT_ROWS)
        .select_from(commitments.join(verdicts, same_work(verdicts, commitments.c)))
        .join(nodes, nodes.c.address == verdicts.c.validator)
        .where(nodes.c.role == "validator", condition)
    )
    return CommitmentSelection(
        STATES.where(condition),
        opinions.order_by(verdicts.c.id),
        select(*_KEY, *cases.c["challenger", "outcome", "id"]).join(cases, about).where(condition),
        select(*_KEY, *calls.c["order", "opens", "hash"]).join(calls, _CALLED).where(condition),
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
