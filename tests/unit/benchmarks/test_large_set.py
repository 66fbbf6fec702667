"""The measurement of large task sets measures what it says, on a small one."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.scoring.large_set import measure


def test_a_small_set_is_measured(tmp_path: Path) -> None:
    begun, cpu = time.perf_counter(), time.process_time()
    costs = measure(1200, tmp_path)
    passed, computed = time.perf_counter() - begun, time.process_time() - cpu
    assert (costs.rows, costs.slots) == (1200, 1188), "1 in 100 is held out"
    assert costs.proof_bytes == 11 * 32, "1,188 leaves are below 2 to the 11th"
    assert 1 << 20 < costs.bytes < 1 << 30, "the imports alone take some MiB"
    assert costs.start_s > 0
    assert costs.start_s + 1200 / costs.import_rate < passed
    assert 0 < 1200 / costs.import_rate_per_cpu_second < computed
    assert list(tmp_path.iterdir()) == []
