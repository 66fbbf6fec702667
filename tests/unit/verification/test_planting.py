"""Which rows of a trap are false, and where: drawn by tokens, found by every replay, and no lower than honest ones."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muster.proofs.seeded_sampling import choose, gumbel, measure, noise_at, runners_up
from muster.verification.planting import (
    CLOSE,
    FALSE_SHARE,
    LOWEST,
    MARGIN,
    HeadRows,
    Rivals,
    chances,
    draw_plants,
    expected_gaps,
    false_claims,
    noise_of,
)
from muster.verification.profiles import BF16, CPU_FP32, PROFILES, Profile
from muster.verification.statistics import CLIP, TokenErrors, scaled_errors

SEED = 123456789


def rivals_of(length: int, *, gap: float = 1.0, seed: int = 0) -> Rivals:
    """Return runners-up that lie far below the sampled tokens."""
    random = np.random.default_rng(seed)
    column = lambda value: np.full(length, value, dtype=np.float32)  # noqa: E731
    return Rivals(
        sampled=column(3),
        tokens=random.integers(4, 400, length).astype(np.float32),
        gaps=column(gap),
        logprobs=-random.exponential(1.0, length).astype(np.float32),
        sizes=column(1.0),
        magnitudes=column(5.0),
        largest=column(5.0),
    )


def head_rows(length: int, *, apart: float) -> HeadRows:
    column = lambda value: np.full(length, value, dtype=np.float32)  # noqa: E731
    return HeadRows(column(apart), column(0.4), column(0.3))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_runner_up_is_what_would_be_sampled_without_the_sampled_token(temperature: float) -> None:
    logits = torch.randn(64, 500, generator=torch.Generator().manual_seed(1)) * 3
    seeds, positions = torch.arange(64) * 7919, torch.arange(64) % 9
    chosen = choose(logits, seeds, positions, temperature).tokens
    noised = logits / temperature + gumbel(seeds, positions, 500)
    best = noised.topk(2, dim=1)
    tokens, replay = runners_up(logits, chosen, seeds, positions, temperature)
    assert torch.equal(chosen, best.indices[:, 0])
    assert torch.equal(tokens, best.indices[:, 1])
    assert torch.allclose(replay.gaps, best.values[:, 0] - best.values[:, 1], atol=1e-5)
    assert torch.allclose(replay.gaps, measure(logits, tokens, seeds, positions, temperature).gaps)


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 10_000), st.integers(0, 299)), min_size=1))
def test_noise_of_one_token_is_that_of_the_whole_row(places: list[tuple[int, int, int]]) -> None:
    seeds, positions, tokens = (torch.tensor(column) for column in zip(*places, strict=True))
    whole = gumbel(seeds, positions, 300).gather(1, tokens[:, None])[:, 0]
    assert torch.equal(noise_at(seeds, positions, tokens), whole)


def test_rivals_survive_their_bytes_and_given_tokens_are_never_planted() -> None:
    rivals, sampled = rivals_of(7), np.array([1, 1, 0, 0, 1, 1, 1, 0, 1, 1], bool)
    columns = np.stack(list(vars(rivals).values())).astype("<f4").tobytes()
    read = Rivals.from_bytes(columns, sampled)
    assert all(np.array_equal(one[sampled], vars(rivals)[name]) for name, one in vars(read).items())
    found = chances(read, head_rows(10, apart=0.5), 5, CPU_FP32)
    assert found[sampled].any()
    assert not found[~sampled].any()


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_no_place_is_within_the_accusing_limit(profile: Profile) -> None:
    """By the judges' function, with another machine's states as far off as honest ones seldom are."""
    rivals = replace(rivals_of(400), gaps=np.geomspace(1e-5, 10, 400, dtype=np.float32))
    rows = head_rows(400, apart=0.5)
    gaps = expected_gaps(rivals, rows.apart, profile)
    places = np.flatnonzero(chances(rivals, rows, SEED, profile))
    assert 20 < len(places) < 400
    assert gaps[places].min() > MARGIN * profile.gap_worst.accuse
    assert (np.diff(gaps) > 0).all()


def test_bfloat16_needs_a_wider_gap() -> None:
    apart = np.ones(4, dtype=np.float32)
    fine, coarse = (expected_gaps(rivals_of(4), apart, profile)[0] for profile in (CPU_FP32, BF16))
    assert fine > 100 * coarse > 0


def test_place_is_drawn_in_proportion_to_its_chance() -> None:
    random_gaps = np.random.default_rng(1).uniform(0.05, 0.5, 300).astype(np.float32)
    rivals = replace(rivals_of(300), gaps=random_gaps)
    found, random = chances(rivals, head_rows(300, apart=0.1), SEED, CPU_FP32), Random(1)
    assert 0 < (found > 0).sum() < 300
    counts = Counter(next(draw_plants([400], lambda _: found, random)).token for _ in range(4_000))
    expected = 4_000 * found / found.sum()
    assert set(counts) <= set(np.flatnonzero(found))
    for place in np.argsort(expected)[-10:]:
        assert counts[place] == pytest.approx(expected[place], abs=5 * math.sqrt(expected[place]))


def test_false_tokens_are_as_high_and_as_likely_as_those_that_they_replace() -> None:
    """Of a model that is sure of some tokens, where they nearly tie: in rows of three places too."""
    rows, vocabulary, length = 20_000, 8, 3
    logits = torch.randn(rows * length, vocabulary, generator=torch.Generator().manual_seed(5)) * 2
    seeds, positions = torch.full((len(logits),), SEED), torch.arange(len(logits))
    choice = choose(logits, seeds, positions, 1.0)
    tokens, replay = runners_up(logits, choice.tokens, seeds, positions, 1.0)
    columns = [one.numpy() for one in (choice.tokens, tokens, replay.gaps, replay.logprobs)]
    rivals = Rivals(*columns, *(np.ones(len(logits), np.float32) for _ in range(3)))  # type: ignore[arg-type]
    found = chances(rivals, head_rows(len(logits), apart=0.1), SEED, CPU_FP32).reshape(rows, length)
    likely = [one.numpy().reshape(rows, length) for one in (choice.logprobs, replay.logprobs)]
    noise = [noise_of(one, SEED).reshape(rows, length) for one in columns[:2]]
    drawn = list(islice(draw_plants([9] * rows, found.__getitem__, Random(1)), rows // 16))
    places = tuple(np.array([(one.row, one.token) for one in drawn]).T)
    first, second = (
        {"height": (one + other)[places], "log-probability": one[places]}
        for one, other in zip(likely, noise, strict=True)
    )
    for name in first:
        for quantile in (0.25, 0.5, 0.75):
            assert np.quantile(second[name], quantile) == pytest.approx(np.quantile(first[name], quantile), abs=0.2)
    assert np.median(likely[1] + noise[1]) < np.median(likely[0] + noise[0]) - 0.5, "any runner-up is much lower"


def test_chance_makes_up_for_how_seldom_such_a_tie_is() -> None:
    """Times the density of a tie between tokens of probability p and q at heights h > k, in q p e^(-h - k), it depends
    on the heights alone: no token is planted more often than it is taken away."""
    rivals = replace(rivals_of(4000, gap=0.3), sampled=np.arange(4000, dtype=np.float32))
    found = chances(rivals, head_rows(4000, apart=0.1), SEED, CPU_FP32)
    low = (rivals.logprobs + noise_of(rivals.tokens, SEED)).astype(np.float64)
    high, sure = low + 0.3, np.exp(low + 0.3 - noise_of(rivals.sampled, SEED))
    places = np.flatnonzero((found > 0) & (sure < 1))
    assert len(places) > 500
    density = np.exp(-high - low - sure * np.exp(-high) - (1 - sure) * np.exp(-low))
    wanted = np.exp(-low / 2 - np.exp(-low) - 0.3 / CLOSE)
    assert np.allclose((found * density)[places], wanted[places], rtol=1e-2)
    assert low[places].min() >= LOWEST - 1e-3


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
@pytest.mark.parametrize("length", [1, 2, 3, 5, 10, 60, 1000])
@pytest.mark.parametrize("sure", [0.01, 1.0])
def test_false_claims_leave_honest_errors_half_of_each_limit(profile: Profile, length: int, sure: float) -> None:
    """And the judges' own function, on a machine that is as far off as limits let honest ones be, accuses no claim."""
    rivals = replace(rivals_of(length, gap=5.0, seed=length), logprobs=rivals_of(length).logprobs * np.float32(sure))
    rows, place = head_rows(length, apart=0.5), length // 2
    claimed = false_claims(rivals, rows, rivals.logprobs, place, profile)
    assert (rivals.logprobs <= claimed).all()
    assert (claimed <= 0).all()
    norms = np.where(np.arange(length) == place, rows.rivals, rows.sampled)
    nothing = np.zeros(length, np.float32)
    errors = TokenErrors(
        gaps=nothing,
        claimed=claimed,
        logprobs=rivals.logprobs,
        states=nothing,
        gap_scales=nothing,
        logprob_scales=rivals.sizes * norms,
        magnitudes=rivals.magnitudes,
    )
    scaled = scaled_errors(errors, profile)
    found = scaled.statistics()
    assert found.logprob_worst <= FALSE_SHARE * profile.logprob_worst.accuse * 1.001
    assert sure < 1 or scaled.logprobs[place] == pytest.approx(FALSE_SHARE * profile.logprob_worst.accuse, rel=1e-3)
    assert found.logprob_drift <= FALSE_SHARE * profile.logprob_drift.accuse * 1.001
    alone = CLIP / math.sqrt(1 + 8)  # of a row of one token, whatever it claims
    assert found.logprob_rms <= max(alone, FALSE_SHARE * profile.logprob_rms.accuse) * 1.001
    assert length > 2 or alone < profile.logprob_rms.accuse


