"""What chance looks leave to a cheater.

Their rows are drawn without replacement (`muster.protocol.draws.draw_rows`) and the worker cannot know them, so the
number of false rows among them is hypergeometric. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def false_rows(positions: int, share: float) -> int:
    """Return how many rows of a commitment are false when this share of them is: at least one."""
    return min(positions, max(1, round(share * positions)))


def detection(positions: int, false: int, sample: int, per_row: float = 1.0) -> float:
    """Return the probability that a sample of `sample` rows shows that some of `positions` rows are false.

    `false` of the rows are; each of these in the sample is detected with probability `per_row`, independently of the
    others.
    """
    if not 0 <= false <= positions or not 0 <= sample <= positions:
        raise ValueError(f"{false} false rows and a sample of {sample} among {positions} rows")
    missed = sum(
        math.comb(false, seen) * math.comb(positions - false, sample - seen) * (1 - per_row) ** seen
        for seen in range(min(false, sample) + 1)
    )
    return 1 - missed / math.comb(positions, sample)


def detection_over(chances: Iterable[float]) -> float:
    """Return the probability that at least one of several commitments is caught, each with its own probability."""
    return 1 - math.prod(1 - chance for chance in chances)


def seen(positions: int, false: int, *, shared: int, own: int, looks: int, per_row: float = 1.0) -> float:
    """Return the probability that at least one of several looks at a commitment shows a false row.

    Each look replays `shared` rows that all replay, and `own` others that are drawn for it alone. The rest as in
    `detection`. A shared row counts once: who replays it again sees the same.
    """
    unseen = 0.0
    for some in range(max(0, shared - positions + false), min(false, shared) + 1):
        drawn = math.comb(false, some) * math.comb(positions - false, shared - some) / math.comb(positions, shared)
        alone = 1 - detection(positions - shared, false - some, own, per_row)
        unseen += drawn * (1 - per_row) ** some * alone**looks
    return 1 - unseen
