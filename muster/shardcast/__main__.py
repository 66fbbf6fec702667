"""python -m muster.shardcast --config FILE: serve weights, as an origin or a relay, until SIGTERM or SIGINT.

Exit codes are those of `muster.errors`: 0 after a signal, 78 when the settings cannot work, an occupied port included.
"""

from __future__ import annotations

import sys

from muster.runtime.process import run_process
from muster.shardcast.serve.process import serve

if __name__ == "__main__":
    sys.exit(run_process("muster.shardcast", "serve a run's weights", serve, metrics=False))
