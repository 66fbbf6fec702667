"""What the database knows, as the messages that go out, and as single facts that other modules decide by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import Connection, and_, func, select, tuple_, update

from muster.constants import MAX_ACCEPTED
from muster.messages import AcceptedWork, Demand, NodeReport, StepReport, Upload, Verdict, VerdictPage
from muster.terms import Terms
from orchestrator.database import Database
from orchestrator.standing import CaseState, Opinion, Standing, standing
from orchestrator.tables import cases, checkpoints, commitments, meta, nodes, spent, steps, uploads, verdicts

MAX_VERDICTS: Final = 500
MAX_NODE_VERDICTS: Final = 50
MAX_KEPT: Final = 64
"""Answers kept at the same time."""


_ACCEPTED: Final = TypeAdapter(list[AcceptedWork])


@dataclass(frozen=True)
class Member:
    """A node of the run, as the chain has it."""

    address: str
    operator: str
    role: str
    status: str
    draw_tip: str

    @property
    def active(self) -> bool:
        return self.status == "active"


@dataclass(frozen=True)
class Committed:
    step: int
    root: str


class Ledger:
    """Questions about one run. Answers polled by all are kept per version of the database."""

    def __init__(self, database: Database, run: int, terms: Terms, *, batch_groups: int, demand_batches: float) -> None:
        self._database = database
        self.run = run
        self.terms = terms
        self._groups_wanted = batch_groups * demand_batches
        self._kept: dict[tuple, tuple[int, Any]] = {}

    async def upload(self, node: str, index: int, root: str) -> Upload | None:
        """Which file a node uploaded for (index, root)."""
        return await self._database.read(lambda connection: upload_of(connection, node, index, root))

    async def verdict_page(self, after: str | None) -> VerdictPage:
        """Verdicts after a cursor. A cursor of a database that was deleted since starts from the first one."""
        identity, _, place = (after or "").partition(".")
        known = identity == self._database.identity and place.isascii() and place.isdigit() and len(place) < 19
        last = int(place) if known else 0
        query = select(verdicts.c.id, verdicts.c.document).where(verdicts.c.id > last)
        query = query.order_by(verdicts.c.id).limit(MAX_VERDICTS)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return VerdictPage(
            verdicts=[Verdict.model_validate_json(row.document) for row in rows],
            cursor=f"{self._database.identity}.{rows[-1].id if rows else last}",
        )

    async def accepted(self, min_step: int) -> bytes:
        """Accepted commitments of `min_step` and later that no report has used or left out, oldest first.

        A JSON list of AcceptedWork: many ask, and it is the longest answer.
        """
        return await self._keep(("accepted", min_step), lambda connection: self._accepted(connection, min_step))

    def _accepted(self, connection: Connection, min_step: int) -> bytes:
        query = (
            select(commitments.c.step, commitments.c.node, commitments.c.index, commitments.c.root)
            .add_columns(uploads.c.file_hash, uploads.c.size)
            .join(uploads, _same_work(commitments, uploads))
            .outerjoin(spent, spent.c.file_hash == uploads.c.file_hash)
            .where(commitments.c.standing == "accepted", commitments.c.step >= min_step, spent.c.file_hash.is_(None))
            .order_by(commitments.c.step, commitments.c.block, commitments.c.node, commitments.c.index)
            .limit(MAX_ACCEPTED)
        )
        rows = connection.execute(query).all()
        signed = _accepts_of(connection, [(node, index, root) for _, node, index, root, *_ in rows])
        works = [
            AcceptedWork(
                step=step,
                node=node,
                index=index,
                root=root,
                file_hash=file_hash,
                size=size,
                verdicts=signed.get((node, index, root), []),
            )
            for step, node, index, root, file_hash, size in rows
        ]
        return _ACCEPTED.dump_json(works)

    async def demand(self) -> Demand:
        """Whether fewer fresh groups wait for the trainer than it needs, and it still needs any."""
        return await self._keep(("demand",), self._demand)

    def _demand(self, connection: Connection) -> Demand:
        latest = latest_step(connection)
        if latest is None:
            return Demand(run=self.run, step=0, wanted=False, waiting_groups=0)
        query = (
            select(func.count())
            .select_from(commitments)
            .outerjoin(uploads, _same_work(commitments, uploads))
            .outerjoin(spent, spent.c.file_hash == uploads.c.file_hash)
            .where(commitments.c.standing.in_(("pending", "accepted")), spent.c.file_hash.is_(None))
            .where(commitments.c.step >= latest - self.terms.async_level)
        )
        waiting = (connection.execute(query).scalar() or 0) * self.terms.groups_per_commitment
        closed = connection.execute(select(meta.c.value).where(meta.c.key == "closed")).scalar()
        report = last_report(connection)
        over = closed is not None or (report is not None and report.finished)
        return Demand(
            run=self.run, step=latest, wanted=not over and waiting < self._groups_wanted, waiting_groups=waiting
        )

    async def node_report(self, address: str) -> NodeReport | None:
        """What became of a node's commitments; None for a stranger. `accepted` and `rejected` count commitments."""
        return await self._database.read(lambda connection: self._node_report(connection, address))

    def _node_report(self, connection: Connection, address: str) -> NodeReport | None:
        if member_of(connection, address) is None:
            return None
        counts = select(commitments.c.standing, commitments.c.reason, func.count().label("n"))
        counts = counts.where(commitments.c.node == address).group_by(commitments.c.standing, commitments.c.reason)
        latest = select(verdicts.c.document).where(verdicts.c.node == address)
        latest = latest.order_by(verdicts.c.accepted, verdicts.c.id.desc()).limit(MAX_NODE_VERDICTS)
        tally = tally_standings((row.standing, row.reason, row.n) for row in connection.execute(counts))
        return NodeReport(
            address=address,
            commitments=tally.commitments,
            rollouts=tally.commitments * self.terms.positions,
            accepted=tally.accepted,
            rejected=tally.rejected,
            verdicts=[Verdict.model_validate_json(text) for text in connection.execute(latest).scalars()],
        )

    async def _keep(self, key: tuple, make: Callable[[Connection], Any]) -> Any:
        """The answer to `key` at this version of the database, made once."""
        version = self._database.version
        kept = self._kept.get(key)
        if kept is None or kept[0] != version:
            if len(self._kept) > MAX_KEPT:
                self._kept.clear()
            kept = self._kept[key] = (version, await self._database.read(make))
        return kept[1]

    def restand(self, connection: Connection, node: str, index: int) -> Standing | None:
        """Work out anew what a commitment is worth, after a verdict or a case about it; None when there is none."""
        where = and_(commitments.c.node == node, commitments.c.index == index)
        query = select(commitments.c.root, nodes.c.status).join(nodes, nodes.c.address == commitments.c.node)
        row = connection.execute(query.where(where)).one_or_none()
        if row is None:
            return None
        told = (
            select(verdicts.c.validator, verdicts.c.accepted, verdicts.c.reason, nodes.c.status != "jailed")
            .join(nodes, nodes.c.address == verdicts.c.validator)
            .where(verdicts.c.node == node, verdicts.c.index == index, verdicts.c.root == row.root)
            .where(nodes.c.role == "validator")
            .order_by(verdicts.c.id)
        )
        opened = select(cases.c.challenger, cases.c.outcome).where(cases.c.node == node, cases.c.index == index)
        found = standing(
            [Opinion(*opinion) for opinion in connection.execute(told)],
            [CaseState(*opened_case) for opened_case in connection.execute(opened)],
            jailed=row.status == "jailed",
            accepts_required=self.terms.accepts_required,
        )
        connection.execute(update(commitments).where(where).values(standing=found.state, reason=found.reason))
        return found


