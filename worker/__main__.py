"""python -m worker --config FILE: generate rollouts for one run until SIGTERM or SIGINT.

Ends with 0 after a signal, and when nothing is left to do (retired, run closed); 3 when this key was convicted, so that
it is not started again; 4 when the chain refuses; 78 when the settings cannot work.
"""

from __future__ import annotations

import sys

from muster.runtime.process import STOP_SECONDS, run_process
from worker.engine import import_vllm
from worker.service import serve

if __name__ == "__main__":
    what = "generate rollouts for one run"
    sys.exit(run_process("worker", what, serve, stop_seconds=STOP_SECONDS, prepare=import_vllm))
