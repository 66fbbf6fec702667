"""python -m validator.probe SPEC ROWS REPORT: replay the rows of a probe and write what was measured and found.

Needs no run, no chain and no key. `muster.verification.probes` has the spec and the report. ROWS is read in this
process: give it files of machines that you trust. Ends with 0 whatever was found, or with a code of `muster.errors`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import reduce
from operator import add

from muster.models.arithmetic import HONEST, computing
from muster.rollouts.schema import Rollout
from muster.verification.bundles import finite
from muster.verification.pools import unit_statistics
from muster.verification.probes import (
    ProbedRow,
    ProbeFinding,
    ProbeReport,
    ProbeSpec,
    check_probe_rows,
    run_comparison,
)
from muster.verification.profiles import PROFILES, STATISTICS, Profile
from validator.replay import Measurement, Replayer, judge


def replay(spec: ProbeSpec, rows: Sequence[Rollout]) -> ProbeReport:
    """Measure and judge the rows under the spec's model. Raises MismatchError when they are not of the spec."""
    profile = PROFILES[spec.profile]
    replayer = Replayer(spec.model, profile, spec.temperature, threads=spec.threads, matmul=spec.matmul)
    check_probe_rows(rows, spec, replayer.vocabulary)
    measured = replayer.replay(rows)
    found = [_probed(row, one, profile) for row, one in zip(rows, measured, strict=True)]
    cells = {}
    for name in HONEST[profile.dtype]:
        with computing(replayer.model, name):
            cells[name] = _unit(replayer.replay(rows))
    return ProbeReport(profile=profile.name, rows=found, unit=_unit(measured), cells=cells)


def _unit(measured: Sequence[Measurement]) -> dict[str, float]:
    unit = unit_statistics(reduce(add, (one.sums for one in measured)))
    return {name: _finite(value) for name, value in unit.items()}


def _probed(row: Rollout, measurement: Measurement, profile: Profile) -> ProbedRow:
    statistics = {name: _finite(getattr(measurement, name)) for name in STATISTICS}
    finding = judge([measurement], profile)
    return ProbedRow(
        position=row.position,
        tokens=len(row.completion_tokens),
        statistics=statistics,
        finding=None
        if finding is None
        else ProbeFinding(
            reason=finding.reason,
            measured=_finite(finding.measured),
            threshold=_finite(finding.threshold),
            accuse=finding.accuse,
            detail=finding.detail,
        ),
    )


def _finite(value: float | None) -> float:
    found = finite(value)
    assert found is not None, "a replay check measures something"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay and write the report; return the exit code."""
    return run_comparison("validator.probe", "replay the rows of a probe", replay, arguments)


if __name__ == "__main__":
    sys.exit(main())
