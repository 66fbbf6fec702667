"""Judge what a replay measured of rows by the limits of a profile. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from muster.protocol.reasons import ROW_STATISTICS
from muster.verification.checks import Finding
from muster.verification.measured import MeasuredCell
from muster.verification.pools import unit_statistics
from muster.verification.profiles import STATISTICS, Limit, Profile
from muster.verification.statistics import NOTHING, RowStatistics, RowSums, TokenErrors, scaled_errors


@dataclass(frozen=True, kw_only=True)
class Measurement(RowStatistics):
    """What one rollout claims against what the model says. All are at least 0, and small for honest work."""

    position: int
    sums: RowSums = NOTHING
    """What pools add up."""
    detail: str = ""
    """Why the proof cannot be compared, if so."""

    @classmethod
    def of(cls, errors: TokenErrors, profile: Profile, position: int, detail: str = "") -> Measurement:
        """Return what the errors of a row's tokens come to under a profile."""
        scaled = scaled_errors(errors, profile)
        return cls(**asdict(scaled.statistics()), position=position, sums=scaled.sums(profile), detail=detail)


def measurements(cell: MeasuredCell, profile: Profile) -> list[Measurement]:
    """Return what the rows of a measured cell come to under a profile, by position."""
    return [Measurement.of(errors, profile, position) for position, errors in enumerate(cell.rows)]


def unit_of(rows: Sequence[Measurement]) -> dict[str, float]:
    """Return the statistics of all rows as one unit of a pool, by name."""
    return unit_statistics(sum((row.sums for row in rows), NOTHING))


def worst_statistic(rows: Sequence[Measurement], profile: Profile) -> tuple[str, float]:
    """Return the name and value of what has the largest share of the limit that rejects. There is at least one row."""
    values = [(name, getattr(row, name)) for row in rows for name in STATISTICS]
    return max(values, key=lambda one: one[1] / getattr(profile, one[0]).reject)


def judge_stable(
    errors: TokenErrors, draws: Sequence[TokenErrors], profile: Profile, position: int, detail: str = ""
) -> Finding | None:
    """Return what is wrong with a row by its tokens on which honest machines agree; None where nothing is.

    draws: the honest spread, one per machine. A token is left out where one of them is off by a limit that rejects, and
    a statistic of the others where they reach its limit together.
    """
    stable = ~np.any([_unstable(draw, profile) for draw in draws], axis=0)
    if not stable.any():
        return None
    spread = [scaled_errors(draw.at(stable), profile).statistics() for draw in draws]
    measured = Measurement.of(errors.at(stable), profile, position, detail)
    for name in STATISTICS:
        if not max(getattr(one, name) for one in spread) < getattr(profile, name).reject:
            measured = replace(measured, **{name: 0.0})
    return judge([measured], profile)


def _unstable(draw: TokenErrors, profile: Profile) -> np.ndarray:
    """Return on which tokens a machine is off by a limit that rejects: bool [T]."""
    scaled = scaled_errors(draw, profile)
    sure = scaled.gaps < profile.gap_worst.reject
    sure &= np.abs(scaled.logprobs) < profile.logprob_worst.reject
    return ~(sure & (scaled.states < profile.activation.reject**2))


def judge(measurements: Sequence[Measurement], profile: Profile) -> Finding | None:
    """Return what is wrong with these rollouts: accusing before rejecting findings, then in the order of the checks."""
    for accuse in (True, False):
        for statistic, (reason, words) in ROW_STATISTICS.items():
            limit: Limit = getattr(profile, statistic)
            threshold = limit.accuse if accuse else limit.reject
            for measurement in measurements:
                value: float = getattr(measurement, statistic)
                if not value <= threshold:
                    detail = words if math.isfinite(value) else measurement.detail or words
                    return Finding(reason, measurement.position, value, threshold, accuse=accuse, detail=detail)
    return None
