"""python -m worker --config FILE: generate rollouts for one run until SIGTERM or SIGINT.

Ends with 0 after a signal; 3 when this key will never work again (convicted, retired, run closed), so that nobody
starts it again; 4 when the chain refuses; 78 when the settings cannot work.
"""

from __future__ import annotations

import sys

from muster.process import run_process
from worker.service import serve

if __name__ == "__main__":
    sys.exit(run_process("worker", "generate rollouts for one run", serve))
