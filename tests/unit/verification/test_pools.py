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
    ALTERNATIVES,
    CONVICT,
    HONEST_SHARE,
    LEAST_LEANING,
    REASONS,
    REJECT,
    UNIT_TOKENS,
    WINDOW,
    PooledRow,
    PooledWork,
    evidence,
    judge_pool,
    pool_evidence,
    pool_findings,
    pooled_from_json,
    pooled_to_json,
    unit_statistics,
)
from muster.verification.profiles import BF16, PROFILES, Profile
from muster.verification.statistics import RowSums

CHOICES = len(REASONS) * WINDOW * (WINDOW + 1) // 2
STATISTICS = {"gap_mean": "gap", "activation": "distance", "logprob_rms": "error", "logprob_mean": "drift"}


def sums(
    tokens: int, gap: float = 0.0, distance: float = 0.0, error: float = 0.0, drift: float = 0.0, **rows: int
) -> RowSums:
    """Return the sums of a row whose tokens have these means."""
    return RowSums(tokens, tokens * gap, tokens * distance**2, tokens * error**2, tokens * drift, **rows)


def work(index: int, *rows: RowSums, step: int | None = None, first_key: int | None = None) -> PooledWork:
    """Return a commitment of a step of its own, if none is named, whose rows differ from all others."""
    start = 100 * index if first_key is None else first_key
    found = tuple(PooledRow(16 * i, (start + i).to_bytes(4, "big"), one) for i, one in enumerate(rows))
    return PooledWork(index, index if step is None else step, found)


def leaning(first: int, count: int) -> list[PooledWork]:
    """Return commitments that are each a unit above the limit of the gaps, and far below what rejects a row."""
    gap = 1.1 * BF16.pool.gap_mean
    assert gap < BF16.gap_mean.reject / 2
    return [work(first + i, sums(UNIT_TOKENS, gap=gap)) for i in range(count)]


def honest(first: int, count: int) -> list[PooledWork]:
    return [work(first + i, sums(UNIT_TOKENS)) for i in range(count)]


def test_evidence_is_the_mean_likelihood_ratio() -> None:
    assert evidence(0, 0) == 0.0
    expected = sum((p / HONEST_SHARE) ** 3 * ((1 - p) / (1 - HONEST_SHARE)) ** 2 for p in ALTERNATIVES) / len(
        ALTERNATIVES
    )
    assert evidence(3, 5) == pytest.approx(math.log10(expected))
    assert evidence(400, 400) > 500, "and does not overflow"


@given(st.integers(1, 200), st.data())
def test_evidence_is_a_supermartingale_where_one_unit_in_twenty_leans(count: int, data: st.DataObject) -> None:
    """With one more honest unit it is on average what it was; so it seldom grows large (Ville's inequality)."""
    seen = data.draw(st.integers(0, count))
    after = HONEST_SHARE * 10 ** evidence(seen + 1, count + 1) + (1 - HONEST_SHARE) * 10 ** evidence(seen, count + 1)
    assert after == pytest.approx(10 ** evidence(seen, count), rel=1e-9)


def test_an_honest_node_that_leans_once_in_twenty_units_is_hardly_ever_rejected() -> None:
    """10,000 windows of 48 units: the bound says at most ten are rejected, and none is."""
    random, rejected = Random(7), 0
    for _ in range(10_000):
        seen, most = 0, 0.0
        for unit in range(1, WINDOW + 1):
            seen += random.random() < HONEST_SHARE
            most = max(most, evidence(seen, unit))
        rejected += most - math.log10(CHOICES) >= REJECT
    assert rejected == 0


def test_six_leaning_units_reject_ten_convict_and_eleven_accuse() -> None:
    """A unit counts once a commitment of another step follows it."""
    assert judge_pool(leaning(3, 6), BF16, about=8) is None
    six = judge_pool(leaning(3, 7), BF16, about=9)
    assert six is not None
    assert (six.leaning, six.units, six.accuse) == (6, 6, False)
    assert (six.statistic, six.reason) == ("gap_mean", "sampling_mismatch")
    assert six.evidence == pytest.approx(evidence(6, 6) - math.log10(CHOICES))
    [ten] = [one for one in pool_findings(leaning(3, 11), BF16) if one.statistic == "gap_mean"]
    assert (ten.evidence >= CONVICT, ten.accuse) == (True, False)
    eleven = judge_pool(leaning(3, 12), BF16, about=14)
    assert eleven is not None
    assert eleven.accuse
    assert eleven.evidence >= ACCUSE > CONVICT > REJECT
    assert "11 of 11 units" in eleven.detail


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("statistic", STATISTICS)
def test_each_statistic_accuses_by_itself_a_little_above_its_limit_and_not_below(
    profile: Profile, statistic: str
) -> None:
    limit = getattr(profile.pool, statistic)
    for times, accused in ((1.02, True), (0.98, False)):
        pool = [work(i, sums(UNIT_TOKENS, **{STATISTICS[statistic]: times * limit})) for i in range(13)]
        found = judge_pool(pool, profile, about=12)
        assert (found is not None and found.accuse) is accused
        if found:
            assert found.statistic == statistic


