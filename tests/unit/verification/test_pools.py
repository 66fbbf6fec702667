"""Pools: many rows that are each a little off are seen together, and honest work is not, whoever chooses its window."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.verification.pools import (
    ACCUSE,
    CONVICT,
    HONEST_SHARE,
    LEANING,
    REJECT,
    UNIT_TOKENS,
    WINDOW,
    PooledRow,
    PooledWork,
    evidence,
    judge_pool,
    pool_findings,
    pooled_from_json,
    pooled_to_json,
    unit_statistics,
)
from muster.verification.profiles import BF16, PROFILES, Profile
from muster.verification.statistics import RowSums

CHOICES = 4 * WINDOW * (WINDOW + 1) // 2


def sums(tokens: int, gap: float = 0.0, distance: float = 0.0, error: float = 0.0, drift: float = 0.0) -> RowSums:
    """Return the sums of a row whose tokens have these means."""
    return RowSums(tokens, tokens * gap, tokens * distance**2, tokens * error**2, tokens * drift)


def work(index: int, *rows: RowSums, first_key: int | None = None) -> PooledWork:
    """Return rows of different groups, all different from each other and from those of other commitments."""
    start = 100 * index if first_key is None else first_key
    found = tuple(PooledRow(16 * i, i, (start + i).to_bytes(4, "big"), one) for i, one in enumerate(rows))
    return PooledWork(index, found)


def leaning(index: int, count: int = 4) -> PooledWork:
    """Return rows that are each a unit above the limit of the gaps, and far below what rejects a row."""
    gap = 1.1 * BF16.pool.gap_mean
    assert gap < BF16.gap_mean.reject
    return work(index, *[sums(UNIT_TOKENS, gap=gap)] * count)


def test_evidence_is_the_mean_likelihood_ratio() -> None:
    assert evidence(0, 0) == 0.0
    expected = sum((p / HONEST_SHARE) ** 3 * ((1 - p) / (1 - HONEST_SHARE)) ** 2 for p in LEANING) / len(LEANING)
    assert evidence(3, 5) == pytest.approx(math.log10(expected))
    assert evidence(400, 400) > 500, "and does not overflow"


@given(st.integers(1, 200), st.data())
def test_evidence_is_a_supermartingale_where_one_unit_in_twenty_leans(count: int, data: st.DataObject) -> None:
    """With one more honest unit it is on average what it was; so it seldom grows large (Ville's inequality)."""
    seen = data.draw(st.integers(0, count))
    after = HONEST_SHARE * 10 ** evidence(seen + 1, count + 1) + (1 - HONEST_SHARE) * 10 ** evidence(seen, count + 1)
    assert after == pytest.approx(10 ** evidence(seen, count), rel=1e-9)


def test_an_honest_node_that_leans_once_in_twenty_units_is_hardly_ever_rejected() -> None:
    """10,000 windows of 96 units: the bound says at most one in 1,000, and fewer are seen."""
    random, rejected = Random(7), 0
    for _ in range(10_000):
        seen, most = 0, 0.0
        for unit in range(1, 97):
            seen += random.random() < HONEST_SHARE
            most = max(most, evidence(seen, unit))
        rejected += most - math.log10(CHOICES) >= REJECT
    assert rejected == 0


def test_six_leaning_units_reject_nine_convict_and_eleven_accuse() -> None:
    assert judge_pool([leaning(3, 5)], BF16, about=3) is None
    six = judge_pool([leaning(3, 6)], BF16, about=3)
    assert six is not None
    assert (six.leaning, six.units, six.accuse, six.statistic, six.reason) == (
        6,
        6,
        False,
        "gap_mean",
        "sampling_mismatch",
    )
    assert six.evidence == pytest.approx(evidence(6, 6) - math.log10(CHOICES))
    [nine] = [one for one in pool_findings([leaning(3, 9)], BF16) if one.statistic == "gap_mean"]
    assert (nine.evidence >= CONVICT, nine.accuse) == (True, False)
    eleven = judge_pool([leaning(3, 11)], BF16, about=3)
    assert eleven is not None
    assert eleven.accuse
    assert eleven.evidence >= ACCUSE > CONVICT > REJECT
    assert "11 of 11 units of 256 tokens" in eleven.detail


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("statistic", ["gap_mean", "activation", "logprob_rms", "logprob_mean"])
def test_each_statistic_accuses_by_itself_a_little_above_its_limit_and_not_below(
    profile: Profile, statistic: str
) -> None:
    name = {"gap_mean": "gap", "activation": "distance", "logprob_rms": "error", "logprob_mean": "drift"}[statistic]
    limit = getattr(profile.pool, statistic)
    for times, accused in ((1.02, True), (0.98, False)):
        pool = [work(i, *[sums(UNIT_TOKENS, **{name: times * limit})] * 8) for i in range(2)]
        found = judge_pool(pool, profile, about=1)
        assert (found is not None and found.accuse) is accused
        if found:
            assert found.statistic == statistic


def test_a_small_lie_downwards_counts_like_one_upwards() -> None:
    pool = [work(i, *[sums(UNIT_TOKENS, drift=-1.1 * BF16.pool.logprob_mean)] * 8) for i in range(2)]
    found = judge_pool(pool, BF16, about=0)
    assert found is not None
    assert (found.statistic, found.reason) == ("logprob_mean", "wrong_logprobs")


def test_short_rows_are_put_together_until_they_make_a_unit() -> None:
    """Rows of 64 tokens: four make a unit, across commitments as well, and what is left over waits."""
    rows = [sums(64, gap=1.1 * BF16.pool.gap_mean)] * 3
    found = {one.statistic: one for one in pool_findings([work(i, *rows) for i in range(6)], BF16)}
    assert (found["gap_mean"].units, found["gap_mean"].leaning) == (4, 4)
    assert found["activation"].leaning == 0


def test_rows_of_one_group_stay_together_and_equal_rows_count_once() -> None:
    row = sums(UNIT_TOKENS, gap=1.0)
    one_group = PooledWork(0, tuple(PooledRow(i, 0, bytes([i]), row) for i in range(8)))
    assert pool_findings([one_group], BF16)[0].units == 1
    equal = [work(i, *[row] * 8, first_key=0) for i in range(10)]
    assert pool_findings(equal, BF16)[0].units == 8


def test_the_shortest_window_that_accuses_is_the_one_shown() -> None:
    """After long honest work a node begins to cheat: the jury replays the cheat alone."""
    honest = [work(i, *[sums(UNIT_TOKENS)] * 8) for i in range(20)]
    pool = honest + [leaning(20 + i, 8) for i in range(3)]
    found = judge_pool(pool, BF16, about=22)
    assert found is not None
    assert (found.first, found.last, found.accuse) == (21, 22, True)
    assert judge_pool(pool[:21], BF16, about=20) is not None, "one commitment of eight such units rejects"
    assert judge_pool(pool, BF16, about=5) is None or found.last >= 20


def test_a_pool_never_reaches_beyond_its_window() -> None:
    pool = [leaning(i, 1) for i in range(3 * WINDOW)]
    found = judge_pool(pool, BF16, about=2 * WINDOW)
    assert found is not None
    assert found.last - found.first < WINDOW
    assert found.first <= 2 * WINDOW <= found.last


def test_what_a_journal_keeps_is_what_was_pooled() -> None:
    kept = work(7, sums(3, 0.1, 0.2, 0.3, -0.4), sums(9))
    assert pooled_from_json(pooled_to_json(kept)) == kept


def test_the_statistics_of_a_unit_are_means_over_its_tokens() -> None:
    found = unit_statistics(sums(300, 0.25, 0.5, 2.0, -0.125) + sums(100, 0.25, 0.5, 2.0, -0.125))
    assert found == pytest.approx({"gap_mean": 0.25, "activation": 0.5, "logprob_rms": 2.0, "logprob_mean": 0.125})
    opposite = sums(300, drift=1.0) + replace(sums(300, drift=-1.0), squares=0.0)
    assert unit_statistics(opposite)["logprob_mean"] == 0
