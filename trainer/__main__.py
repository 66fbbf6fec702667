"""python -m trainer --config FILE: train one run until `trainer.max_steps`, or until SIGTERM or SIGINT.

torchrun --nproc-per-node=N -m trainer --config FILE: the same on N GPUs, or in N processes.

Ends with 0 when finished or stopped by a signal, and else with a code of `muster.errors`.
"""

from __future__ import annotations

import sys

from muster.models.init import import_transformers
from muster.runtime.process import run_process
from trainer.distributed import is_first
from trainer.launch import serve

if __name__ == "__main__":
    what = "train one run's model on accepted work"
    sys.exit(run_process("trainer", what, serve, metrics=is_first(), prepare=import_transformers))
