"""What the findings about a commitment come to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.inspection import REASONS, Finding


@dataclass(frozen=True)
class Inspection:
    """What became of a file."""

    finding: Finding | None
    rows: tuple[int, ...] = ()
    """Positions that show the finding, the plainest first."""
    inspected: int = 0
    """Rows that went through the dear checks."""


def of_cheap(finding: Finding) -> Inspection:
    """A file that fails a check needing no forward pass: the first that failed, and its row if it concerns one."""
    return Inspection(finding, () if finding.position is None else (finding.position,))


def of_dear(findings: Sequence[Finding | None]) -> Inspection:
    """A file whose sampled rows gave these findings, one per row."""
    failed = sorted((finding for finding in findings if finding is not None), key=_plainness)
    rows = tuple(finding.position for finding in failed if finding.position is not None)
    return Inspection(failed[0] if failed else None, rows, len(findings))


def _plainness(finding: Finding) -> tuple[bool, int, float]:
    """Sorts what accuses before what only rejects, then by the order of the checks, then the worst first."""
    beyond = 0.0 if finding.measured is None or not finding.threshold else finding.measured / finding.threshold
    return not finding.accuse, REASONS.index(finding.reason), -beyond
