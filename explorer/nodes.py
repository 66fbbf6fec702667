"""Show one node: what it committed to, what became of it, and its money."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from pydantic import Field
from sqlalchemy import Connection, and_, case, func, select

from explorer.commitments import CommitmentHead, voting_seconds
from explorer.courtroom import CaseRow, ProofLine, cases_about, proof_lines
from explorer.hours import Account, HourLine, PayClock, first_hour_of_day, pay_by_hour
from explorer.leaderboard import LookSums, WorkerHead
from explorer.members import SAID_SECONDS, looks_of, uptime
from explorer.source import PageSource, names_of
from muster.ledger.queries import member_of, same_work
from muster.ledger.read_model import Counts, NodeSums, counts_of, read_nodes
from muster.ledger.tables import (
    commitments,
    hour_tallies,
    machines,
    nodes,
    payments,
    proofs,
    spent,
    uploads,
    verdicts,
)
from muster.protocol.messages import Message, Verdict, Wei
from muster.protocol.work_rules import RunFacts, blocking_reason
from muster.runtime import problems

MAX_COMMITMENTS: Final = 200
"""Commitments of one answer."""
MAX_HOURS: Final = 168
"""Hours with work on a node's timeline."""
MAX_WAITING: Final = 200
"""Hours listed whose pay is not settled."""
MAX_LATEST: Final = 20
"""Commitments, payments, verdicts and cases each that a node's own document has."""


class CommitmentLine(CommitmentHead):
    accepts: int
    rejections: int
    """Verdicts."""
    measured: float | None = None
    threshold: float | None = None
    """Of the first rejection that has them."""


class CommitmentPage(Message):
    """Newest first."""

    run: int
    node: str
    commitments: list[CommitmentLine]
    before: int | None
    """Index to ask for the page after this; None at the end."""


class PaymentLine(Message):
    kind: str
    """claim, void, slash or fine."""
    amount: Wei
    time: int
    transaction: str


class Money(Message):
    """Of a worker, in token wei."""

    pay: Wei
    """Of one commitment."""
    maturing: Wei
    claimable: Wei
    claimed: Wei
    voided: Wei
    slashed: Wei
    fined: Wei
    day: Wei
    """Pay of the commitments of the hour that has begun and the 23 before it that were not refuted."""
    stake: Wei
    """What it locked, less what was slashed and fined; 0 once it has withdrawn."""
    waiting: list[HourLine] = Field(default_factory=list)
    """Hours whose pay is not settled, oldest first; the sums above are of all, and not only of those listed."""
    payments: list[PaymentLine] = Field(default_factory=list)
    """The newest ones, newest first."""


class GivenLine(Message):
    """A verdict that a validator gave."""

    node: str
    name: str
    index: int
    step: int
    accepted: bool
    reason: str | None
    received: float


class NodeView(WorkerHead):
    run: int
    role: str
    transaction: str
    """That registered it."""
    blocked: str
    """Why the chain takes no work from it now; empty when it would, and for who is no active worker."""
    block_time: int
    """The chain's clock, for countdowns."""
    gas_hours: float | None
    """How long its ether lasts, as it says; None: not known."""
    commitments: Counts
    rejected: dict[str, int]
    """By reason."""
    money: Money
    hours: list[HourLine] = Field(default_factory=list)
    """The last ones with work, oldest first: a timeline."""
    latest: list[CommitmentLine] = Field(default_factory=list)
    """Newest first."""
    given: list[GivenLine] = Field(default_factory=list)
    """The last verdicts of a validator, newest first."""
    inspections: int = 0
    looks: LookSums | None = None
    """Of a validator."""
    seals: int = 0
    cases: list[CaseRow] = Field(default_factory=list)
    """That accuse it, and those that it opened, newest first."""
    proofs: list[ProofLine] = Field(default_factory=list)