@pytest.mark.parametrize(
    ("counted", "reason"), [("gaps_beyond", "sampling_mismatch"), ("logprobs_beyond", "wrong_logprobs")]
)
def test_one_row_a_unit_that_a_single_token_rejects_accuses_in_the_end(counted: str, reason: str) -> None:
    """So nobody stays between the limits that reject and accuse: their means are those of honest work."""
    rows = [sums(UNIT_TOKENS)] * 7
    found = judge_pool([work(i, *rows, sums(UNIT_TOKENS, **{counted: 1})) for i in range(13)], BF16, about=12)
    assert found is not None
    assert (found.statistic, found.reason, found.accuse) == (counted, reason, True)


def test_a_small_lie_downwards_counts_like_one_upwards() -> None:
    pool = [work(i, sums(UNIT_TOKENS, drift=-1.1 * BF16.pool.logprob_mean)) for i in range(13)]
    found = judge_pool(pool, BF16, about=12)
    assert found is not None
    assert (found.statistic, found.reason) == ("logprob_mean", "wrong_logprobs")


def test_short_rows_are_put_together_until_they_make_a_unit() -> None:
    """Steps of 64 tokens: four make a unit, and what is left over waits."""
    pool = [work(i, sums(32, gap=1.0), sums(32, gap=1.0)) for i in range(18)]
    found = {one.statistic: one for one in pool_findings(pool, BF16)}
    assert (found["gap_mean"].units, found["gap_mean"].leaning) == (4, 4)
    assert found["activation"].leaning == 0


def test_all_rows_of_a_step_are_one_unit_and_equal_rows_count_once() -> None:
    """What moves the honest arithmetic of one step moves all rows of it: it may accuse nobody."""
    row = sums(UNIT_TOKENS, gap=1.0)
    one_step = [work(i, *[row] * 8, step=5) for i in range(20)]
    assert judge_pool(one_step, BF16, about=19) is None
    assert pool_findings([*one_step, work(20, row)], BF16)[0].units == 1
    equal = [work(i, row, first_key=0) for i in range(30)]
    assert pool_findings(equal, BF16)[0].units == 1


def test_the_shortest_window_that_accuses_is_the_one_shown() -> None:
    """After long honest work a node begins to cheat: the jury replays the cheat alone."""
    pool = honest(0, 20) + leaning(20, 14)
    found = judge_pool(pool, BF16, about=33)
    assert found is not None
    assert (found.first, found.last, found.accuse) == (22, 33, True)
    assert judge_pool(pool[:26], BF16, about=25) is None
    assert judge_pool(honest(0, 40), BF16, about=20) is None


def test_no_pool_rejects_by_fewer_leaning_units_than_the_least() -> None:
    assert pool_evidence(LEAST_LEANING, LEAST_LEANING) >= REJECT > pool_evidence(LEAST_LEANING - 1, LEAST_LEANING - 1)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_looking_at_rows_first_changes_no_finding(statistic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random pools around the limits: rows that lean alone, beside rows that do not."""
    random, limit, found = Random(3), getattr(BF16.pool, statistic), set[bool]()
    for share in (0.01, 0.02, 0.03, 0.2, 0.5, 1.0):
        errors = [limit * (random.uniform(1.0, 3.0) if random.random() < share else 0.5) for _ in range(160)]
        rows = [sums(UNIT_TOKENS // 4, **{STATISTICS[statistic]: error}) for error in errors]
        pool = [work(index, *rows[8 * index : 8 * index + 8]) for index in range(20)]
        quick = judge_pool(pool, BF16, about=19)
        with monkeypatch.context() as patch:
            patch.setattr("muster.verification.pools._may_reject", lambda *_: True)
            assert judge_pool(pool, BF16, about=19) == quick
        found.add(quick is not None)
    assert found == {True, False}


def test_a_pool_never_reaches_beyond_its_window() -> None:
    found = judge_pool(leaning(0, 3 * WINDOW), BF16, about=2 * WINDOW)
    assert found is not None
    assert found.last - found.first < WINDOW
    assert found.first <= 2 * WINDOW <= found.last


def test_what_a_journal_keeps_is_what_was_pooled() -> None:
    kept = work(7, sums(3, 0.1, 0.2, 0.3, -0.4, gaps_beyond=1), sums(9), step=3)
    assert pooled_from_json(pooled_to_json(kept)) == kept


def test_the_statistics_of_a_unit_are_means_over_its_tokens_and_numbers_of_rows() -> None:
    found = unit_statistics(sums(300, 0.25, 0.5, 2.0, -0.125, logprobs_beyond=1) + sums(100, 0.25, 0.5, 2.0, -0.125))
    means = {"gap_mean": 0.25, "activation": 0.5, "logprob_rms": 2.0, "logprob_mean": 0.125}
    assert found == pytest.approx({**means, "gaps_beyond": 0, "logprobs_beyond": 1})
    opposite = sums(300, drift=1.0) + replace(sums(300, drift=-1.0), squares=0.0)
    assert unit_statistics(opposite)["logprob_mean"] == 0
