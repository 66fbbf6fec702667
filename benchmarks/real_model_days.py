"""What becomes of a node within a day; figures of a real model's cheats, which `real_model.py` measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from benchmarks import report
from benchmarks.report import table
from muster.protocol.reasons import UNIT_STATISTICS
from muster.verification.calibration import beyond
from muster.verification.measured import MeasuredCell
from muster.verification.pools import ACCUSE, REJECT, UNIT_TOKENS, WINDOW, pool_evidence, unit_statistics
from muster.verification.profiles import BF16, CPU_FP32, Profile
from muster.verification.statistics import NOTHING, ScaledErrors, scaled_errors

NAME = "SmolLM2-135M-Instruct"
STEPS, TOKENS = 24, 64
"""Of a day, and of a completion."""
VALIDATORS, OWN_ROWS, POOL_ROWS = 2, 8, 8
CALIBRATED = f"{BF16.name}, calibrated"
HONEST_DAY, EDITED = "honest", "an edited last token"
SPOILED = ("an edited last token, its proof spoiled", "an edited last token, its row's proof spoiled")
"""What an activation proof could license: at the edited token, and in all of its row as far as that passes."""


# --- A day


@dataclass(frozen=True)
class Day:
    """What becomes of one node within a day, under one profile. Numbers of steps count from 1; None: not within it."""

    name: str
    rows: int
    tokens: int
    rejected: float
    """Share of its rows that are rejected by themselves."""
    accused: float
    pool_rejects: int | None
    pool_accuses: int | None
    statistic: str
    """Which one the pool shows it by."""

    @property
    def caught(self) -> bool:
        rows = STEPS * (POOL_ROWS + VALIDATORS * OWN_ROWS)
        return self.pool_accuses is not None or 1 - (1 - self.accused) ** rows >= 0.99


def day_of(cell: MeasuredCell, profile: Profile) -> Day:
    """Judge a day's steps one after the other."""
    # 1. Single rows.
    scaled = [scaled_errors(row, profile) for row in cell.rows]
    verdicts = [beyond(row.statistics(), profile) for row in scaled]

    # 2. What the pool of all shows.
    found = evidence_of([step.tolist() for step in np.split(np.arange(len(scaled)), STEPS)], scaled, profile)
    statistic = max(found, key=lambda name: max(found[name]))
    return Day(
        name=cell.cell,
        rows=len(verdicts),
        tokens=cell.tokens,
        rejected=sum(rejected for rejected, _ in verdicts) / len(verdicts),
        accused=sum(accused for _, accused in verdicts) / len(verdicts),
        pool_rejects=_first(found[statistic], REJECT),
        pool_accuses=_first(found[statistic], ACCUSE),
        statistic=statistic if max(found[statistic]) >= REJECT else "",
    )


def evidence_of(
    steps: Sequence[Sequence[int]], rows: Sequence[ScaledErrors], profile: Profile
) -> dict[str, list[float]]:
    """Return by statistic the most that the windows which end with each step show. A step is places of its rows."""
    # 1. Units: of each step as many rows as make UNIT_TOKENS tokens.
    leaning = []
    for step in steps:
        unit = NOTHING
        for place in step[:POOL_ROWS]:
            if unit.tokens < UNIT_TOKENS:
                unit += rows[place].sums(profile)
        statistics = unit_statistics(unit)
        leaning.append({name: statistics[name] > getattr(profile.pool, name, 0.0) for name in UNIT_STATISTICS})

    # 2. Every window.
    found = {}
    for name in UNIT_STATISTICS:
        sums = [0, *accumulate(one[name] for one in leaning)]
        found[name] = [
            max(pool_evidence(sums[end] - sums[first], end - first) for first in range(max(0, end - WINDOW), end))
            for end in range(1, len(sums))
        ]
    return found


def _first(values: Sequence[float], threshold: float) -> int | None:
    return next((place for place, value in enumerate(values, 1) if value >= threshold), None)


@dataclass(frozen=True)
class ProfileDays:
    """What one profile makes of all that was measured."""

    days: list[Day]
    honest_rows: int
    """Of the calibration's cells."""
    honest_rejected: int


def judge_days(honest: Sequence[MeasuredCell], cells: Sequence[MeasuredCell], profile: Profile) -> ProfileDays:
    rows = [scaled_errors(row, profile).statistics() for cell in honest for row in cell.rows]
    rejected = sum(beyond(row, profile)[0] for row in rows)
    return ProfileDays([day_of(cell, profile) for cell in cells], len(rows), rejected)


# --- Figures

FIGURES = {CPU_FP32.name: ("real_fp32", 1.0), BF16.name: ("real_bf16", 0.75), CALIBRATED: ("real_bf16_calibrated", 0.9)}
"""By profile: the name of its figure, and the target."""


def figures(found: Mapping[str, ProfileDays]) -> list[report.Figure]:
    """Return the figures of those profiles that were measured."""
    made, wrong = list[report.Figure](), 0
    for name, one in found.items():
        known = {day.name: day for day in one.days}
        cheats = [day for day in one.days if day.name not in (HONEST_DAY, *SPOILED)]
        caught = [day for day in cheats if day.caught]
        missed = ", ".join(day.name for day in cheats if not day.caught) or "none"
        figure, target = FIGURES[name]
        unit = f"of {len(cheats)} cheats on {NAME} are accused within a day under {name}; not: {missed}"
        ratio = len(caught) / max(1, len(cheats))
        made.append(report.figure(figure, len(caught), ratio=ratio, target=target, unit=unit))
        wrong += one.honest_rejected
        if (day := known.get(HONEST_DAY)) is not None:
            wrong += round(day.rejected * day.rows) + (day.pool_rejects is not None)
    return [*made, report.none("real_honest", wrong, f"honest rows of {NAME}, or days, are rejected")]


def page(found: Mapping[str, ProfileDays]) -> str:
    """Write the table of docs/understand/verification.md."""
    columns = {name: {day.name: day for day in one.days} for name, one in found.items()}
    heads = ["", *(f"{name}: {head}" for name in columns for head in ("rows rejected", "accused", "caught"))]
    kinds = dict.fromkeys(day.name for one in found.values() for day in one.days)
    lines = [[kind, *(text for days in columns.values() for text in _texts(days.get(kind)))] for kind in kinds]
    own = [one for name, one in found.items() if name != CALIBRATED]
    tokens = sum(day.tokens for one in own for day in one.days)
    caught = [
        f"{sum(day.caught for day in cheats)} of {len(cheats)} cheats are caught under {name}"
        for name, one in found.items()
        if (cheats := [day for day in one.days if day.name not in (HONEST_DAY, *SPOILED)])
    ]
    return (
        f"{NAME}, {STEPS} steps of each kind, rows of at most {TOKENS} tokens, {tokens:,} tokens in all. "
        f"{'; '.join(caught)}. Of {sum(one.honest_rows for one in own):,} honest rows besides the honest day's "
        f"{sum(one.honest_rejected for one in own)} are rejected. *Caught* gives the step at which the pool accuses, "
        "or says that single rows do.\n\n" + table(heads, lines)
    )


def _texts(day: Day | None) -> tuple[str, str, str]:
    if day is None:
        return "", "", ""
    caught = "**no**" if not day.caught else "by rows" if day.pool_accuses is None else f"step {day.pool_accuses}"
    return f"{day.rejected:.0%}", f"{day.accused:.0%}", caught
