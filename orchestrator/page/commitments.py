"""Show one commitment: what its node was drawn, what validators measured, and how to measure it again."""

from __future__ import annotations

from pydantic import Field

from muster.protocol.messages import Message
from orchestrator.page.courtroom import CaseLine, ProofLine


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
    """How anybody finds the same."""

    does: str
    """As a sentence."""
    command: str


class CommitmentView(Message):
    run: int
    node: str
    name: str
    index: int
    step: int
    hour: int
    status: str
    reason: str | None
    why: str
    """What became of it and why, as a sentence."""
    root: str
    block: int
    pay: int
    matures_at: int
    """The chain's seconds."""
    file_hash: str | None
    size: int | None
    stored_at: int | None
    """Of the receipt: the chain's seconds."""
    draws_from: int | None
    """The step whose entropy decides what the node is drawn."""
    groups: list[GroupLine] = Field(default_factory=list)
    verdicts: list[VerdictLine] = Field(default_factory=list)
    cases: list[CaseLine] = Field(default_factory=list)
    proofs: list[ProofLine] = Field(default_factory=list)
    used_in: int | None = None
    left_out: bool = False
    commands: list[Command] = Field(default_factory=list)
