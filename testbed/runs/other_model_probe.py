"""python -m testbed.runs.other_model_probe SPEC ROWS REPORT: a replay whose model is not the one that generated."""

from __future__ import annotations

import sys
from pathlib import Path

from muster.verification.probes import read_spec, write_document
from testbed.samples.models import DEMO, write_model
from validator.probe import main

if __name__ == "__main__":
    path = Path(sys.argv[1])
    write_document(read_spec(path).model_copy(update={"model": write_model(path.parent / "other", DEMO, seed=2)}), path)
    sys.exit(main(sys.argv[1:]))
