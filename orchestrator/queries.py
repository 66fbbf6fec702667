"""Read the database: as the messages that go out, and as single facts that other modules decide by."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import mean
from typing import Any, Final, cast

from sqlalchemy import BigInteger, Connection, Table, and_, bindparam, exists, func, literal, or_, select, tuple_

from muster.constants import HOUR_SECONDS, MAX_ACCEPTED
from muster.protocol.keys import Keys, RunKeys
from muster.protocol.messages import (
    AcceptedCommitment,
    Demand,
    GradePage,
    NodeReport,
    OwnInspection,
    ShownGrades,
    Upload,
    Verdict,
    VerdictPage,
    WaitAnswer,
    WaitQuestion,
)
from muster.protocol.reasons import TICKETED
from muster.protocol.terms import Terms
from muster.protocol.work_rules import RunFacts, blocking_reason
from orchestrator.commitment_status import (
    UNREFUTED,
    CaseState,
    CommitmentStatus,
    Opinion,
    State,
    agreed_grades,
    commitment_status,
    ended_status,
)
from orchestrator.database import LANE, Database
from orchestrator.gas_pace import hourly_gas
from orchestrator.kept import KeptAnswers
from orchestrator.planted import planted_rejections
from orchestrator.read_model import read_nodes
from orchestrator.run_facts import ChainState, KeptFacts, latest_step, read_facts
from orchestrator.statements import ANY_OF, rows_of_any
from orchestrator.tables import (
    WAITING,
    cases,
    checkpoints,
    commitments,
    grades,
    hidden_grades,
    hidden_spent,
    hidden_verdicts,
    nodes,
    spent,
    tickets,
    trap_masters,
    uploads,
    verdicts,
)
from orchestrator.tallies import OUTCOME, STATES, CommitmentState, set_statuses

MAX_VERDICTS: Final = 500
MAX_NODE_VERDICTS: Final = 50
MAX_GRADES: Final = 200
MAX_PAGE_CHARACTERS: Final = 6 << 20
"""Characters of verdicts or grades in one answer, unless a single one has more."""

MAX_KEPT_VERSIONS: Final = 4
"""Answers that are kept, each of a version of the database and an hour: what all ask for, and what is being made."""

BATCHES: Final = 8
"""Newest batches that are public, by which those that are not are guessed."""

_NO_BATCH: Final = "0x" + "00" * 32
"""The batch root of a step that no batch led to."""
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
        self.hides = terms.has_traps
        """Whether what depends on verdicts is hidden for a while (`orchestrator.hidden`)."""
        self._batch_groups, self._groups_wanted = batch_groups, batch_groups * demand_batches
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

    async def verdict_page(self, after: str | None) -> VerdictPage:
        """Return verdicts after a cursor. A cursor of a database that was deleted since starts from the first one."""
        documents, cursor = await self._after(verdicts, after, MAX_VERDICTS)
        return VerdictPage(verdicts=[Verdict.model_validate_json(text) for text in documents], cursor=cursor)

    async def still_waits(self, asked: WaitQuestion) -> WaitAnswer:
        """Return whether fewer validators than the run needs have given a verdict on a commitment, hidden or not."""

        def read(connection: Connection) -> set[str]:
            said = [opinions_of(connection, asked.node, asked.index, asked.root, one) for one in (PUBLIC, HIDDEN)]
            return {opinion.validator for opinions in said for opinion in opinions if opinion.trusted}

        return WaitAnswer(waits=len(await self._database.read(read)) < self.terms.accepts_required)

    async def accepted(self, min_step: int) -> bytes:
        """Return accepted commitments that no report has used or left out, oldest first, as a JSON list.

        The oldest MAX_ACCEPTED within the async level, of these the ones of `min_step` and later: whatever is asked
        for, it is read once for each version of the database.
        """
        found = await self._keep(
            "accepted", 0, lambda connection: _encoded(self._accepted(connection, PUBLIC, WAITING))
        )
        return _as_list(found, min_step)

    async def trainable(self, min_step: int) -> bytes:
        """Return what `accepted` does in a run with traps, with the work whose verdicts are hidden: for its trainer."""
        return _as_list(await self._database.read(self._trainable), min_step)

    def _trainable(self, connection: Connection) -> list[tuple[int, bytes]]:
        decided = self.decide(connection, UNDECIDED, oldest=self._oldest(connection))
        accepted = {(one.node, one.index) for one, status in decided if status.state == "accepted"}
        hidden = self._accepted(connection, HIDDEN, and_(_FRESH, _named_in(hidden_verdicts)))
        hidden = [work for work in hidden if (work.node, work.index) in accepted]
        public = self._accepted(connection, PUBLIC, and_(WAITING, _FRESH))
        return _encoded(sorted([*public, *hidden], key=attrgetter("step")))

    def _oldest(self, connection: Connection) -> int:
        """Return the oldest step whose work can still be trained on."""
        return (latest_step(connection) or 0) - self.terms.async_level

    def _accepted(self, connection: Connection, said: Said, which: Any) -> list[AcceptedCommitment]:
        """Return the oldest of some commitments that can still be trained on, with the accepting verdicts of `said`."""
        order, given = ("step", "block", "node", "index"), said.verdicts
        oldest = self._oldest(connection)
        first = select(*commitments.c[order], commitments.c.root, *uploads.c["file_hash", "size"])
        first = first.join(uploads, same_work(commitments, uploads.c)).where(which, commitments.c.step >= oldest)
        first = first.order_by(*commitments.c[order]).limit(MAX_ACCEPTED).subquery()
        query = (
            select(*first.c[_LISTED], given.c.document)
            .join(given, same_work(first, given.c))
            .join(nodes, nodes.c.address == given.c.validator)
            .where(given.c.accepted, nodes.c.status != "jailed", nodes.c.role == "validator")
            .order_by(*first.c[order], given.c.id)
        )
        signed: dict[tuple, list[Verdict]] = defaultdict(list)
        for *row, document in connection.execute(query):
            signed[tuple(row)].append(Verdict.model_validate_json(document))
        works = [AcceptedCommitment(**dict(zip(_LISTED, row, strict=True)), verdicts=by) for row, by in signed.items()]
        return self._with_grades(connection, works, said) if self.terms.has_private_tests else works

    def _with_grades(
        self, connection: Connection, works: list[AcceptedCommitment], said: Said
    ) -> list[AcceptedCommitment]:
        """Return accepted commitments with their grades, and with what the validators said that agree on them.

        As many, from the oldest, as fit into an answer: used ones make room for the next.
        """
        found, room = [], MAX_PAGE_CHARACTERS
        for work in works:
            opinions = opinions_of(connection, work.node, work.index, work.root, said)
            agreed = agreed_grades(opinions, self.terms.accepts_required)
            if agreed is None:
                continue
            shown = shown_grades_of(connection, work.node, work.index, work.root, agreed, said)
            statements = {one.statement.validator: one.statement for one in shown}
            verdicts = [verdict for verdict in work.verdicts if verdict.validator in statements]
            statements = [statements[verdict.validator] for verdict in verdicts]
            room -= len(shown[0].text)
            if room < 0:
                break
            grades = {"verdicts": verdicts, "statements": statements, "grades": shown[0].text}
            found.append(work.model_copy(update=grades))
        return found

    async def grade_page(self, after: str | None) -> GradePage:
        """Return grades that were shown after a cursor; as `verdict_page`."""
        documents, cursor = await self._after(grades, after, MAX_GRADES)
        return GradePage(grades=[ShownGrades.model_validate_json(text) for text in documents], cursor=cursor)

    async def _after(self, table: Table, after: str | None, most: int) -> tuple[list[str], str]:
        """Return the first documents after a cursor, MAX_PAGE_CHARACTERS characters of them, and the cursor behind."""
        identity, _, place = (after or "").partition(".")
        known = identity == self._database.identity and place.isascii() and place.isdigit() and len(place) < 19
        last = int(place) if known else 0
        query = select(table.c.id, table.c.document).where(table.c.id > literal(last, BigInteger))
        query = query.order_by(table.c.id).limit(most).execution_options(yield_per=16)

        def read(connection: Connection) -> tuple[list[str], int]:
            found, room, end = list[str](), MAX_PAGE_CHARACTERS, last
            with connection.execute(query) as rows:
                for number, document in rows:
                    room -= len(document)
                    if found and room < 0:
                        break
                    found.append(document)
                    end = number
            return found, end

        documents, end = await self._database.read(read)
        return documents, f"{self._database.identity}.{end}"

    async def demand(self) -> Demand:
        """Return whether fewer fresh groups wait for the trainer than it needs, and it still needs any."""
        return (await self._work())[1]

    async def demand_of_trainer(self) -> Demand:
        """Return the demand with the groups that wait indeed: for the trainer of a run with traps."""
        return (await self.demand()).model_copy(
            update={"waiting_groups": await self._database.read(self._waiting_indeed)}
        )

    def _waiting_indeed(self, connection: Connection) -> int:
        oldest = self._oldest(connection)
        fresh = select(func.count()).where(_FRESH, commitments.c.step >= oldest, commitments.c.status.in_(UNREFUTED))
        decided = self.decide(connection, UNDECIDED, oldest=oldest)
        refuted = sum(status.state not in UNREFUTED for _, status in decided)
        return (connection.execute(fresh).scalar_one() - refuted) * self.terms.groups_per_commitment

    def _used_unseen(self, connection: Connection, step: int) -> int:
        """Guess how many commitments went into batches that are hidden, by the chain's steps and public batches."""
        known = select(func.count()).where(spent.c.used).group_by(spent.c.step).order_by(spent.c.step.desc())
        sizes = connection.execute(known.limit(BATCHES)).scalars().all()
        size = mean(sizes) if sizes else self._batch_groups / self.terms.groups_per_commitment
        made = select(func.count()).where(
            checkpoints.c.step > step - self.terms.async_level,
            checkpoints.c.batch_root != _NO_BATCH,
            ~exists().where(spent.c.step == checkpoints.c.step),
        )
        return round(connection.execute(made).scalar_one() * size)

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
        if self.hides:
            waiting = max(0, waiting - self._used_unseen(connection, facts.step))
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

    async def node_report(self, address: str, *, own: bool = False) -> NodeReport | None:
        """Return how a node's commitments ended; None for a stranger. `accepted` and `rejected` count commitments.

        own: the node itself asks, and reads what hidden verdicts say.
        """
        facts = await self.facts()
        return await self._database.read(lambda connection: self._node_report(connection, address, facts, own=own))

    def _node_report(self, connection: Connection, address: str, facts: RunFacts, *, own: bool) -> NodeReport | None:
        found = read_nodes(connection, select(nodes).where(nodes.c.address == address))
        if not found:
            return None
        made = found[0].commitments
        hidden = _latest_about(connection, address, HIDDEN) if own else []
        return NodeReport(
            address=address,
            commitments=made.total,
            rollouts=made.total * self.terms.positions,
            accepted=made.accepted,
            rejected=found[0].rejected,
            verdicts=_latest_about(connection, address, PUBLIC),
            inspections=[OwnInspection.of(verdict) for verdict in hidden],
            blocked=blocking_reason(facts.workers[address], facts) if address in facts.workers else "",
            hourly_gas=hourly_gas(connection, address, self.terms, self.chain.now),
        )

    async def _keep(self, name: str, hour: int, make: Callable[[Connection], Any]) -> Any:
        """Return an answer, computed once for each version of the database and hour, however many ask meanwhile."""

        async def read() -> Any:
            LANE.set("members")  # of the task that makes it for all, though a stranger may have asked first
            return await self._database.read(make)

        return await self._kept.get((name, await self._database.current_version(), hour), read)

    def update_status(self, connection: Connection, node: str, index: int) -> CommitmentStatus | None:
        """Decide a commitment's status again, after a verdict about it; return None when there is none."""
        return self.update_statuses(connection, ONE, node=node, index=index).get((node, index))

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
        planted = planted_rejections(connection, which.planted, given) if self.terms.has_traps else set()
        for row in connection.execute(which.opinions, given):
            if (row.validator, row.node, row.index) not in planted:
                opinions[row.node, row.index].append(Opinion(*list(row)[2:]))
        for row in connection.execute(which.cases, given):
            opened[row.node, row.index].append(CaseState(*list(row)[2:]))
        work = [CommitmentState(*row) for row in connection.execute(which.states, given)]
        found = [
            ended_status(cast(State, one.ended), one.ended_by, jailed=one.jailed)
            if one.ended is not None
            else commitment_status(
                opinions[one.node, one.index],
                opened[one.node, one.index],
                jailed=one.jailed,
                accepts_required=self.terms.accepts_required,
                graded=self.terms.has_private_tests,
            )
            for one in work
        ]
        return list(zip(work, found, strict=True))


