"""The noise is exact: the same integers everywhere, the right distribution, and gaps that mean what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.proofs.seeded_sampling import (
    choose,
    chosen_logprobs,
    gumbel,
    measure,
    noise_bits,
    scale,
)
from testbed.suite.examples import up_to

# Seed, token index, then the bits of tokens 0 to 4 as unsigned words, and the noise of tokens 0 to 2.
VECTORS = [
    (0, 0, [2443717169, 2145415539, 304433777, 1467720743, 1020577564], [0.57283664, 0.36512446, -0.97333068]),
    (1, 5, [3123277186, 1325667245, 4179902927, 133536656, 4245326822], [1.14394093, -0.16171755, 3.60615849]),
    (
        0x123456789ABCDEF,
        7,
        [2737090252, 1349768191, 3927698639, 780058589, 2565573106],
        [0.79728949, -0.14627221, 2.41474342],
    ),
    (2**63 - 1, 2**20, [3959751747, 2434399376, 2748206326, 1329019727, 2244747894], [2.5100698, 0.5660850, 0.8063260]),
]

seeds_and_positions = st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 2)), min_size=1, max_size=8)


def rows(pairs: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([pair[0] for pair in pairs]), torch.tensor([pair[1] for pair in pairs])


def plain_bits(seed: int, position: int, token: int) -> int:
    """Compute the docstring's formula once more, in Python's integers."""
    word = 0xFFFFFFFF

    def mix(x: int, between: int = 0) -> int:
        x ^= x >> 16
        x = (x * 0x7FEB352D & word) ^ between
        x ^= x >> 15
        x = x * 0x846CA68B & word
        return x ^ x >> 16

    k = mix((seed & word) + 0x9E3779B9 & word)
    k = mix(k ^ seed >> 32)
    a = mix(k + position & word)
    b = mix(a + 0x85EBCA6B & word)
    return mix(a + token * 0x9E3779B9 & word, b)


@pytest.mark.parametrize(("seed", "position", "bits", "noise"), VECTORS)
def test_known_answers(seed: int, position: int, bits: list[int], noise: list[float]) -> None:
    seeds, positions = rows([(seed, position)])
    assert noise_bits(seeds, positions, 5).numpy().view(np.uint32)[0].tolist() == bits
    assert gumbel(seeds, positions, 3)[0].tolist() == pytest.approx(noise, rel=1e-5)


@settings(max_examples=up_to(100), deadline=None)
@given(pairs=seeds_and_positions, vocab=st.integers(1, 200))
def test_torch_and_the_formula_agree(pairs: list[tuple[int, int]], vocab: int) -> None:
    seeds, positions = rows(pairs)
    bits = noise_bits(seeds, positions, vocab).numpy()
    expected = [[plain_bits(*pair, token) for token in range(vocab)] for pair in pairs]
    assert bits.view(np.uint32).tolist() == expected
    noise = gumbel(seeds, positions, vocab)
    u = ((np.array(expected) >> 9) + 0.5) * 2.0**-23
    assert np.allclose(noise.numpy(), -np.log(-np.log(u)), rtol=1e-5, atol=1e-6)


def test_rows_do_not_depend_on_their_neighbours_or_on_the_vocabulary() -> None:
    seeds, positions = rows([(7, 0), (8, 0), (7, 1)])
    together = gumbel(seeds, positions, 300)
    for row in range(3):
        assert torch.equal(together[row, :40], gumbel(seeds[row : row + 1], positions[row : row + 1], 40)[0])


def test_noise_is_finite_and_bounded_at_the_extremes_of_its_bits() -> None:
    for fraction, bound in ((0, -2.82), (2**23 - 1, 16.64)):
        u = (np.float32(fraction) + np.float32(0.5)) * np.float32(2.0**-23)
        assert 0 < u < 1
        assert -math.log(-math.log(u)) == pytest.approx(bound, abs=0.01)
    noise = gumbel(torch.arange(64), torch.arange(64), 1 << 16)
    assert noise.isfinite().all()
    assert noise.min() > -2.82
    assert noise.max() < 16.64


@pytest.mark.parametrize("axis", ["seed", "position"])
def test_samples_softmax_exactly(axis: str) -> None:
    """Chi-square over 200,000 draws, once with a seed per draw and once with one seed and a token index per draw."""
    draws, vocab, temperature = 200_000, 12, 0.7
    logits = torch.linspace(-2, 2, vocab).repeat(draws, 1)
    counter = torch.arange(draws)
    if axis == "seed":
        seeds, positions = counter * 0x9E3779B97F4A, counter % 50
    else:
        seeds, positions = torch.full_like(counter, 9), counter
    tokens = choose(logits, seeds, positions, temperature).tokens
    expected = torch.softmax(logits[0].double() / temperature, dim=0) * draws
    observed = torch.bincount(tokens, minlength=vocab)
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < 31.3  # 99.9% quantile at 11 degrees of freedom


def test_draws_of_neighbouring_tokens_are_independent() -> None:
    """Pairs of consecutive draws over 6 tokens: 35 degrees of freedom, 99.9% quantile 66.6."""
    draws, vocab = 180_000, 6
    tokens = choose(torch.zeros(draws, vocab), torch.arange(draws) // 20, torch.arange(draws) % 20, 1.0).tokens
    pairs = torch.bincount(tokens[:-1] * vocab + tokens[1:], minlength=vocab * vocab)
    expected = (draws - 1) / vocab**2
    assert float(((pairs - expected) ** 2 / expected).sum()) < 66.6


def test_choice_reports_the_log_probability_at_the_temperature() -> None:
    logits = torch.tensor([[0.0, 2.0, 4.0], [1.0, 1.0, 1.0]])
    choice = choose(logits, torch.tensor([3, 4]), torch.tensor([0, 0]), 0.5)
    expected = torch.log_softmax(logits / 0.5, dim=1).gather(1, choice.tokens[:, None])[:, 0]
    assert torch.allclose(choice.logprobs, expected)


def test_gap_is_zero_for_the_sampled_token_only() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(64, 30, generator=generator).to(torch.bfloat16)
    seeds, positions = torch.arange(64) + 2**62, torch.arange(64)
    choice = choose(logits, seeds, positions, 0.6)
    assert torch.equal(measure(logits, choice.tokens, seeds, positions, 0.6).gaps, torch.zeros(64))
    edited = (choice.tokens + 1) % 30
    noised = scale(logits, 0.6) + gumbel(seeds, positions, 30)
    expected = noised.max(dim=1).values - noised[torch.arange(64), edited]
    assert torch.allclose(measure(logits, edited, seeds, positions, 0.6).gaps, expected, rtol=0, atol=1e-5)
    assert (expected > 0).all()


@pytest.mark.parametrize("change", [1, 2**31, 2**40, 2**62])
def test_any_bit_of_the_seed_changes_the_draws(change: int) -> None:
    logits, positions = torch.zeros(500, 16), torch.arange(500)
    one = choose(logits, torch.full((500,), 77), positions, 1.0).tokens
    other = choose(logits, torch.full((500,), 77 ^ change), positions, 1.0).tokens
    assert 0.01 < float((one == other).float().mean()) < 0.13  # one in 16 agrees by chance


def test_log_probabilities_of_bfloat16_logits_are_taken_in_float32() -> None:
    logits = torch.tensor([[10.0, 10.0]], dtype=torch.bfloat16)
    assert chosen_logprobs(scale(logits, 1.0), torch.tensor([0]))[0] == pytest.approx(-math.log(2), abs=1e-6)