def node_view(connection: Connection, source: PageSource, address: str, facts: RunFacts) -> NodeView:
    """Return a node. Raises RefusedError for a stranger. `facts`: what limits workers now."""
    # 1. The node, and what it says of its machine.
    found = read_nodes(connection, select(nodes).where(nodes.c.address == address))
    if not found:
        raise problems.no_node(address, source.run)
    machine = connection.execute(select(machines).where(machines.c.node == address)).one_or_none()
    fresh = machine is not None and time.time() - machine.received <= SAID_SECONDS
    # 2. All of it.
    node, row = found[0], found[0].row
    hours = hour_lines(connection, source, node)
    return NodeView(
        run=source.run,
        address=address,
        name=names_of(connection, [address]).get(address, ""),
        **{key: row[key] for key in ("operator", "role", "status", "work_class", "transaction")},
        since=row["joined"],
        blocked=blocking_reason(facts.workers[address], facts) if address in facts.workers else "",
        block_time=source.chain.now,
        device=machine.device if machine else "",
        devices=machine.devices if machine else 0,
        tokens_per_second=machine.tokens_per_second if machine and fresh else 0.0,
        gas_hours=machine.gas_hours if machine and fresh else None,
        uptime=uptime(row["hours"], row["joined"], source.chain.now),
        commitments=node.commitments,
        rejected=node.rejected,
        money=money_of(connection, source, node, hours),
        hours=hours[-MAX_HOURS:],
        latest=commitment_lines(connection, address, None, MAX_LATEST),
        given=given_lines(connection, address),
        inspections=node.done["accepts"] + node.done["rejections"],
        looks=looks_of(connection, address) if row["role"] == "validator" else None,
        seals=node.done["seals"],
        cases=cases_about(connection, source, address, MAX_LATEST),
        proofs=proof_lines(connection, proofs.c.node == address),
    )


# Money


