"""A GPU draws what the processor draws: the same noise, the same tokens, the same proofs. Replay rests on it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from muster.models.numerics import pin_numerics
from muster.proofs.projection import compare_proofs, make_proofs
from muster.proofs.seeded_sampling import choose, gumbel, measure, noise_bits
from testbed.suite.gpu import needs_gpu

pytestmark = needs_gpu

VOCABULARY = 151_936
ROWS = 64
LAST_BITS = 4 * 2.0**-23
"""Four units in the last place: what two correct logarithms of float32 may differ by, one taken of the other."""

FLOAT16_STEP = 2.0**-10


def keys(first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Seeds and token indices of ROWS rows, with the extremes of both among them."""
    random = np.random.default_rng(first)
    seeds, positions = random.integers(1 << 63, size=ROWS), random.integers(1 << 20, size=ROWS)
    seeds[:3], positions[:3] = (0, 2**63 - 1, 2**32 - 1), (0, 2**31 - 2, 2**16)
    return torch.from_numpy(seeds), torch.from_numpy(positions)


@pytest.mark.parametrize("first", range(8))
def test_the_bits_of_the_noise_are_the_same_over_a_whole_vocabulary(first: int) -> None:
    seeds, positions = keys(first)
    there = noise_bits(seeds.cuda(), positions.cuda(), VOCABULARY)
    assert torch.equal(there.cpu(), noise_bits(seeds, positions, VOCABULARY))


@pytest.mark.parametrize("first", range(4))
def test_the_noise_differs_by_the_last_bits_of_a_logarithm_at_most(first: int) -> None:
    seeds, positions = keys(first)
    here, there = gumbel(seeds, positions, VOCABULARY), gumbel(seeds.cuda(), positions.cuda(), VOCABULARY).cpu()
    assert float(((here - there).abs() / here.abs().clamp(min=1)).max()) <= LAST_BITS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_same_logits_give_the_same_tokens(dtype: torch.dtype, temperature: float) -> None:
    """Of 1,024 tokens none is another; were one a near-tie within the last bits, its gap would be as small."""
    generator = torch.Generator().manual_seed(1)
    for first in range(16):
        logits = (3 * torch.randn(ROWS, VOCABULARY, generator=generator)).to(dtype)
        seeds, positions = keys(first)
        here = choose(logits, seeds, positions, temperature)
        there = choose(logits.cuda(), seeds.cuda(), positions.cuda(), temperature)
        replayed = measure(logits, there.tokens.cpu(), seeds, positions, temperature)
        assert float(replayed.gaps.max()) <= 32 * LAST_BITS
        assert torch.equal(there.tokens.cpu(), here.tokens)
        assert torch.allclose(there.logprobs.cpu(), here.logprobs, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", [128, 896, 4096])
def test_proofs_of_states_on_the_gpu_are_those_of_the_same_states_on_the_processor(
    dtype: torch.dtype, hidden: int
) -> None:
    """But for numbers that the order of a sum puts on the other side of a rounding to float16."""
    pin_numerics()
    generator = torch.Generator().manual_seed(hidden)
    states = [torch.randn(length, hidden, generator=generator).to(dtype) for length in (1, 20, 256)]
    seeds = [0, 2**63 - 1, 12345]
    here = make_proofs(states, seeds)
    there = make_proofs([rows.cuda() for rows in states], seeds)
    numbers, others = (np.frombuffer(b"".join(proofs), "<f2").astype(np.float64) for proofs in (here, there))
    assert np.all(np.abs(numbers - others) <= FLOAT16_STEP * np.abs(numbers) + 1e-6)
    assert (numbers != others).mean() < 0.01
    for comparison in compare_proofs(there, states, seeds):
        assert comparison.distances.max() < 1e-9
