"""What a rejection means, in the words that its worker reads."""

from __future__ import annotations

from dataclasses import fields

from muster.protocol.reasons import POOLED, REASONS, ROW_STATISTICS, UNIT_STATISTICS, explain
from muster.verification.pools import unit_statistics
from muster.verification.profiles import PROFILES
from muster.verification.statistics import NOTHING, RowStatistics


def test_a_rejection_by_a_pool_says_that_no_single_row_shows_it() -> None:
    assert explain("sampling_mismatch", 3) == REASONS["sampling_mismatch"].means
    assert explain("sampling_mismatch", None) == REASONS["sampling_mismatch"].means + POOLED
    assert "muster doctor --engine" in POOLED
    assert explain("data_missing", None) == REASONS["data_missing"].means


def test_reasons_found_by_replay_and_no_others_read_statistics() -> None:
    replayed = {reason for reason, row in REASONS.items() if row.shown_by == "replay"}
    assert {reason for reason, _ in ROW_STATISTICS.values()} == replayed
    assert {reason for reason, _ in UNIT_STATISTICS.values()} == replayed


def test_every_statistic_is_measured_and_every_mean_has_its_limit() -> None:
    assert list(ROW_STATISTICS) == [field.name for field in fields(RowStatistics)]
    assert UNIT_STATISTICS.keys() == unit_statistics(NOTHING).keys()
    means = {name for row in REASONS.values() for name in row.of_unit}
    for profile in PROFILES.values():
        assert vars(profile).keys() > ROW_STATISTICS.keys()
        assert vars(profile.pool).keys() == means
