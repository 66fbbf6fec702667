"""A run's calibration: what honest work on its own model measures, the limits that follow, and what they detect.

The limits of a profile hold for every model. They are wide where one model needs it: bfloat16 moves the states of a
model with outlier channels by 2 to 3 %, and those of others by 1 to 2 %. So the owner of a run measures the model
that it will train, also with its logits sharpened as training does, and gets limits for *pools*
(`muster.verification.pools`) and for single rows that fit it. Those for rows are between half the profile's and the
profile's; a model on which these do not keep their margin is refused.

The result is a document of canonical JSON. Its hash takes the profile's place in the run's terms, and nodes fetch it
from the run's storage as they fetch the task set. Limits never change within a run: hardware that is added later is
measured against them (`check_against`) and is admitted only where its honest work keeps the same margins, which changes
nothing for who is there already.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from muster.errors import CheckError, MalformedError, MismatchError
from muster.protocol.draws import UNIT_ROWS
from muster.protocol.hashes import hash_bytes
from muster.protocol.reasons import UNIT_STATISTICS
from muster.runtime.files import read_bounded
from muster.verification.calibration_document import (
    MAX_DOCUMENT,
    Calibration,
    CellReport,
    CheatReport,
    narrowed,
)
from muster.verification.measured import MeasuredCell
from muster.verification.pools import ACCUSE, HONEST_SHARE, REJECT, UNIT_TOKENS, pool_evidence, unit_statistics
from muster.verification.profiles import PROFILES, STATISTICS, LookLimits, PoolLimits, Profile
from muster.verification.statistics import NOTHING, RowStatistics, scaled_errors

MARGIN: Final = 2.0
"""How many times as far out as the worst honest value a limit that accuses is, at least."""

LOOK_MARGIN: Final = {"float32": 2.0, "bfloat16": 2.5}
"""By dtype: how many times as far out as honest and perturbed machines' largest difference the limits of looks are."""

LEAST_LOOK_SHARE: Final = 0.125
"""Share of the profile's own limits of looks that a calibration's are, at least."""

UNIT_QUANTILE: Final = 0.99
UNIT_MARGIN: Final = 1.25
"""A pool limit is also this many times the quantile of a cell's units: few of them may lean (MAX_LEANING_SHARE)."""

LEAST: Final = {
    "float32": PoolLimits(gap_mean=0.02, activation=1e-4, logprob_rms=0.5, logprob_mean=0.1),
    "bfloat16": PoolLimits(gap_mean=0.04, activation=0.03, logprob_rms=1.5, logprob_mean=0.15),
}
"""By dtype: pool limits are not lower than these, whatever a calibration measures or its owner says. Honest work of a
model without outlier channels is below them (docs/understand/verification.md), so that no owner can make it lean;
others are protected by `muster doctor --engine` before they join."""

MOST: Final = 4.0
"""A calibration's limits of pools and looks are at most so many times the profile's own."""

ROW_MARGIN: Final = 2.0
"""How many times as far out as the worst honest row a limit that rejects is, where the profile's own is farther."""

LEAST_ROW_SHARE: Final = 0.5
"""Share of the profile's own limits for rows that a calibration's are, at least. So what accuses is never below what
the profile rejects, which no honest row of any model has reached (docs/understand/verification.md)."""

MAX_LEANING_SHARE: Final = HONEST_SHARE / 2
"""Share of a cell's units that may lean, by any one statistic."""

LEAST_UNITS: Final = 20
"""Pool units of each model, over all its cells: fewer do not show how rarely honest units lean."""

ROUNDING: Final = 1.001
"""Of margins that are recomputed from what a document says."""

_LARGEST: Final = 1e300
"""Stands in a report for what is infinite."""


class MarginError(CheckError):
    """Raised when a profile cannot keep its margins on a model: no run should be created with the two."""


def parse_calibration(data: bytes) -> Calibration:
    """Parse a stranger's document.

    Raises MalformedError when it is none, when its bytes are not the canonical ones, whose hash the terms name, or when
    it is for a profile that is not known here.
    """
    found = Calibration.parse(data)
    if found.profile not in PROFILES:
        raise MalformedError(f"the calibration is for the profile {found.profile!r}", hint="upgrade muster")
    return found


def read_document(path: Path) -> bytes:
    """Read the file of a calibration. Raises MalformedError when it cannot be read, or is too large to be one."""
    return read_bounded(path, MAX_DOCUMENT, hint="muster run calibrate")


