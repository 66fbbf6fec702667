"""Show one node: what it committed to, what became of it, and its money."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from muster.protocol.messages import Message
from orchestrator.page.courtroom import CaseLine, ProofLine
from orchestrator.page.overview import Counts


class CommitmentLine(Message):
    index: int
    step: int
    """Policy step."""
    hour: int
    status: str
    reason: str | None
    accepts: int
    rejections: int
    """Verdicts."""
    measured: float | None
    threshold: float | None
    """Of the first rejection that has them."""
    file_hash: str | None
    size: int | None
    used_in: int | None
    """The training step whose batch it went into."""
    left_out: bool
    """The trainer said that it will never use it."""


class CommitmentPage(Message):
    """Newest first."""

    run: int
    node: str
    commitments: list[CommitmentLine]
    before: int | None
    """Index to ask for the page after this; None at the end."""


class HourLine(Message):
    """One hour of the chain's clock."""

    hour: int
    """Hours since 1970."""
    counts: Counts
    pay: int
    """Of all of its commitments that nobody refuted."""
    sealed: bool
    matures_at: int
    """The chain's seconds; later if the hour stays unsealed."""
    state: Literal["maturing", "claimable", "settled", "frozen", "void"]


class PaymentLine(Message):
    kind: str
    """claim, void, slash or fine."""
    amount: int
    time: int
    transaction: str


class Money(Message):
    """Of a worker, in token wei."""

    pay: int
    """Of one commitment."""
    maturing: int
    claimable: int
    claimed: int
    voided: int
    slashed: int
    fined: int
    day: int
    """Pay of the commitments of the last 24 hours that nobody refuted."""
    stake: int
    waiting: list[HourLine] = Field(default_factory=list)
    """Hours whose pay is not settled, oldest first."""
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


class NodeView(Message):
    run: int
    address: str
    name: str
    operator: str
    role: str
    status: str
    work_class: int
    since: int
    """The chain's seconds."""
    transaction: str
    """That registered it."""
    blocked: str
    """Why the chain takes no work from it now; empty when it would, and for a validator."""
    block_time: int
    """The chain's clock, for countdowns."""
    device: str
    devices: int
    tokens_per_second: float
    tokens: int
    uptime: float
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
    seals: int = 0
    cases: list[CaseLine] = Field(default_factory=list)
    """That accuse it, and those that it opened."""
    proofs: list[ProofLine] = Field(default_factory=list)
