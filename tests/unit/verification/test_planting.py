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
    LOWEST,
    MARGIN,
    TALL,
    Rivals,
    chances,
    draw_plants,
    expected_gaps,
    heights,
)
from muster.verification.profiles import BF16, CPU_FP32, PROFILES, Profile

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
    )


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
    found = chances(read, 5, np.full(10, 0.5, np.float32), CPU_FP32)
    assert found[sampled].any()
    assert not found[~sampled].any()


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_no_place_is_within_the_accusing_limit(profile: Profile) -> None:
    """By the judges' function, with another machine's states as far off as honest ones seldom are."""
    rivals = replace(rivals_of(400), gaps=np.geomspace(1e-5, 10, 400, dtype=np.float32))
    apart = np.full(400, 0.5, dtype=np.float32)
    gaps = expected_gaps(rivals, apart, profile)
    places = np.flatnonzero(chances(rivals, SEED, apart, profile))
    assert 20 < len(places) < 400
    assert gaps[places].min() > MARGIN * profile.gap_worst.accuse
    assert (np.diff(gaps) > 0).all()


def test_bfloat16_needs_a_wider_gap() -> None:
    apart = np.ones(4, dtype=np.float32)
    fine, coarse = (expected_gaps(rivals_of(4), apart, profile)[0] for profile in (CPU_FP32, BF16))
    assert fine > 100 * coarse > 0


def test_place_is_drawn_in_proportion_to_its_height_and_the_nearness_of_its_tie() -> None:
    random_gaps = np.random.default_rng(1).uniform(0.05, 0.5, 300).astype(np.float32)
    rivals, apart = replace(rivals_of(300), gaps=random_gaps), np.full(300, 0.1, dtype=np.float32)
    found, tall = chances(rivals, SEED, apart, CPU_FP32), heights(rivals, SEED)
    near = np.exp(np.minimum(tall, TALL)) * np.exp(-random_gaps / CLOSE)
    assert np.allclose(found, np.where(tall >= LOWEST, near, 0))
    assert 0 < (found > 0).sum() < 300
    random = Random(1)
    counts = Counter(next(draw_plants([400], lambda _: found, random)).token for _ in range(20_000))
    expected = 20_000 * found / found.sum()
    assert set(counts) <= set(np.flatnonzero(found))
    for place in np.argsort(expected)[-10:]:
        assert counts[place] == pytest.approx(expected[place], abs=5 * math.sqrt(expected[place]))


def test_height_of_runners_up_becomes_that_of_sampled_tokens() -> None:
    """Whatever the model, and in rows of three places too: drawn by their height, they are as high as what is first."""
    rows, vocabulary, length = 6_000, 64, 3
    logits = torch.randn(rows * length, vocabulary, generator=torch.Generator().manual_seed(5))
    seeds, positions = torch.full((len(logits),), SEED), torch.arange(len(logits))
    choice = choose(logits, seeds, positions, 1.0)
    tokens, replay = runners_up(logits, choice.tokens, seeds, positions, 1.0)
    first = (choice.logprobs + noise_at(seeds, positions, choice.tokens)).numpy()
    second = (replay.logprobs + noise_at(seeds, positions, tokens)).numpy().reshape(rows, length)
    found = np.where(second >= LOWEST, np.exp(second.astype(np.float64)), 0)
    drawn = islice(draw_plants([9] * rows, found.__getitem__, Random(1)), rows // 16)
    heights_drawn = [second[one.row, one.token] for one in drawn]
    kept = first[first >= LOWEST]
    for quantile in (0.1, 0.25, 0.5, 0.75):
        assert np.quantile(heights_drawn, quantile) == pytest.approx(np.quantile(kept, quantile), abs=0.2)
    assert np.quantile(second, 0.5) < np.quantile(first, 0.5) - 0.5, "without that it would be much lower"


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
