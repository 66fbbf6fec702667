"""The measurement of large task sets measures what it says, on a small one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scoring.large_set import measure


def test_a_small_set_is_measured(tmp_path: Path) -> None:
    costs = measure(1200, tmp_path)
    assert (costs.rows, costs.slots) == (1200, 1188)
    assert 0 < costs.proof_bytes <= 1536
    assert costs.bytes > 0
    assert list(tmp_path.iterdir()) == []
