"""python -m validator.measure SPEC ROWS CELL: replay a probe's rows, keep every token's errors and the looks.

Needs no run, no chain and no key. `muster.verification.probes` has the spec, `muster.verification.measured` the cell.
ROWS is read in this process: give it files of machines that you trust. Ends with 0 whatever was measured, or with a
code of `muster.errors`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from muster.models.arithmetic import computing, perturbing
from muster.rollouts.schema import Rollout
from muster.verification.measured import LOOK, MeasuredCell, count_distinct
from muster.verification.probes import ProbeSpec, check_probe_rows, run_comparison
from muster.verification.profiles import PROFILES
from muster.verification.replay import Replayer


def measure(spec: ProbeSpec, rows: Sequence[Rollout]) -> bytes:
    """Return the cell of the rows under the spec's model. Raises MismatchError when they are not of the spec."""
    replayer = Replayer(spec.model, PROFILES[spec.profile], spec.temperature, threads=spec.threads, matmul=spec.matmul)
    check_probe_rows(rows, spec, replayer.vocabulary)
    with computing(replayer.model, spec.arithmetic):
        found = replayer.errors(rows, LOOK)
    with perturbing(replayer.model, seed=0):
        perturbed = replayer.errors(rows, LOOK)
    errors, looks = [row.errors for row in found], np.array([[row.look for row in one] for one in (found, perturbed)])
    return MeasuredCell(spec.profile, "model", "cell", False, errors, count_distinct(rows), looks).to_bytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay and write the cell; return the exit code."""
    return run_comparison("validator.measure", "measure the rows of a probe", measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
