"""A calibration as a document: canonical JSON, whose hash a run's terms name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, FiniteFloat

from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.messages import Hash, Many, Message
from muster.runtime.documents import StrictDocument
from muster.verification.profiles import PROFILES, STATISTICS, Limit, LookLimits, Measured, PoolLimits, Profile

MAX_DOCUMENT: Final = 1 << 20
MAX_CELLS: Final = 1024

Name = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, lt=1 << 53)]


class CellReport(Message):
    """What one way of running the model came to."""

    model: Name
    """Which of the run's models: as it is, or sharpened."""
    cell: Name
    """How it was run."""
    rows: Count
    distinct: Count
    """Rows that differ from each other."""
    tokens: Count
    rejected: Count
    accused: Count
    worst: dict[str, Measured]
    """The largest value of each row statistic; 1e300 where it was infinite."""
    units: dict[str, Measured]
    """Mean of each statistic over the cell's pool units; empty where it has too few tokens for one."""
    leaning: Annotated[FiniteFloat, Field(ge=0, le=1)]
    """Share of these units that lean, by the statistic that has most of them."""
    looks: dict[str, Measured]
    """How far the numbers of its rows are, at most, from other machines', by limit; empty: they were not measured."""


class CheatReport(Message):
    """What the limits make of one known way to cheat."""

    name: Name
    rows: Count
    tokens: Count
    rejected: Annotated[FiniteFloat, Field(ge=0, le=1)]
    """Share of its rows that are rejected by themselves."""
    accused: Annotated[FiniteFloat, Field(ge=0, le=1)]
    leaning: dict[str, Annotated[FiniteFloat, Field(ge=0, le=1)]]
    """Share of its pool units that lean, by statistic."""
    units_to_reject: Count | None
    """Pool units until its work is rejected, where just this share of them leans; None where that does not come."""
    units_to_accuse: Count | None
    """The same until it is accused."""


def _of_each_statistic(limits: dict[str, float]) -> dict[str, float]:
    if limits.keys() != set(STATISTICS):
        raise ValueError(f"the statistics are not {', '.join(STATISTICS)}")
    return limits


RowLimits = Annotated[dict[str, Measured], AfterValidator(_of_each_statistic)]
"""By statistic: above this a row is rejected. Limits that accuse are as many times as large as in the profile."""


class Calibration(StrictDocument, Message):
    """What a run's terms name by its hash."""

    what: ClassVar = "a calibration"
    max_bytes: ClassVar = MAX_DOCUMENT
    hint: ClassVar = "muster run calibrate"

    version: Literal[3] = 3
    profile: str
    """Name of the profile that is narrowed."""
    model_hash: Hash
    """Of the model that was measured: the one the run begins with."""
    temperature_micro: Count
    pool: PoolLimits
    rows: RowLimits
    look: LookLimits
    margin: Measured
    """The least, over all cells and statistics, of an accusing limit over the worst honest value."""
    tokens: Count
    cells: Annotated[Many[CellReport], Field(min_length=1, max_length=MAX_CELLS)]
    cheats: Annotated[Many[CheatReport], Field(max_length=MAX_CELLS)]
    hardware: Annotated[str, Field(max_length=500)] = ""
    """On which it was measured, for people."""

    @property
    def hash(self) -> bytes:
        """Return what `Terms.profile` holds."""
        return hash_bytes(content_hash(self.to_bytes()))

    def to_profile(self) -> Profile:
        """Return the profile that a run with this calibration is judged by."""
        return narrowed(PROFILES[self.profile], self.pool, self.rows, self.look)


def narrowed(profile: Profile, pool: PoolLimits, rows: Mapping[str, float], look: LookLimits) -> Profile:
    """Return the profile with other limits: for pools, for rows by statistic those that reject, and for looks."""
    plain: dict[str, Limit] = {name: getattr(profile, name) for name in rows}
    limits = {name: Limit(value, value * (plain[name].accuse / plain[name].reject)) for name, value in rows.items()}
    return replace(profile, pool=pool, look=look, **limits)