# Single facts, for whoever has a connection


def member_of(connection: Connection, address: str) -> Member | None:
    """The node of this address, if it is one of the run."""
    query = select(nodes.c.address, nodes.c.operator, nodes.c.role, nodes.c.status, nodes.c.draw_tip)
    row = connection.execute(query.where(nodes.c.address == address)).one_or_none()
    return Member(*row) if row else None


def commitment_of(connection: Connection, node: str, index: int) -> Committed | None:
    """What the chain has at a node's index, as far as it was read."""
    query = select(commitments.c.step, commitments.c.root)
    row = connection.execute(query.where(commitments.c.node == node, commitments.c.index == index)).one_or_none()
    return Committed(*row) if row else None


def next_index_of(connection: Connection, node: str) -> int:
    """Index of the node's next commitment, as far as the chain was read."""
    last = connection.execute(select(func.max(commitments.c.index)).where(commitments.c.node == node)).scalar()
    return 0 if last is None else last + 1


def upload_of(connection: Connection, node: str, index: int, root: str) -> Upload | None:
    query = select(uploads.c.document)
    query = query.where(uploads.c.node == node, uploads.c.index == index, uploads.c.root == root)
    document = connection.execute(query).scalar_one_or_none()
    return Upload.model_validate_json(document) if document else None


def latest_step(connection: Connection) -> int | None:
    """The newest policy step on chain."""
    return connection.execute(select(func.max(checkpoints.c.step))).scalar()


def last_report(connection: Connection) -> StepReport | None:
    """The trainer's report of its newest update."""
    document = connection.execute(select(steps.c.document).order_by(steps.c.step.desc()).limit(1)).scalar_one_or_none()
    return StepReport.model_validate_json(document) if document else None


def _accepts_of(
    connection: Connection, works: Sequence[tuple[str, int, str]]
) -> dict[tuple[str, int, str], list[Verdict]]:
    """The accepting verdicts about these commitments, of validators that are still trusted."""
    query = (
        select(verdicts.c.node, verdicts.c.index, verdicts.c.root, verdicts.c.document)
        .join(nodes, nodes.c.address == verdicts.c.validator)
        .where(tuple_(verdicts.c.node, verdicts.c.index, verdicts.c.root).in_(works))
        .where(verdicts.c.accepted, nodes.c.status != "jailed", nodes.c.role == "validator")
        .order_by(verdicts.c.id)
    )
    found: dict[tuple[str, int, str], list[Verdict]] = {}
    for node, index, root, document in connection.execute(query):
        found.setdefault((node, index, root), []).append(Verdict.model_validate_json(document))
    return found


@dataclass(frozen=True)
class Tally:
    """A node's commitments by what they are worth."""

    commitments: int
    accepted: int
    pending: int
    void: int
    rejected: dict[str, int]


def tally_standings(rows: Iterable[tuple[str, str | None, int]]) -> Tally:
    """Add up (standing, reason, count)."""
    states: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    for state, reason, count in rows:
        states[state] += count
        if state == "rejected":
            rejected[reason or "unknown"] += count
    return Tally(states.total(), states["accepted"], states["pending"], states["void"], dict(rejected))


def _same_work(left: Any, right: Any) -> Any:
    return and_(left.c.node == right.c.node, left.c.index == right.c.index, left.c.root == right.c.root)
