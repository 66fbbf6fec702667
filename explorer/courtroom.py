"""Show cases: who is accused of what by whom, on what evidence, who judges, until when, and how it ended.

Phases end as the court ends them (`contracts/SlashCourt.sol`): once all judges have committed they need not wait for
the end of the phase, except about missing data.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from pydantic import Field
from sqlalchemy import Connection, func, or_, select

from explorer.source import PageSource, names_of, rows_of
from explorer.summary import CaseLine
from muster.constants import BASIS_POINTS
from muster.contracts.court import Outcome
from muster.ledger.queries import verdict_of
from muster.ledger.read_model import read_cases
from muster.ledger.tables import cases, deeds, nodes, proofs, votes
from muster.protocol.kinds import NO_ROW
from muster.protocol.messages import Message, Verdict, Wei
from muster.protocol.reasons import REASONS, Reason
from muster.runtime import problems
from muster.runtime.units import Tokens

MAX_CASES: Final = 200
"""Cases of one answer."""
MAX_PROOFS: Final = 50
"""Proofs of one answer."""


class CaseRow(CaseLine):
    """A case as the page shows it; `node` is the accused, `jury` are the judges who may vote."""

    name: str
    step: int
    challenger_name: str
    commits: int
    opened_at: int
    commit_ends: int
    reveal_ends: int
    """The chain's seconds."""


class ProofLine(Message):
    """A commitment that the contract itself found false."""

    node: str
    name: str
    index: int
    prover: str
    prover_name: str
    kind: str
    flaw: str
    position: int
    block: int
    transaction: str


class CasePage(Message):
    """Newest first."""

    run: int
    total: int
    outcomes: dict[str, int]
    block_time: int
    cases: list[CaseRow]
    before: int | None
    """Case to ask for the page after this; None at the end."""
    proofs: list[ProofLine]
    """The newest ones."""


class VoteLine(Message):
    judge: str
    name: str
    guilty: bool | None
    """None until it is revealed."""
    absent: bool
    committed_in: str | None
    revealed_in: str | None


class CaseView(Message):
    run: int
    case: CaseRow
    charge: str
    """What the accused is said to have done, as a sentence."""
    state: str
    """What happens now, as a sentence."""
    block_time: int
    position: int | None
    """The row that the case names, if any."""
    root: str
    measured: float | None = None
    threshold: float | None = None
    """By the challenger's verdict."""
    votes: list[VoteLine] = Field(default_factory=list)
    slashed: Wei = 0
    bounty: Wei = 0
    """Token wei, where it convicted; the bounty is part of what was slashed."""
    commands: list[str] = Field(default_factory=list)
    """That re-run the evidence."""


def _outcomes(connection: Connection) -> dict[str, int]:
    """Count all cases by how they ended."""
    kind, number = deeds.c.kind, func.sum(deeds.c["count"])
    is_outcome = kind.in_([outcome.name.lower() for outcome in Outcome])
    found = select(kind, number).where(is_outcome).group_by(kind).having(number > 0)
    return {outcome: int(total) for outcome, total in connection.execute(found)}


def case_page(connection: Connection, source: PageSource, before: int | None, limit: int) -> CasePage:
    """Return the cases before a number, newest first."""
    rows = read_cases(connection, limit + 1, *([] if before is None else [cases.c.id < before]))
    outcomes = _outcomes(connection)
    return CasePage(
        run=source.run,
        total=sum(outcomes.values()),
        outcomes=outcomes,
        block_time=source.chain.now,
        cases=case_rows(connection, source, rows[:limit]),
        before=rows[limit - 1].id if len(rows) > limit else None,
        proofs=proof_lines(connection),
    )


def case_view(connection: Connection, source: PageSource, number: int) -> CaseView:
    """Return one case. Raises RefusedError when there is no such case."""
    # 1. The case, the commitment that it is about, and what its challenger measured there.
    row = next(iter(read_cases(connection, 1, cases.c.id == number)), None)
    if row is None:
        raise problems.not_found(f"run {source.run} has no case {number}", "muster slash list")
    (case,) = case_rows(connection, source, [row])
    verdict = verdict_of(connection, row.challenger, row)
    # 2. Who judges, and what a conviction took.
    ballots = connection.execute(select(votes).where(votes.c.case_id == number).order_by(votes.c.judge)).all()
    names = names_of(connection, [vote.judge for vote in ballots])
    slashed = _slashed_in(connection, row)
    bounty = slashed * source.terms.bounty_bps // BASIS_POINTS
    return CaseView.of(
        source,
        row,
        verdict,
        case=case,
        charge=charge(case, verdict),
        state=state_of(case, source.chain.now, Tokens(slashed), Tokens(bounty)),
        block_time=source.chain.now,
        position=None if row.position == NO_ROW else row.position,
        votes=[VoteLine.of(vote, name=names.get(vote.judge, "")) for vote in ballots],
        slashed=slashed,
        bounty=bounty,
        commands=case_commands(case, source.url),
    )


def cases_about(connection: Connection, source: PageSource, node: str, limit: int) -> list[CaseRow]:
    """Return the newest cases that accuse a node or that it opened, newest first."""
    involved = or_(cases.c.node == node, cases.c.challenger == node)
    return case_rows(connection, source, read_cases(connection, limit, involved))


