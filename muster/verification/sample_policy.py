"""How many rows of a commitment a validator re-runs, and what chance that leaves to a cheater.

The rows are drawn without replacement (`muster.draws.draw_sample`) and the worker cannot know them, so how many lying
rows a sample holds is hypergeometric. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from muster.settings import ValidatorSettings


@dataclass(frozen=True)
class SamplePolicy:
    """How many rows of a commitment go through the dear checks. Of two reasons to look closer the stronger counts."""

    fraction: float
    minimum: int
    newcomer_commitments: int = 0
    """A node's first so many commitments are a newcomer's."""
    newcomer_factor: int = 1
    suspect_factor: int = 1

    @classmethod
    def of(cls, settings: ValidatorSettings) -> SamplePolicy:
        return cls(
            fraction=settings.sample_fraction,
            minimum=settings.sample_minimum,
            newcomer_commitments=settings.newcomer_commitments,
            newcomer_factor=settings.newcomer_factor,
            suspect_factor=settings.suspect_factor,
        )

    def count(self, positions: int, *, index: int, suspect: bool) -> int:
        """Rows of commitment number `index` (from 0) of a node, which has `positions`.

        suspect: the node was rejected before.
        """
        wanted = max(self.minimum, math.ceil(self.fraction * positions))
        newcomer = self.newcomer_factor if index < self.newcomer_commitments else 1
        return min(positions, wanted * max(newcomer, self.suspect_factor if suspect else 1))


def lying_rows(positions: int, share: float) -> int:
    """Rows of a commitment in which somebody lies who lies in this share of them: at least one."""
    return min(positions, max(1, round(share * positions)))


def detection(positions: int, lies: int, sample: int, per_row: float = 1.0) -> float:
    """Probability that a sample shows a lie: `sample` of `positions` rows, `lies` of them lying, each lie that is in
    the sample seen with probability `per_row`, independently of the others."""
    if not 0 <= lies <= positions or not 0 <= sample <= positions:
        raise ValueError(f"{lies} lies and a sample of {sample} among {positions} rows")
    missed = sum(
        math.comb(lies, seen) * math.comb(positions - lies, sample - seen) * (1 - per_row) ** seen
        for seen in range(min(lies, sample) + 1)
    )
    return 1 - missed / math.comb(positions, sample)


def detection_over(chances: Iterable[float]) -> float:
    """Probability that at least one of several commitments is caught, each of which is with its own probability."""
    return 1 - math.prod(1 - chance for chance in chances)


def rows_needed(per_row: float, wanted: float = 0.99) -> int | None:
    """Rows to re-run of somebody who lies in all of them, for a lie to be seen with probability `wanted`; None where
    no number suffices."""
    if per_row <= 0:
        return None
    return 1 if per_row >= wanted else math.ceil(math.log(1 - wanted) / math.log(1 - per_row))