def hour_lines(connection: Connection, source: PageSource, node: NodeSums) -> list[HourLine]:
    """Return a worker's hours, oldest first: the last MAX_HOURS with work, and all whose pay is not settled."""
    # 1. The first of these hours.
    row, address = node.row, node.row["address"]
    own = hour_tallies.c.node == address
    last = select(hour_tallies.c.hour).where(own).distinct().order_by(hour_tallies.c.hour.desc()).limit(MAX_HOURS)
    bounds = [connection.execute(select(func.min(last.subquery().c.hour))).scalar()]
    unsettled = and_(commitments.c.node == address, commitments.c.index == row["settled"])
    bounds.append(connection.execute(select(commitments.c.hour).where(unsettled)).scalar())
    first = min((hour for hour in bounds if hour is not None), default=None)
    if first is None:
        return []
    # 2. What was made in them, and what it pays.
    query = select(*hour_tallies.c["hour", "status"], hour_tallies.c.count.label("n")).where(
        own, hour_tallies.c.hour >= first
    )
    statuses: dict[int, list[tuple[str, int]]] = {}
    for one in connection.execute(query):
        statuses.setdefault(one.hour, []).append((one.status, one.n))
    by_hour = {hour: counts_of(rows) for hour, rows in statuses.items()}
    pay = source.terms.pay_of(row["work_class"])
    account = Account(pay, node.commitments.total, row["settled"], int(row["void"]) // pay)
    clock = PayClock(source.chain.now, source.chain.sealed_through, voting_seconds(connection, source.terms, address))
    return pay_by_hour({hour: made for hour, made in by_hour.items() if made.total}, account, clock)


def money_of(connection: Connection, source: PageSource, node: NodeSums, hours: Sequence[HourLine]) -> Money:
    """Return a node's money. `hours`: all of which something is still to come, among others."""
    terms, row, paid = source.terms, node.row, node.paid
    worker = row["role"] == "worker"
    locked = terms.worker_stake if worker else terms.validator_stake
    waiting = [hour for hour in hours if hour.unsettled]
    pay = terms.pay_of(row["work_class"]) if worker else 0
    day = first_hour_of_day(source.chain.now)
    unrefuted = sum(hour.counts.accepted + hour.counts.pending for hour in hours if hour.hour >= day)
    newest = select(payments).where(payments.c.node == row["address"])
    newest = newest.order_by(payments.c.block.desc(), payments.c.log_index.desc()).limit(MAX_LATEST)
    ready = sum(hour.pay for hour in waiting if hour.state == "claimable")
    return Money(
        pay=pay,
        maturing=sum(hour.pay for hour in waiting) - ready,
        claimable=ready,
        claimed=paid["claim"],
        voided=paid["void"],
        slashed=paid["slash"],
        fined=paid["fine"],
        day=unrefuted * pay,
        stake=0 if row["withdrawn"] else max(0, locked - paid["slash"] - paid["fine"]),
        waiting=waiting[:MAX_WAITING],
        payments=[PaymentLine.of(one, amount=int(one.amount)) for one in connection.execute(newest)],
    )


# Commitments and verdicts


def commitment_page(
    connection: Connection, source: PageSource, address: str, before: int | None, limit: int
) -> CommitmentPage:
    """Return a node's commitments before an index, newest first. Raises RefusedError for a stranger."""
    if member_of(connection, address) is None:
        raise problems.no_node(address, source.run)
    lines = commitment_lines(connection, address, before, limit)
    more = len(lines) == limit and lines[-1].index > 0
    return CommitmentPage(run=source.run, node=address, commitments=lines, before=lines[-1].index if more else None)


def commitment_lines(connection: Connection, node: str, before: int | None, limit: int) -> list[CommitmentLine]:
    """Return the commitments of a node before an index, newest first."""
    # 1. The commitments, with their files and what the trainer did with these.
    query = (
        select(commitments, uploads.c.file_hash, spent.c.step.label("spent_in"), spent.c.used)
        .outerjoin(uploads, same_work(commitments, uploads.c))
        .outerjoin(spent, spent.c.file_hash == uploads.c.file_hash)
        .where(commitments.c.node == node)
        .order_by(commitments.c.index.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(commitments.c.index < before)
    rows = connection.execute(query).all()
    if not rows:
        return []
    # 2. The verdicts on them: of rejections also what they measured.
    judged = select(
        *verdicts.c["index", "root", "accepted"],
        case((verdicts.c.accepted, ""), else_=verdicts.c.document).label("text"),
    ).where(verdicts.c.node == node, verdicts.c.index >= rows[-1].index, verdicts.c.index <= rows[0].index)
    given: dict[Any, list[tuple[bool, str]]] = {}
    for row in connection.execute(judged.order_by(verdicts.c.id)):
        given.setdefault((row.index, row.root), []).append((row.accepted, row.text))
    # 3. A line for each.
    return [_commitment_line(row, given.get((row.index, row.root), [])) for row in rows]


def _commitment_line(row: Any, given: Sequence[tuple[bool, str]]) -> CommitmentLine:
    rejections = [Verdict.model_validate_json(document) for accepted, document in given if not accepted]
    measured = next((verdict for verdict in rejections if verdict.measured is not None), None)
    return CommitmentLine.of(
        row,
        measured,
        accepts=len(given) - len(rejections),
        rejections=len(rejections),
        used_in=row.spent_in if row.used else None,
        left_out=row.used is not None and not row.used,
    )


def given_lines(connection: Connection, validator: str) -> list[GivenLine]:
    """Return the last verdicts of a validator, newest first."""
    query = select(verdicts.c.document, verdicts.c.received).where(verdicts.c.validator == validator)
    rows = connection.execute(query.order_by(verdicts.c.id.desc()).limit(MAX_LATEST)).all()
    found = [(Verdict.model_validate_json(text), received) for text, received in rows]
    names = names_of(connection, [verdict.node for verdict, _ in found])
    return [GivenLine.of(verdict, name=names.get(verdict.node, ""), received=received) for verdict, received in found]
