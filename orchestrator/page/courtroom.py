"""Show cases: who is accused of what by whom, on what evidence, who judges, until when, and how it ended."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from muster.protocol.messages import Message

MAX_CASES: Final = 200
"""Cases of one answer."""


class CaseLine(Message):
    id: int
    node: str
    """The accused."""
    name: str
    index: int
    step: int
    kind: str
    challenger: str
    challenger_name: str
    outcome: str
    """open, guilty, not_guilty and so on, as `muster.contracts.court.Outcome` names them."""
    jury: int
    """Judges who may vote."""
    commits: int
    reveals: int
    guilty_votes: int
    opened_at: int
    commit_ends: int
    reveal_ends: int
    """The chain's seconds."""
    evidence: str
    opened_in: str
    resolved_in: str | None
    """Transactions."""


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
    cases: list[CaseLine]
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
    case: CaseLine
    charge: str
    """What the accused is said to have done, as a sentence."""
    state: str
    """What happens now, as a sentence."""
    block_time: int
    position: int
    root: str
    measured: float | None
    threshold: float | None
    """By the challenger's verdict."""
    votes: list[VoteLine] = Field(default_factory=list)
    slashed: int = 0
    bounty: int = 0
    """Token wei, where it convicted."""
    commands: list[str] = Field(default_factory=list)
    """That re-run the evidence."""