def test_false_claims_keep_the_sum_of_heights() -> None:
    """Where the limits let them: 40 unsure tokens make up for a gap of two logits."""
    rivals = rivals_of(40, gap=2.0)
    claimed = false_claims(rivals, head_rows(40, apart=0.5), rivals.logprobs, 7, replace(BF16, logit_rounding=0.02))
    lifts = claimed - rivals.logprobs
    assert lifts.sum() == pytest.approx(2.0, abs=0.02)
    assert lifts.argmax() == 7
    near_tie = false_claims(
        replace(rivals, gaps=rivals.gaps * 0 + 0.01), head_rows(40, apart=0.5), rivals.logprobs, 7, BF16
    )
    assert (near_tie - rivals.logprobs)[7] == pytest.approx(0.01, abs=1e-6), "never above the token that it replaces"
    assert np.delete(near_tie - rivals.logprobs, 7).max() < 1e-4


def test_rows_are_drawn_in_proportion_to_their_tokens() -> None:
    random, lengths = Random(2), [10, 20, 40, 80]
    everywhere = np.ones(4)
    counts = Counter(next(draw_plants(lengths, lambda _: everywhere, random)).row for _ in range(15_000))
    for row, length in enumerate(lengths):
        assert counts[row] == pytest.approx(100 * length, abs=5 * math.sqrt(100 * length))


@given(st.lists(st.tuples(st.integers(1, 5_000), st.booleans()), min_size=1, max_size=64), st.integers())
def test_each_row_with_a_place_is_drawn_once_and_no_other(rows: list[tuple[int, bool]], seed: int) -> None:
    lengths = [length for length, _ in rows]
    drawn = list(draw_plants(lengths, lambda row: np.array([0.0, float(rows[row][1])]), Random(seed)))
    assert sorted(one.row for one in drawn) == [row for row, (_, has_place) in enumerate(rows) if has_place]
    assert all(one.token == 1 for one in drawn)
