"""python -m validator.measure SPEC ROWS CELL: replay a probe's rows and keep every token's errors, for a calibration.

Needs no run, no chain and no key. `muster.verification.probes` has the spec, `muster.verification.measured` the cell.
--arithmetic replays as another machine would compute (`muster.models.arithmetic`). ROWS is read in this process: give
it files of machines that you trust. Ends with 0 whatever was measured, or with a code of `muster.errors`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from muster.errors import MalformedError
from muster.models.arithmetic import computing
from muster.rollouts.parquet import read_rollouts
from muster.runtime.process import run_tool
from muster.verification.measured import MeasuredCell, count_distinct, write_cell
from muster.verification.probes import check_probe_rows, read_spec
from muster.verification.profiles import PROFILES
from validator.replay import Replayer


def _measure(spec_path: Path, rows_path: Path, cell_path: Path, model: str, cell: str, arithmetic: str) -> None:
    spec = read_spec(spec_path)
    try:
        rows = read_rollouts(rows_path.read_bytes())
    except OSError as error:
        raise MalformedError(f"{rows_path} cannot be read: {error.strerror}", hint="run worker.probe first") from error
    replayer = Replayer(spec.model, PROFILES[spec.profile], spec.temperature, threads=spec.threads, matmul=spec.matmul)
    check_probe_rows(rows, spec, replayer.vocabulary)
    with computing(replayer.model, arithmetic):
        found = [row.errors for row in replayer.errors(rows)]
    write_cell(MeasuredCell(spec.profile, model, cell, False, found, count_distinct(rows)), cell_path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay and write the cell; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m validator.measure", description="measure the rows of a probe")
    parser.add_argument("spec", type=Path, metavar="SPEC", help="what was asked for (JSON)")
    parser.add_argument("rows", type=Path, metavar="ROWS", help="rollout file that worker.probe wrote")
    parser.add_argument("cell", type=Path, metavar="CELL", help="file to write")
    parser.add_argument("--model", default="model", help="what the model is called in the calibration")
    parser.add_argument("--name", default="cell", help="what the cell is called")
    parser.add_argument("--arithmetic", default="", help="replay as another machine would compute")
    options = parser.parse_args(arguments)
    files = (options.spec, options.rows, options.cell)
    return run_tool(partial(_measure, *files, options.model, options.name, options.arithmetic))


if __name__ == "__main__":
    sys.exit(main())
