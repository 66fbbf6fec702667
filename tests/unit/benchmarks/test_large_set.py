"""The measurement of large task sets measures what it says, on a small one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scoring.large_set import measure


def test_a_small_set_is_measured(tmp_path: Path) -> None:
    told = measure(1200, tmp_path)
    assert (told["rows"], told["taken"], told["slots"], told["shards"]) == (1200, 1200, 1188, 3)
    assert told["proof_bytes"] <= 1536
    assert told["stored_bytes"] < told["decompressed_bytes"]
    assert 0 < told["open_bytes"] <= told["tasks_bytes"]
    assert list(tmp_path.iterdir()) == []
