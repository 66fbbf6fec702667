"""Show one commitment: what its node was drawn, what validators measured, and how to measure it again.

What was drawn is computed again from the chain's entropy, by the functions that workers and validators use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import Field
from sqlalchemy import Connection, select

from explorer.courtroom import CaseRow, ProofLine, cases_of_work, proof_lines
from explorer.source import PageSource, names_of
from muster.ledger.queries import ONE, same_work
from muster.ledger.tables import cases, checkpoints, commitments, nodes, proofs, spent, uploads, verdicts
from muster.protocol.draws import group_draw
from muster.protocol.hashes import hash_bytes
from muster.protocol.messages import Message, Verdict, Wei
from muster.protocol.reasons import REASONS, explain
from muster.protocol.terms import Terms
from muster.protocol.windows import payable_at
from muster.runtime import problems

MAX_VERDICTS: Final = 64
"""Verdicts of one answer; a run has few validators."""


class GroupLine(Message):
    """What a group was drawn."""

    group: int
    task: int
    """Slot in the task set."""
    part: str
    """Of the task set; empty where the orchestrator does not know it."""
    budget: int


class VerdictLine(Message):
    validator: str
    name: str
    accepted: bool
    reason: str | None
    means: str
    """What the reason means, as a sentence; empty for an acceptance."""
    advice: str
    position: int | None
    measured: float | None
    threshold: float | None
    evidence: str | None
    inspected: int
    received: float


class Command(Message):
    """A command that reproduces a result."""

    does: str
    """As a sentence."""
    command: str


class CommitmentHead(Message):
    """What is known of a commitment in a line."""

    index: int
    step: int
    """Policy step."""
    hour: int
    status: str
    reason: str | None
    file_hash: str | None
    used_in: int | None
    """The training step whose batch it went into."""
    left_out: bool
    """The trainer said that it will never use it."""


class CommitmentView(CommitmentHead):
    run: int
    node: str
    name: str
    why: str
    """What became of it and why, as a sentence."""
    root: str
    block: int
    pay: Wei
    matures_at: int
    """The chain's seconds from which it can be claimed, as seals and cases are now (`Runs.payableAt`)."""
    if_sealed: int
    """The same were its hour sealed and no case open."""
    settled: bool
    """Whether it was paid, or voided with all that its node had not claimed."""
    draws_from: int | None
    """The step whose entropy decides what the node is drawn; None where it is not on chain, and nothing is known."""
    groups: list[GroupLine] = Field(default_factory=list)
    verdicts: list[VerdictLine] = Field(default_factory=list)
    cases: list[CaseRow] = Field(default_factory=list)
    proofs: list[ProofLine] = Field(default_factory=list)
    commands: list[Command] = Field(default_factory=list)


def commitment_view(connection: Connection, source: PageSource, node: str, index: int) -> CommitmentView:
    """Return a commitment. Raises RefusedError when the chain has none at this index."""
    # 1. The commitment, its node, its file.
    query = select(commitments, nodes.c.first_step, nodes.c.work_class, nodes.c.settled)
    query = query.join(nodes, nodes.c.address == commitments.c.node)
    row = connection.execute(query.where(commitments.c.node == node, commitments.c.index == index)).one_or_none()
    if row is None:
        detail = f"{node} has made no commitment {index} in run {source.run}"
        raise problems.not_found(detail, f"muster worker status --node {node}")
    file_hash = connection.execute(select(uploads.c.file_hash).where(same_work(uploads, row))).scalar()
    used = connection.execute(select(spent).where(spent.c.file_hash == file_hash)).one_or_none()
    # 2. What others say of it.
    [(_, decision)] = source.queries.decide(connection, ONE, node=node, index=index)
    given = verdict_lines(connection, row)
    accused = cases_of_work(connection, source, node, index)
    names = names_of(connection, [node])
    # 3. What was drawn, and when it pays.
    entropy = connection.execute(select(checkpoints.c.entropy).where(checkpoints.c.step == row.first_step)).scalar()
    sealed, phases = source.chain.sealed_through, voting_seconds(connection, source.terms, node)
    return CommitmentView.of(
        row,
        source,
        node=node,
        name=names.get(node, ""),
        index=index,
        why=decision.sentence(
            has_file=file_hash is not None or all(one.reason != "data_missing" for one in given),
            names={one.validator: one.name for one in given},
        ),
        pay=source.terms.pay_of(row.work_class),
        matures_at=payable_at(row.hour, sealed, phases),
        if_sealed=payable_at(row.hour, row.hour, 0),
        settled=index < row.settled,
        file_hash=file_hash,
        draws_from=None if entropy is None else row.first_step,
        groups=[] if entropy is None else group_lines(source, row, hash_bytes(entropy)),
        verdicts=given,
        cases=accused,
        proofs=proof_lines(connection, proofs.c.node == node, proofs.c.index == index),
        used_in=used.step if used is not None and used.used else None,
        left_out=used is not None and not used.used,
        commands=commitment_commands(node, index, accused, source.url),
    )


def voting_seconds(connection: Connection, terms: Terms, node: str) -> int:
    """Return how long voting in a case takes where one against the node is open, which freezes its pay; else 0."""
    query = select(cases.c.id).where(cases.c.node == node, cases.c.outcome == "open").limit(1)
    is_open = connection.execute(query).scalar() is not None
    return terms.commit_phase + terms.reveal_phase if is_open else 0


def group_lines(source: PageSource, row: Any, entropy: bytes) -> list[GroupLine]:
    """Return what the groups of a commitment were drawn. `row`: the commitment, with the work class of its node."""
    base = source.attribution.draw_base(row.node, row.index, entropy)
    lines = []
    for group in range(source.terms.groups_per_commitment):
        drawn = group_draw(base, group, source.terms, row.work_class)
        part = source.attribution.part_of(drawn.task, row.step)
        lines.append(GroupLine(group=group, task=drawn.task, part=part.name if part else "", budget=drawn.budget))
    return lines


def verdict_lines(connection: Connection, row: Any) -> list[VerdictLine]:
    """Return the verdicts on a commitment in the order in which they arrived."""
    query = select(verdicts.c.document, verdicts.c.received).where(same_work(verdicts, row))
    query = query.order_by(verdicts.c.id).limit(MAX_VERDICTS)
    found = [(Verdict.model_validate_json(text), received) for text, received in connection.execute(query)]
    names = names_of(connection, [verdict.validator for verdict, _ in found])
    return [
        VerdictLine.of(
            verdict,
            name=names.get(verdict.validator, ""),
            means="" if verdict.reason is None else explain(verdict.reason, verdict.position),
            advice="" if verdict.reason is None else REASONS[verdict.reason].advice,
            received=received,
        )
        for verdict, received in found
    ]


def commitment_commands(node: str, index: int, accused: Sequence[CaseRow], url: str) -> list[Command]:
    """Return the commands that find the same, from nothing but the URL."""
    found = [
        Command(
            does="Show what validators said of it, and what to check.",
            command=f"muster worker why {index} --node {node} --url {url}",
        ),
        Command(
            does="Inspect all of its rows on this machine, as a validator does with a sample.",
            command=f"muster validator verify {node}:{index} --url {url}",
        ),
    ]
    for case in accused:
        does = f"Fetch the evidence of case {case.id} and re-run it on this machine."
        found.append(Command(does=does, command=f"muster slash verify {case.id} --url {url}"))
    return found
