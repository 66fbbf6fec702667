"""What the validator's journal gives out: work to judge, verdicts to tell, accusations, cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from muster.chain.types import Kind, Outcome
from muster.inspection import Commitment
from muster.messages import Verdict

Ballot = Literal["none", "sealed", "committed", "revealed", "done", "abstained", "no judge", "late"]


@dataclass(frozen=True)
class Pending:
    """A commitment that waits to be judged."""

    commitment: Commitment
    draw_index: int | None
    seen_at: float
    """Wall-clock second at which it was first seen."""


@dataclass(frozen=True)
class Unsent:
    """A verdict to be told, and the evidence to be stored before it."""

    verdict: Verdict
    evidence: bytes | None
    refusals: int


@dataclass(frozen=True)
class Accusation:
    commitment: Commitment
    kind: Kind
    position: int
    evidence: str
    """Hash of the bundle."""
    due: float
    """Wall-clock second from which it is this validator's turn."""


@dataclass(frozen=True)
class CaseFile:
    """A case as its event tells it, and this validator's part in it."""

    case_id: int
    commitment: Commitment
    kind: Kind
    challenger: str
    evidence: bytes
    jury: int
    commit_ends: int
    reveal_ends: int
    outcome: Outcome
    ballot: Ballot
    guilty: bool | None
    salt: bytes | None
