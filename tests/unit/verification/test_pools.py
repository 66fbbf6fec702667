"""Pools: they detect many rows that are each slightly wrong, and clear honest work in every choice of window."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import MalformedError
from muster.protocol.reasons import UNIT_STATISTICS
from muster.verification.pools import (
    ACCUSE,
    ALTERNATIVES,
    CONVICT,
    HONEST_SHARE,
    LEAST_LEANING,
    LEAST_TOKENS,
    REJECT,
    UNIT_TOKENS,
    WINDOW,
    PooledRow,
    Unit,
    check_claim,
    evidence,
    fewest_leaning,
    judge_pool,
    pool_evidence,
    rows_from_json,
    rows_to_json,
    suspect_from,
    take_rows,
    unit_statistics,
)
from muster.verification.profiles import BF16, PROFILES, Profile
from muster.verification.statistics import RowSums

CHOICES = len(UNIT_STATISTICS) * WINDOW * (WINDOW + 1) // 2
STATISTICS = {"gap_mean": "gap", "activation": "distance", "logprob_rms": "error", "logprob_mean": "drift"}


def sums(
    tokens: int, gap: float = 0.0, distance: float = 0.0, error: float = 0.0, drift: float = 0.0, **rows: int
) -> RowSums:
    """Return the sums of a row whose tokens have these means."""
    return RowSums(tokens, tokens * gap, tokens * distance**2, tokens * error**2, tokens * drift, **rows)


def unit(number: int, *rows: RowSums, first_key: int | None = None) -> Unit:
    """Return a unit of one commitment, whose rows differ from all others."""
    start = 100 * number if first_key is None else first_key
    found = tuple(PooledRow((start + i).to_bytes(4, "big"), one) for i, one in enumerate(rows))
    return Unit(number, number, number, found)


def leaning(first: int, count: int) -> list[Unit]:
    """Return units above the limit of the gaps, and far below what rejects a row."""
    gap = 1.1 * BF16.pool.gap_mean
    assert gap < BF16.gap_mean.reject / 2
    return [unit(first + i, sums(UNIT_TOKENS, gap=gap)) for i in range(count)]


def honest(first: int, count: int) -> list[Unit]:
    return [unit(first + i, sums(UNIT_TOKENS)) for i in range(count)]


def test_evidence_is_the_mean_likelihood_ratio() -> None:
    assert evidence(0, 0) == 0.0
    expected = sum((p / HONEST_SHARE) ** 3 * ((1 - p) / (1 - HONEST_SHARE)) ** 2 for p in ALTERNATIVES) / len(
        ALTERNATIVES
    )
    assert evidence(3, 5) == pytest.approx(math.log10(expected))
    assert evidence(400, 400) > 500, "and does not overflow"


@given(st.integers(1, 200), st.data())
def test_evidence_is_a_supermartingale_where_one_unit_in_thirty_leans(count: int, data: st.DataObject) -> None:
    """With one more honest unit it is on average what it was; so it seldom grows large (Ville's inequality)."""
    seen = data.draw(st.integers(0, count))
    after = HONEST_SHARE * 10 ** evidence(seen + 1, count + 1) + (1 - HONEST_SHARE) * 10 ** evidence(seen, count + 1)
    assert after == pytest.approx(10 ** evidence(seen, count), rel=1e-9)


def test_honest_nodes_with_leaning_steps_are_not_convicted() -> None:
    """Of 100,000 nodes, one unit in thirty leans over a window. The bound rejects at most one node in a hundred."""
    table = np.array([[pool_evidence(k, n) if k <= n else -9.0 for k in range(WINDOW + 1)] for n in range(WINDOW + 1)])
    random, most, seen = np.random.default_rng(7), np.full(100_000, -9.0), np.zeros(100_000, int)
    for count in range(1, WINDOW + 1):
        seen += random.random(len(seen)) < HONEST_SHARE
        most = np.maximum(most, table[count][seen])
    assert most.max() < CONVICT
    assert (most >= REJECT).sum() <= 10


def test_six_leaning_units_reject_ten_of_eleven_convict_and_eleven_accuse() -> None:
    """A juror whose machine sees one of them otherwise convicts as well."""
    assert judge_pool(leaning(3, 5), BF16, about=8) is None
    six = judge_pool(leaning(3, 6), BF16, about=9)
    assert six is not None
    assert (len(six.leaning), six.units, six.accuse) == (6, 6, False)
    assert (six.statistic, six.reason) == ("gap_mean", "sampling_mismatch")
    assert six.evidence == pytest.approx(evidence(6, 6) - math.log10(CHOICES))
    ten = judge_pool(leaning(3, 10), BF16, about=13)
    assert ten is not None
    assert not ten.accuse
    eleven = judge_pool(leaning(3, 11), BF16, about=14)
    assert eleven is not None
    assert eleven.accuse
    assert eleven.evidence >= ACCUSE > CONVICT > REJECT
    assert "11 of 11 steps" in eleven.detail
    assert fewest_leaning(11) == 10


def test_a_node_that_is_false_in_every_third_step_is_accused_within_sixty_five_steps() -> None:
    pool = [leaning(i, 1)[0] if i % 3 == 0 else honest(i, 1)[0] for i in range(WINDOW)]
    ends = [end for end in range(1, WINDOW) if (found := judge_pool(pool[:end], BF16, about=end)) and found.accuse]
    assert ends[0] == 64


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("statistic", STATISTICS)
def test_each_statistic_accuses_by_itself_a_little_above_its_limit_and_not_below(
    profile: Profile, statistic: str
) -> None:
    limit = getattr(profile.pool, statistic)
    for times, accused in ((1.02, True), (0.98, False)):
        pool = [unit(i, sums(UNIT_TOKENS, **{STATISTICS[statistic]: times * limit})) for i in range(12)]
        found = judge_pool(pool, profile, about=12)
        assert (found is not None and found.accuse) is accused
        if found:
            assert found.statistic == statistic


@pytest.mark.parametrize(
    ("counted", "reason"), [("gaps_beyond", "sampling_mismatch"), ("logprobs_beyond", "wrong_logprobs")]
)
def test_one_row_a_unit_that_a_single_token_rejects_accuses_in_the_end(counted: str, reason: str) -> None:
    """No node can stay between the rejecting and the accusing limit while its means look honest."""
    rows = [sums(UNIT_TOKENS)] * 7
    found = judge_pool([unit(i, *rows, sums(UNIT_TOKENS, **{counted: 1})) for i in range(12)], BF16, about=12)
    assert found is not None
    assert (found.statistic, found.reason, found.accuse) == (counted, reason, True)


def test_a_small_lie_downwards_counts_like_one_upwards() -> None:
    pool = [unit(i, sums(UNIT_TOKENS, drift=-1.1 * BF16.pool.logprob_mean)) for i in range(12)]
    found = judge_pool(pool, BF16, about=12)
    assert found is not None
    assert (found.statistic, found.reason) == ("logprob_mean", "wrong_logprobs")


def test_rows_count_until_they_have_the_tokens_of_a_unit() -> None:
    lengths = [100, 100, 55, 1, 300]
    assert list(take_rows(lengths, lambda tokens: tokens)) == [100, 100, 55, 1]
    assert list(take_rows([UNIT_TOKENS, 7], lambda tokens: tokens)) == [UNIT_TOKENS]
    assert list(take_rows([3, 4], lambda tokens: tokens)) == [3, 4]


def test_a_unit_of_few_tokens_leans_only_by_as_much_as_one_of_some() -> None:
    """Eight rows of one token, of which one is off by an honest outlier, say nothing."""
    outlier = sums(1, gap=4.0)
    assert unit_statistics(outlier + sums(7))["gap_mean"] == 4.0 / LEAST_TOKENS < BF16.pool.gap_mean
    assert unit_statistics(sums(LEAST_TOKENS, gap=0.5))["gap_mean"] == 0.5


def test_equal_rows_count_once_within_a_unit_and_in_the_first_that_leans_by_them() -> None:
    row = sums(UNIT_TOKENS, gap=1.0)
    assert judge_pool([unit(i, row, first_key=0) for i in range(30)], BF16, about=30) is None
    half = sums(UNIT_TOKENS // 2, gap=0.6 * BF16.pool.gap_mean)
    twice = [Unit(i, i, i, (PooledRow(bytes([i]), half),) * 2) for i in range(30)]
    assert judge_pool(twice, BF16, about=30) is None


def test_the_shortest_window_that_accuses_is_the_one_shown() -> None:
    """After long honest work a node begins to cheat: the jury replays the cheat alone."""
    pool = honest(0, 20) + leaning(20, 14)
    found = judge_pool(pool, BF16, about=34)
    assert found is not None
    assert (found.first, found.last, found.leaning, found.accuse) == (23, 33, tuple(range(23, 34)), True)
    assert judge_pool(pool[:25], BF16, about=25) is None
    assert judge_pool(honest(0, 40), BF16, about=20) is None


def test_a_finding_is_about_a_commitment_in_its_steps_or_the_one_that_ends_them() -> None:
    pool = [replace(one, first=10 * one.step, last=10 * one.step + 9) for one in leaning(0, 11)]
    for about, found in ((0, True), (55, True), (109, True), (110, True), (111, False)):
        assert (judge_pool(pool, BF16, about=about) is not None) is found, about


def test_no_pool_rejects_by_fewer_leaning_units_than_the_least() -> None:
    assert pool_evidence(LEAST_LEANING, LEAST_LEANING) >= REJECT > pool_evidence(LEAST_LEANING - 1, LEAST_LEANING - 1)


def test_a_pool_never_reaches_beyond_its_window() -> None:
    found = judge_pool(leaning(0, 3 * WINDOW), BF16, about=2 * WINDOW)
    assert found is not None
    assert found.units <= WINDOW
    assert found.first <= 2 * WINDOW <= found.last + 1


def test_a_juror_is_asked_for_no_more_than_it_takes_to_convict() -> None:
    """And never for a window of which a part accuses as well."""
    assert check_claim([True] * 11, about=10) == 10
    assert check_claim([True] * 5 + [False] + [True] * 6, about=11) == fewest_leaning(12) == 10
    with pytest.raises(MalformedError, match="9 of 11 steps that lean do not convict"):
        check_claim([True] * 9 + [False] * 2, about=10)
    with pytest.raises(MalformedError, match="11 of the 12 steps accuse as well"):
        check_claim([True] * 12, about=11)
    with pytest.raises(MalformedError, match="11 of the 40 steps accuse as well"):
        check_claim([True] * 30 + [False] * 10, about=25)


@given(st.lists(st.booleans(), min_size=1, max_size=WINDOW), st.data())
def test_juror_accepts_what_a_judge_shows(lean: list[bool], data: st.DataObject) -> None:
    about = data.draw(st.integers(0, len(lean)))
    pool = [leaning(i, 1)[0] if one else honest(i, 1)[0] for i, one in enumerate(lean)]
    found = judge_pool(pool, BF16, about=about)
    if found is not None and found.accuse:
        shown = range(found.first, found.last + 1)
        needed = check_claim([step in found.leaning for step in shown], about=min(about, found.last) - found.first)
        assert needed < len(found.leaning)


@pytest.mark.parametrize(
    ("lean", "first"),
    [
        ("", None),
        ("110", None),
        ("111", 0),
        ("0111", 1),
        ("1011", 0),
        ("10011", None),
        ("100100100100", None),
        ("100100100100100", 0),
        ("100010001000100", None),
        ("1" + 60 * "0" + "111", 61),
        ("1110000", None),
    ],
)
def test_steps_from_which_on_a_node_is_suspect(lean: str, first: int | None) -> None:
    """Three steps of four that lean, four of nine, five of fifteen; the last one may be any."""
    rows = [(leaning(i, 1) if one == "1" else honest(i, 1))[0].rows for i, one in enumerate(lean)]
    assert suspect_from(rows, BF16.pool) == first


def test_pooled_rows_round_trip_through_json() -> None:
    kept = (PooledRow(b"\x07" * 32, sums(3, 0.1, 0.2, 0.3, -0.4, gaps_beyond=1)), PooledRow(b"", sums(9)))
    assert rows_from_json(rows_to_json(kept)) == kept


def test_the_statistics_of_a_unit_are_means_over_its_tokens_and_numbers_of_rows() -> None:
    found = unit_statistics(sums(300, 0.25, 0.5, 2.0, -0.125, logprobs_beyond=1) + sums(100, 0.25, 0.5, 2.0, -0.125))
    means = {"gap_mean": 0.25, "activation": 0.5, "logprob_rms": 2.0, "logprob_mean": 0.125}
    assert found == pytest.approx({**means, "gaps_beyond": 0, "logprobs_beyond": 1})
    opposite = sums(300, drift=1.0) + replace(sums(300, drift=-1.0), squares=0.0)
    assert unit_statistics(opposite)["logprob_mean"] == 0