def check_calibration(calibration: Calibration, model_hash: bytes, temperature_micro: int) -> None:
    """Check that a calibration is of this model at this temperature, and that its limits can be honest ones.

    Every node does so before it joins. Raises MismatchError, and MalformedError for limits that would make honest work
    lean, or that its own cells refute.
    """
    named = (hash_bytes(calibration.model_hash), calibration.temperature_micro)
    if named != (model_hash, temperature_micro):
        raise MismatchError(
            f"the calibration is of model {calibration.model_hash} at temperature "
            f"{calibration.temperature_micro / 1e6:g}, the terms name 0x{model_hash.hex()} at "
            f"{temperature_micro / 1e6:g}",
            hint="measure the run's own model: muster run calibrate",
        )
    profile = PROFILES[calibration.profile]
    for name, limit in calibration.pool.model_dump().items():
        least, most = getattr(LEAST[profile.dtype], name), MOST * getattr(profile.pool, name)
        if not least <= limit <= most:
            raise MalformedError(f"the calibration's pool limit {name} is {limit:g}; {least:g} to {most:g} are taken")
        if any(MARGIN * cell.units.get(name, 0.0) > limit * ROUNDING for cell in calibration.cells):
            raise MalformedError(f"the calibration's pool limit {name} is too near to its own honest cells")
    for name, limit in calibration.look.model_dump().items():
        least, most = (share * getattr(profile.look, name) for share in (LEAST_LOOK_SHARE, MOST))
        if not least <= limit <= most:
            raise MalformedError(f"the calibration's look limit {name} is {limit:g}; {least:g} to {most:g} are taken")
    for name, limit in calibration.rows.items():
        most = getattr(profile, name).reject
        if not LEAST_ROW_SHARE * most <= limit <= most:
            raise MalformedError(
                f"the calibration's row limit {name} is {limit:g}; {LEAST_ROW_SHARE * most:g} to {most:g} are taken"
            )
        accuse = getattr(calibration.to_profile(), name).accuse
        if any(MARGIN * cell.worst.get(name, 0.0) > accuse * ROUNDING for cell in calibration.cells):
            raise MalformedError(f"the calibration's row limit {name} is too near to its own honest cells")
    if not any(cell.units for cell in calibration.cells):
        raise MalformedError("no cell of the calibration has a pool unit")
    worst, units = set(STATISTICS), UNIT_STATISTICS.keys()
    if any(cell.worst.keys() != worst or (cell.units and cell.units.keys() != units) for cell in calibration.cells):
        raise MalformedError("a cell of the calibration has other statistics than those that are judged")
    refuted = any(cell.rejected or cell.accused or cell.leaning > MAX_LEANING_SHARE for cell in calibration.cells)
    if calibration.margin * ROUNDING < MARGIN or refuted:
        raise MalformedError("the calibration's own honest cells do not keep its margins")


def calibrate(
    cells: Sequence[MeasuredCell],
    cheats: Sequence[MeasuredCell],
    profile: Profile,
    *,
    model_hash: bytes,
    temperature_micro: int,
    hardware: str = "",
) -> Calibration:
    """Derive a calibration from measured honest cells and cheats. Raises MarginError where no limits hold."""
    # 1. Pool limits, from the units of every cell.
    measured = _measured(cells, profile)
    least, found = LEAST[profile.dtype].model_dump(), [units for _, units in measured]
    limits = PoolLimits(**{name: _limit(name, value, found) for name, value in least.items()})

    # 2. Limits of rows and looks, from the worst row of every cell.
    rows = _row_limits(cells, profile)
    looks = _look_differences(cells)
    look = _look_limits(looks, profile)
    judged = narrowed(profile, limits, rows, look)

    # 3. What honest work measures against them: any rejection or thin margin ends it.
    reports = [_cell_report(*one, judged, apart) for one, apart in zip(measured, looks, strict=True)]
    margin = _check_margins(reports, judged)

    # 4. What they make of the known cheats.
    return Calibration(
        profile=profile.name,
        model_hash="0x" + model_hash.hex(),
        temperature_micro=temperature_micro,
        pool=limits,
        rows=rows,
        look=look,
        margin=margin,
        tokens=sum(cell.tokens for cell in cells),
        cells=reports,
        cheats=[_cheat_report(cell, judged) for cell in cheats],
        hardware=hardware,
    )


