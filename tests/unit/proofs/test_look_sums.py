"""Sums of a look: exactly as they are defined, for rows of any length beside each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from muster.proofs.look_sums import PLACES, look_sums
from muster.proofs.seeded_sampling import gumbel, leads, noise_bits

HIDDEN, COUNT = 24, 4
LENGTHS = [1, 9, 3, 4, 40]


def bits(seed: int, position: int, words: int) -> list[int]:
    found = noise_bits(torch.tensor([seed]), torch.tensor([position]), words)[0].tolist()
    return [word >> bit & 1 for word in found for bit in range(32)]


def defined(states: torch.Tensor, ahead: torch.Tensor, sign_seed: int, place_seed: int, count: int) -> np.ndarray:
    """Compute the sums of one row as the module's text has them, number by number."""
    tokens, hidden = states.shape
    words = noise_bits(torch.tensor([place_seed]), torch.tensor([2**31 - 1]), tokens)[0].tolist()
    places = sorted(sorted(range(tokens), key=lambda place: words[place])[:PLACES])
    size = math.sqrt(sum(float(states[place, i]) ** 2 for place in places for i in range(hidden)))
    own = bits(sign_seed, 2**31 - 1, -(-count * PLACES * hidden // 32))
    others = bits(sign_seed, 2**31 - 2, tokens)
    sums = np.zeros((2, count))
    for k in range(count):
        for j, place in enumerate(places):
            for i in range(hidden):
                sums[0, k] += (1 - 2 * own[(k * PLACES + j) * hidden + i]) * float(states[place, i]) / size
        for t in range(tokens):
            sums[1, k] += (1 - 2 * others[32 * t + k]) * float(ahead[t]) / math.sqrt(tokens)
    return sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [4, 16])
def test_sums_are_what_they_are_defined_as(dtype: torch.dtype, count: int) -> None:
    random = torch.Generator().manual_seed(5)
    states = (3 * torch.randn(sum(LENGTHS), HIDDEN, generator=random)).to(dtype)
    ahead = 10 * torch.randn(sum(LENGTHS), generator=random)
    signs, places = [7, 2**63 - 1, 0, 123, 99], [2**62 + 5, 1, 0, 17, 4]
    found = look_sums(states, ahead, LENGTHS, sign_seeds=signs, place_seeds=places, count=count)
    assert found.dtype == np.float32
    assert found.shape == (len(LENGTHS), 2, count)
    rows = zip(states.split(LENGTHS), ahead.split(LENGTHS), signs, places, strict=True)
    for mine, row in zip(found, rows, strict=True):
        np.testing.assert_allclose(mine, defined(*row, count), rtol=1e-6, atol=1e-6)


def test_sums_are_fixed_for_ever() -> None:
    states = torch.arange(5 * HIDDEN).view(5, HIDDEN).float() - 50
    found = look_sums(states, torch.tensor([1.0, -2, 4, 8, 16]), [5], sign_seeds=[11], place_seeds=[12], count=COUNT)
    expected = [[-0.00581986, 1.2221702, -0.5412468, -1.0592142], [5.8137765, 6.7082038, 4.9193497, -10.2859125]]
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


def test_states_that_are_zero_or_no_numbers_give_none() -> None:
    states = torch.ones(6, HIDDEN)
    states[:2], states[3, 0] = 0.0, math.nan
    found = look_sums(states, torch.ones(6), [2, 2, 2], sign_seeds=[1] * 3, place_seeds=[2] * 3, count=COUNT)
    assert [bool(np.isfinite(row[0]).all()) for row in found] == [False, False, True]
    assert np.isfinite(found[:, 1]).all()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_lead_is_the_best_other_token_with_noise_over_the_chosen_one_without(
    temperature: float, dtype: torch.dtype
) -> None:
    random = torch.Generator().manual_seed(1)
    logits = (4 * torch.randn(200, 300, generator=random)).to(dtype)
    chosen = logits.argmax(dim=1)
    chosen[::2] = torch.randint(300, (100,), generator=random)
    seeds, positions = torch.arange(200) + 2**40, torch.arange(200) % 7
    scaled = logits.float() / temperature
    noised = scaled + gumbel(seeds, positions, 300)
    noised[torch.arange(200), chosen] = -math.inf
    expected = noised.amax(dim=1) - scaled[torch.arange(200), chosen]
    before = logits.clone()
    torch.testing.assert_close(leads(logits, chosen, seeds, positions, temperature), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(logits, before)
