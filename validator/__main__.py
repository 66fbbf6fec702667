"""python -m validator --config FILE: inspect the work of one run until SIGTERM or SIGINT.

Ends with 0 after a signal; 3 when this key will never judge again (convicted, retired), so that nobody starts it
again; 4 when the chain refuses; 78 when the settings cannot work.
"""

from __future__ import annotations

import sys

from muster.process import run_process
from validator.service import serve

if __name__ == "__main__":
    sys.exit(run_process("validator", "inspect the work of one run", serve))