def _encoded(works: Sequence[AcceptedCommitment]) -> list[tuple[int, bytes]]:
    return [(work.step, work.model_dump_json().encode()) for work in works]


def _as_list(works: Sequence[tuple[int, bytes]], min_step: int) -> bytes:
    return b"[" + b",".join(text for step, text in works if step >= min_step) + b"]"


@dataclass(frozen=True)
class Said:
    """What validators say of commitments: what is public of it, or what is hidden."""

    verdicts: Table
    grades: Table


PUBLIC: Final = Said(verdicts, grades)
HIDDEN: Final = Said(hidden_verdicts, hidden_grades)


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


def verdict_of(connection: Connection, validator: str, work: Any, said: Said = PUBLIC) -> Verdict | None:
    """Return a validator's verdict on a commitment. `work` as in `same_work`."""
    given = said.verdicts
    query = select(given.c.document).where(given.c.validator == validator, same_work(given, work))
    document = connection.execute(query).scalar_one_or_none()
    return Verdict.model_validate_json(document) if document else None


def _latest_about(connection: Connection, node: str, said: Said) -> list[Verdict]:
    """Return verdicts about a node's work, rejections first, then the latest."""
    given = said.verdicts
    query = select(given.c.document).where(given.c.node == node).order_by(given.c.accepted, given.c.id.desc())
    texts = connection.execute(query.limit(MAX_NODE_VERDICTS)).scalars()
    return [Verdict.model_validate_json(text) for text in texts]


