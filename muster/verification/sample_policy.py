"""How many rows of a commitment a validator re-runs, and what chance that leaves to a cheater.

The rows are drawn without replacement (`muster.protocol.draws.draw_sample`) and the worker cannot know them, so the
number of false rows in a sample is hypergeometric. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from muster.protocol.traps import rows_to_replay
from muster.settings.schema import ValidatorSettings

OWN: Final = {"sample_fraction", "sample_minimum", "newcomer_commitments", "newcomer_factor"}
"""Settings of a validator's own sample, for nodes that it has not rejected."""


def sample_size(
    settings: ValidatorSettings, positions: int, *, index: int, suspect: bool, pooled: int | None = None
) -> int:
    """Return how many of the `positions` of a node's commitment number `index` (from 0) go through the replay checks.

    suspect: whether the node was rejected before. Of two reasons for a larger sample the stronger counts. pooled: of a
    run with traps, how many rows of the pool are re-run besides: together they are what earns most, unless a validator
    set another sample.
    """
    wanted = max(settings.sample_minimum, math.ceil(settings.sample_fraction * positions))
    newcomer = settings.newcomer_factor if index < settings.newcomer_commitments else 1
    if pooled is not None and not settings.model_fields_set & OWN:
        wanted, newcomer = max(1, rows_to_replay(positions, index) - pooled), 1
    return min(positions, wanted * max(newcomer, settings.suspect_factor if suspect else 1))


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
