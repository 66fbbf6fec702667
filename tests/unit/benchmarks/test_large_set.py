"""The measurement of large task sets measures what it says, on a small one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scoring.large_set import measure


def test_a_small_set_is_measured(tmp_path: Path) -> None:
    report = measure(1200, tmp_path)
    assert (report["rows"], report["taken"], report["slots"], report["shards"]) == (1200, 1200, 1188, 3)
    assert report["proof_bytes"] <= 1536
    assert report["stored_bytes"] < report["decompressed_bytes"]
    assert 0 < report["open_bytes"] <= report["tasks_bytes"]
    assert list(tmp_path.iterdir()) == []