def _opinions(said: Said, *columns: Any) -> Any:
    """Return the statement that reads these columns and those of Opinion of verdicts, in the order of arrival."""
    verdicts, grades = said.verdicts, said.grades
    return (
        select(*columns, *verdicts.c["validator", "accepted", "reason"], nodes.c.status != "jailed", grades.c.grades)
        .join(nodes, nodes.c.address == verdicts.c.validator)
        .outerjoin(grades, and_(grades.c.validator == verdicts.c.validator, same_work(grades, verdicts.c)))
        .where(nodes.c.role == "validator")
        .order_by(verdicts.c.id)
    )


_OPINIONS: Final = {
    said: _opinions(said)
    .select_from(said.verdicts)
    .where(*(said.verdicts.c[name] == bindparam(name) for name in ("node", "index", "root")))
    for said in (PUBLIC, HIDDEN)
}


def opinions_of(connection: Connection, node: str, index: int, root: str, said: Said = PUBLIC) -> list[Opinion]:
    """Return what validators say of a commitment, in the order that their verdicts arrived."""
    rows = connection.execute(_OPINIONS[said], {"node": node, "index": index, "root": root})
    return [Opinion(*opinion) for opinion in rows]


def shown_grades_of(
    connection: Connection, node: str, index: int, root: str, agreed: str | None = None, said: Said = PUBLIC
) -> list[ShownGrades]:
    """Return what validators have shown of a commitment, oldest first; with `agreed`, only grades of that hash."""
    grades = said.grades
    query = select(grades.c.document).where(grades.c.node == node, grades.c.index == index, grades.c.root == root)
    if agreed is not None:
        query = query.where(grades.c.grades == agreed)
    return [ShownGrades.model_validate_json(text) for text in connection.execute(query.order_by(grades.c.id)).scalars()]