def check_against(cells: Sequence[MeasuredCell], calibration: Calibration) -> float:
    """Check that other hardware's honest cells keep the margins under the limits in force; return the least.

    Raises MarginError: that hardware cannot work for the run. The limits themselves never change within one.
    """
    profile = calibration.to_profile()
    return _check_margins([_cell_report(*one, profile, {}) for one in _measured(cells, profile)], profile)


def has_own_limits(profile: Profile, tokens: int) -> bool:
    """Return whether pool limits are of a run's owner, and so many measured tokens enough to say something of them."""
    return profile.pool != PROFILES[profile.name].pool and tokens >= UNIT_TOKENS


def narrow_limit(profile: Profile, cells: Mapping[str, Mapping[str, float]]) -> str:
    """Return which pool limit of a run's owner is too near to what honest machines measure, or "".

    A calibration keeps twice the mean of its worst honest cell. `cells`: units by name, which its owner may not have
    measured.
    """
    for cell, unit in cells.items():
        for name, value in unit.items():
            if MARGIN * value > (limit := getattr(profile.pool, name, math.inf)):
                return (
                    f"the run's pool limit of {name} is {limit:g}, less than {MARGIN:g} times what honest work "
                    f"measures here in the cell {cell!r}: {value:.4g}"
                )
    return ""


def _measured(cells: Sequence[MeasuredCell], profile: Profile) -> list[tuple[MeasuredCell, list[dict[str, float]]]]:
    """Return every cell with its units. Raises MarginError where a model has too few of them to say anything."""
    found = [(cell, pool_units(cell, profile)) for cell in cells]
    for model in dict.fromkeys(cell.model for cell in cells):
        if (count := sum(len(units) for cell, units in found if cell.model == model)) < LEAST_UNITS:
            raise MarginError(
                f"{count} pool units were measured of the model {model}; {LEAST_UNITS} are needed",
                hint="measure more: a larger --tokens",
            )
    return found


def pool_units(cell: MeasuredCell, profile: Profile) -> list[dict[str, float]]:
    """Put a cell's rows together into pool units and return their statistics."""
    found, waiting, rows = [], NOTHING, 0
    for row in cell.rows:
        waiting, rows = waiting + scaled_errors(row, profile).sums(profile), rows + 1
        if waiting.tokens >= UNIT_TOKENS or rows == UNIT_ROWS:
            found.append(unit_statistics(waiting))
            waiting, rows = NOTHING, 0
    return found


def _limit(name: str, least: float, cells: Sequence[Sequence[dict[str, float]]]) -> float:
    """Return the pool limit of one statistic: rounded up to three digits."""
    wanted = least
    for units in cells:
        if units:
            values = np.array([unit[name] for unit in units])
            high = float(np.quantile(values, UNIT_QUANTILE, method="higher"))
            wanted = max(wanted, MARGIN * float(values.mean()), UNIT_MARGIN * high)
    return _rounded_up(wanted)


def _row_limits(cells: Sequence[MeasuredCell], profile: Profile) -> dict[str, float]:
    """Return the limits above which a row is rejected, by statistic: rounded up to three digits."""
    rows = [scaled_errors(row, profile).statistics() for cell in cells for row in cell.rows]
    found = {}
    for name in STATISTICS:
        most = getattr(profile, name).reject
        wanted = ROW_MARGIN * max(_finite(getattr(row, name)) for row in rows)
        found[name] = min(most, _rounded_up(max(LEAST_ROW_SHARE * most, wanted)))
    return found


def _look_differences(cells: Sequence[MeasuredCell]) -> list[dict[str, float]]:
    """Return how far each cell's looks are, at most, from a perturbed machine's, by limit; empty for a cell without.

    And from those of the first cell of its model that has the same rows.
    """
    found, first = [], {}
    for cell in cells:
        if cell.looks is None:
            found.append({})
            continue
        # Claims do not change with the machine that replays them.
        one = first.setdefault((cell.model, *(row.claimed.tobytes() for row in cell.rows)), cell.looks[0])
        most = np.abs(np.stack([*cell.looks, one]) - cell.looks[0]).max(axis=(0, 1, 3)).tolist()
        found.append({name: _finite(value) for name, value in zip(LookLimits.model_fields, most, strict=True)})
    return found


def _look_limits(differences: Sequence[Mapping[str, float]], profile: Profile) -> LookLimits:
    """Return the limits of looks, rounded up to three digits. The profile's own, where no looks were measured.

    They are wide enough for perturbed machines to agree (`judge_look`) on usual rows: else no lie would be seen.
    """
    found = {}
    for name, own in profile.look.model_dump().items():
        values = [one[name] for one in differences if one]
        wanted = LOOK_MARGIN[profile.dtype] * max(values) if values else own
        found[name] = min(MOST * own, _rounded_up(max(LEAST_LOOK_SHARE * own, wanted)))
    return LookLimits(**found)


