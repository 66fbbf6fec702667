"""How much of a commitment is re-run, and what the findings come to. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from muster.inspection import REASONS, Finding
from muster.settings import ValidatorSettings


@dataclass(frozen=True)
class SamplePolicy:
    """How many rows of a commitment go through the dear checks."""

    fraction: float
    minimum: int
    suspect_factor: int

    @classmethod
    def of(cls, settings: ValidatorSettings) -> SamplePolicy:
        return cls(settings.sample_fraction, settings.sample_minimum, settings.suspect_factor)

    def count(self, positions: int, *, suspect: bool) -> int:
        """Rows of a commitment with so many. A suspect is a node that was rejected before."""
        wanted = max(self.minimum, math.ceil(self.fraction * positions))
        return min(positions, wanted * (self.suspect_factor if suspect else 1))


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