# Commitments whose status is decided


@dataclass(frozen=True)
class CommitmentSelection:
    """Statements that read some commitments and what is said of them."""

    states: Any
    """Rows of CommitmentState."""
    opinions: Any
    cases: Any
    """Node and index first, in these two."""
    planted: Any
    """What `planted_rejections` reads."""


def _selection(condition: Any, said: Said = PUBLIC) -> CommitmentSelection:
    about = and_(cases.c.node == commitments.c.node, cases.c.index == commitments.c.index)
    judged = commitments.join(said.verdicts, same_work(said.verdicts, commitments.c))
    opened = judged.join(tickets, same_work(tickets, commitments.c)).join(
        trap_masters, trap_masters.c.epoch == tickets.c.epoch
    )
    planted = select(commitments.c.step, tickets.c.document, said.verdicts.c.document.label("verdict"))
    return CommitmentSelection(
        STATES.where(condition),
        _opinions(said, *_KEY).select_from(judged).where(condition),
        select(*_KEY, cases.c.challenger, cases.c.outcome).join(cases, about).where(condition),
        planted.select_from(opened).where(said.verdicts.c.reason == TICKETED, condition),
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
_TICKETED: Final = (
    exists().where(same_work(tickets, commitments.c), tickets.c.epoch == bindparam("epoch")).correlate(commitments)
)
TRAPS_OF: Final = _selection(and_(_TICKETED, _named_in(verdicts)))
"""Those with a ticket of an epoch."""
_ENDED: Final = exists().where(OUTCOME).correlate(commitments)
IN_BLOCKS: Final = _selection(and_(_READ, or_(_named_in(verdicts), _named_in(cases), _CONVICTED, _ENDED)))
"""Those of which anything is known: all others are pending."""

_HELD: Final = uploads.join(hidden_spent, hidden_spent.c.file_hash == uploads.c.file_hash)
_FRESH: Final = and_(
    commitments.c.spent.is_(False), ~exists().select_from(_HELD).where(same_work(uploads, commitments.c))
)
"""In no report, public or hidden."""
UNDECIDED: Final = _selection(
    and_(
        _FRESH,
        commitments.c.step >= bindparam("oldest"),
        commitments.c.status.in_(UNREFUTED),
        _named_in(hidden_verdicts),
    ),
    HIDDEN,
)
"""Those that can still be trained on, about which there are hidden verdicts."""
