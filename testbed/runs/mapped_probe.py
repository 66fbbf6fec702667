"""python -m testbed.runs.mapped_probe SPEC ROWS: worker.probe, which also says which of vLLM's kernels it loaded.

Their names, without folder and ending, are the lines of ROWS with the ending .kernels.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from worker.probe import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    mapped = set(re.findall(r"/vllm/(_C\w*)\.", Path("/proc/self/maps").read_text()))
    Path(sys.argv[2]).with_suffix(".kernels").write_text("\n".join(sorted(mapped)))
    sys.exit(code)