def _rounded_up(value: float) -> float:
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / step - 1e-9) * step:.3g}")


def _cell_report(
    cell: MeasuredCell, units: Sequence[dict[str, float]], profile: Profile, looks: Mapping[str, float]
) -> CellReport:
    rows = [scaled_errors(row, profile).statistics() for row in cell.rows]
    verdicts = [beyond(row, profile) for row in rows]
    return CellReport(
        model=cell.model,
        cell=cell.cell,
        rows=len(rows),
        distinct=cell.distinct,
        tokens=cell.tokens,
        rejected=sum(rejected for rejected, _ in verdicts),
        accused=sum(accused for _, accused in verdicts),
        worst={name: max(_finite(getattr(row, name)) for row in rows) for name in STATISTICS},
        units={name: _finite(float(np.mean([unit[name] for unit in units]))) for name in UNIT_STATISTICS if units},
        leaning=max(_leaning(units, profile).values()),
        looks=dict(looks),
    )


def _leaning(units: Sequence[dict[str, float]], profile: Profile) -> dict[str, float]:
    """Return the share of units that lean, by statistic."""
    return {
        name: sum(unit[name] > getattr(profile.pool, name, 0.0) for unit in units) / max(1, len(units))
        for name in UNIT_STATISTICS
    }


def _finite(value: float) -> float:
    """Return the value, or a very large one for what is infinite or no number."""
    return value if value < _LARGEST else _LARGEST


def beyond(row: RowStatistics, profile: Profile) -> tuple[bool, bool]:
    """Return whether a row is rejected, and whether it is accused."""
    rejected = any(not getattr(row, name) <= getattr(profile, name).reject for name in STATISTICS)
    accused = any(not getattr(row, name) <= getattr(profile, name).accuse for name in STATISTICS)
    return rejected, accused


def _check_margins(reports: Sequence[CellReport], profile: Profile) -> float:
    """Return the least margin. Raises MarginError where one is below MARGIN, or an honest row is rejected."""
    least, where = math.inf, ""
    for report in reports:
        about = f"{report.model}, {report.cell}"
        if report.rejected:
            raise MarginError(
                f"{profile.name} rejects {report.rejected} of {report.rows} honest rows ({about})",
                hint="choose another profile: float32 rejects none of these",
            )
        found = [(getattr(profile, name).accuse / max(value, 1e-12), name) for name, value in report.worst.items()]
        pool = profile.pool.model_dump()
        found += [(limit / max(report.units.get(name, 0.0), 1e-12), name) for name, limit in pool.items()]
        if report.leaning > MAX_LEANING_SHARE:
            raise MarginError(
                f"{report.leaning:.1%} of the honest units lean under these pool limits ({about}); "
                f"{MAX_LEANING_SHARE:.1%} may",
                hint="this hardware or this way to run cannot work for such a run",
            )
        margin, name = min(found)
        if margin < least:
            least, where = margin, f"{name} ({about})"
    if least < MARGIN - 1e-6:  # a limit of just twice a mean, in floats
        raise MarginError(
            f"{profile.name} keeps a margin of {least:.2f} only, for {where}; at least {MARGIN:g} are needed",
            hint="choose another profile, or fewer ways to run the model",
        )
    return min(least, 1e12)


def _cheat_report(cell: MeasuredCell, profile: Profile) -> CheatReport:
    verdicts = [beyond(scaled_errors(row, profile).statistics(), profile) for row in cell.rows]
    units = pool_units(cell, profile)
    leaning = _leaning(units, profile)
    most = max(leaning.values())
    return CheatReport(
        name=cell.cell,
        rows=len(cell.rows),
        tokens=cell.tokens,
        rejected=sum(rejected for rejected, _ in verdicts) / len(verdicts),
        accused=sum(accused for _, accused in verdicts) / len(verdicts),
        leaning=leaning,
        units_to_reject=_units_until(REJECT, most),
        units_to_accuse=_units_until(ACCUSE, most),
    )


def _units_until(threshold: float, share: float, most: int = 1000) -> int | None:
    """Return after how many units the evidence of a node that leans in this share of them reaches a threshold."""
    for count in range(1, most + 1):
        if pool_evidence(math.floor(share * count), count) >= threshold:
            return count
    return None
