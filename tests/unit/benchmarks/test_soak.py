"""The slopes of benchmarks/soak.py, and what it counts on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import Sample, figures, growth, kept_bytes


def test_growth_is_the_slope_of_the_last_half_in_percent_of_its_mean() -> None:
    assert growth([(hour, 100.0) for hour in range(6)]) == 0
    # What a start takes does not count. Of the rest the mean is 104 and the slope 2 an hour.
    assert growth([(0, 7), (1, 90), (2, 102), (3, 104), (4, 106)]) == pytest.approx(100 * 2 / 104)
    assert growth([(0, 0), (1, 0), (2, 110), (3, 100), (4, 90)]) == pytest.approx(-10)


def test_growth_above_one_percent_an_hour_misses_its_target() -> None:
    samples = [Sample(hours=n, memory=1000 + 20 * n, descriptors=50, disk=10_000 + n, commitments=n) for n in range(4)]
    memory, descriptors, disk = figures(samples)
    assert [one["name"] for one in (memory, descriptors, disk)] == [
        "soak_growth_memory",
        "soak_growth_descriptors",
        "soak_growth_disk",
    ]
    assert (memory["ours"], memory["holds"], memory["first"], memory["last"]) == (1.905, False, 1040, 1060)
    assert (descriptors["ours"], descriptors["holds"], disk["ours"], disk["holds"]) == (0, True, 0.009998, True)


def test_logs_and_histories_are_not_counted_as_kept(tmp_path: Path) -> None:
    (tmp_path / "w1").mkdir()
    for name, size in {
        "w1/journal.sqlite": 300,
        "w1/log.jsonl": 5000,
        "w1/history.jsonl": 700,
        "chain.json": 9,
    }.items():
        (tmp_path / name).write_bytes(bytes(size))
    assert kept_bytes(tmp_path) == 300


def test_what_a_member_that_passes_keeps_is_left_out(tmp_path: Path) -> None:
    for name, size in (("w1", 300), ("w7", 50)):
        (tmp_path / name / "state").mkdir(parents=True)
        (tmp_path / name / "state" / "journal.sqlite").write_bytes(bytes(size))
    assert kept_bytes(tmp_path, {"w7"}) == 300