def cases_of_work(connection: Connection, source: PageSource, node: str, index: int) -> list[CaseRow]:
    """Return the cases about a commitment, oldest first: each validator opens few."""
    about = cases.c.node == node, cases.c.index == index
    return case_rows(connection, source, read_cases(connection, MAX_CASES, *about)[::-1])


def case_rows(connection: Connection, source: PageSource, rows: Sequence[Any]) -> list[CaseRow]:
    """Return rows of the table `cases` as they are shown. Of an open case the votes are counted as they stand."""
    # 1. The names and votes of all.
    names = names_of(connection, [address for row in rows for address in (row.node, row.challenger)])
    query = select(
        votes.c.case_id,
        func.count(votes.c.committed_in),
        func.count(votes.c.revealed_in),
        func.count().filter(votes.c.guilty),
    ).group_by(votes.c.case_id)
    counted = {number: rest for number, *rest in rows_of(connection, query, votes.c.case_id, [row.id for row in rows])}
    # 2. A row for each.
    found = []
    for row in rows:
        commits, reveals, guilty = counted.get(row.id, (0, 0, 0))
        if row.outcome != "open":
            reveals, guilty = row.reveals, row.guilty_votes
        found.append(
            CaseRow.of(
                row,
                name=names.get(row.node, ""),
                challenger_name=names.get(row.challenger, ""),
                commits=commits,
                reveals=reveals,
                guilty_votes=guilty,
                opened_at=row.commit_ends - source.terms.commit_phase,
            )
        )
    return found


def proof_lines(connection: Connection, *conditions: Any) -> list[ProofLine]:
    """Return the newest proofs, those that meet the conditions, newest first."""
    query = select(proofs).where(*conditions).order_by(proofs.c.block.desc(), proofs.c.log_index.desc())
    rows: Sequence[Any] = connection.execute(query.limit(MAX_PROOFS)).all()
    names = names_of(connection, [address for row in rows for address in (row.node, row.prover)])
    return [ProofLine.of(row, name=names.get(row.node, ""), prover_name=names.get(row.prover, "")) for row in rows]


def _slashed_in(connection: Connection, case: Any) -> int:
    """Return what the end of a case took of the lock of the accused, in token wei. No node is convicted twice."""
    if case.outcome != "guilty":
        return 0
    return int(connection.execute(select(nodes.c.slash).where(nodes.c.address == case.node)).scalar() or 0)


# Sentences


def charge(case: CaseRow, verdict: Verdict | None) -> str:
    """Return what a challenger says."""
    work = f"commitment {case.index} of {case.name or case.node}, made at step {case.step}"
    known = REASONS.get(cast("Reason", case.kind))
    what = known.means if known else "what this version does not know: judges vote not guilty"
    row = "" if verdict is None or verdict.position is None else f". Row {verdict.position} shows it"
    return f"{case.challenger_name or case.challenger} says of {work}: {what}{row}."


def state_of(case: CaseRow, now: int, slashed: Tokens, bounty: Tokens) -> str:
    """Return what happens now in a case, or how it ended. `now`: the chain's seconds. Pure."""
    accused = case.name or case.node
    match case.outcome:
        case "open":
            return _open_state(case, now)
        case "guilty":
            return (
                f"Guilty by {case.guilty_votes} of {case.jury} votes: {accused} lost its unsettled pay and {slashed}, "
                f"of which {bounty} went to the challenger."
            )
        case "not_guilty":
            return f"Not guilty: {case.guilty_votes} of {case.jury} judges voted guilty. The challenger lost its fee."
        case "no_quorum":
            return f"No verdict: {case.reveals} of {case.jury} judges revealed a vote, and more than half must."
        case "moot":
            return "Moot: the accused was convicted in another case before this one ended."
        case "dismissed":
            return "Dismissed: by the storage's receipt the file was there before the commitment."
        case "cured":
            return f"The file came late, when it was missed: {accused} pays the judges and lost its unsettled pay."
    return f"Ended: {case.outcome}."


def _open_state(case: CaseRow, now: int) -> str:
    """Return what judges do now in an open case, by the rules of the court."""
    missing = case.kind == "data_missing"
    committed = now >= case.commit_ends or (case.commits == case.jury and not missing)
    if not committed:
        receipt = " The storage's receipt ends it at once." if missing else ""
        so_far = f"{case.commits} of {case.jury} have"
        return f"Judges look at the evidence and commit to votes until {_utc(case.commit_ends)}: {so_far}.{receipt}"
    if now >= case.reveal_ends or case.reveals == case.commits:
        return "Voting is over: any account may have the court end the case, and validators do."
    return f"Judges reveal their votes until {_utc(case.reveal_ends)}: {case.reveals} of {case.commits} have."


def case_commands(case: CaseRow, url: str) -> list[str]:
    """Return what re-runs the evidence of a case, and what inspects the whole commitment, from nothing but the URL."""
    commands = [f"muster slash verify {case.id}", f"muster slash show {case.id}"]
    commands.append(f"muster validator verify {case.node}:{case.index}")
    return [f"{command} --url {url}" for command in commands]


def _utc(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
