"""Activation proofs: honest ones compare as equal, everything else as far away, and no bytes can break a validator."""

from __future__ import annotations

import ctypes
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.proofs.kernel import address
from muster.proofs.native import compiler, load
from muster.proofs.projection import (
    PROJECTIONS,
    Comparison,
    compare_proofs,
    make_proofs,
    signs,
    sums_by_kernel,
    sums_by_torch,
)
from testbed.suite.examples import up_to

needs_kernel = pytest.mark.skipif(
    compiler() is None or os.environ.get("MUSTER_NATIVE") == "0", reason="no kernels here"
)


def some_states(tokens: int, hidden: int = 96, seed: int = 0) -> torch.Tensor:
    return torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(seed))


def prove(states: torch.Tensor, seed: int) -> bytes:
    return make_proofs([states], [seed])[0]


def compare(proof: bytes, states: torch.Tensor, seed: int) -> Comparison:
    return compare_proofs([proof], [states], [seed])[0]


def error(proof: bytes, states: torch.Tensor, seed: int) -> float:
    """Return the relative distance over the whole completion."""
    return math.sqrt(compare(proof, states, seed).distances.mean())


def test_signs_are_fixed_for_ever() -> None:
    matrix = signs([0x123456789ABCDEF], 24)[0]
    assert matrix.shape == (4, 24)
    packed = np.packbits((matrix < 0).numpy().reshape(-1), bitorder="little").tobytes().hex()
    assert packed == "1b9376e87d72dee51aa9d615"


def test_signs_are_balanced_and_differ_between_seeds_and_projections() -> None:
    matrices = signs(range(50), 512).view(200, 512)
    assert set(matrices.unique().tolist()) == {-1.0, 1.0}
    products = matrices @ matrices.t() / 512 - torch.eye(200)
    assert float(products.abs().max()) < 6 / math.sqrt(512)
    assert abs(float(matrices.mean())) < 4 / math.sqrt(matrices.numel())


def test_a_proof_is_the_projection_in_float16() -> None:
    states = some_states(5)
    expected = (states @ signs([9], 96)[0].t() / math.sqrt(96)).numpy().astype("<f2")
    proof = prove(states, 9)
    assert len(proof) == 5 * 2 * PROJECTIONS
    assert np.abs(np.frombuffer(proof, "<f2").reshape(5, 4).astype(float) - expected).max() < 2e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_honest_states_are_no_further_than_the_rounding(dtype: torch.dtype) -> None:
    states = some_states(40).to(dtype)
    assert compare(prove(states, 5), states, 5) == Comparison(np.zeros(40), problem="")
    assert error(prove(states, 5), states, 5) < 1e-6


@pytest.mark.parametrize("level", [0.01, 0.1])
def test_error_measures_the_relative_distance(level: float) -> None:
    states = some_states(500)
    moved = states + level * some_states(500, seed=1)
    assert error(prove(moved, 5), states, 5) == pytest.approx(level, rel=0.1)


def test_wrong_state_is_distinguished_from_rounding() -> None:
    states = some_states(200)
    moved = states.clone()
    moved[70] += 0.1 * some_states(1, seed=3)[0]
    distances = compare(prove(moved, 5), states, 5).distances
    assert 0.03 < math.sqrt(distances[70]) < 0.25, "four numbers show a tenth within about a factor of two"
    assert np.delete(distances, 70).max() < 1e-9


def test_a_proof_of_other_states_another_seed_or_nothing_is_far_away() -> None:
    states = some_states(30)
    proof = prove(states, 5)
    assert error(proof, some_states(30, seed=1), 5) > 0.8
    assert error(proof, states, 6) > 0.8
    assert error(bytes(len(proof)), states, 5) == pytest.approx(1.0, abs=0.05)
    assert error(np.full(120, 1.0, "<f2").tobytes(), states, 5) > 0.8
    shuffled = np.frombuffer(proof, "<f2").reshape(30, 4)[::-1].tobytes()
    assert error(shuffled, states, 5) > 0.8


def test_one_token_whose_numbers_are_small_by_chance_is_measured_against_its_state() -> None:
    """Noise of 1 % stays 1 % or so for the seed whose four numbers are the smallest of a thousand."""
    states = some_states(1)
    smallest = min(range(1000), key=lambda seed: np.abs(np.frombuffer(prove(states, seed), "<f2")).max())
    assert np.abs(np.frombuffer(prove(states, smallest), "<f2")).max() < 0.3
    noisy = states + 0.01 * states.square().mean().sqrt() * some_states(1, seed=1)
    assert error(prove(noisy, smallest), states, smallest) < 0.03


def test_batches_equal_single_proofs() -> None:
    states = [some_states(length, seed=length) for length in (1, 7, 64)]
    seeds = [3, 2**63 - 1, 0]
    proofs = make_proofs(states, seeds)
    assert proofs == [prove(rows, seed) for rows, seed in zip(states, seeds, strict=True)]
    assert [c.distances.max() < 1e-9 for c in compare_proofs(proofs, states, seeds)] == [True] * 3
    assert make_proofs([], []) == []


@pytest.mark.parametrize("size", [0, 1, 79, 81, 88, 258])
def test_the_wrong_length_is_a_finding(size: int) -> None:
    comparison = compare(bytes(size), some_states(10), 5)
    assert comparison.distances.tolist() == [math.inf] * 10
    assert comparison.problem == f"{size} bytes for 10 tokens, 80 expected"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_a_finding(value: float) -> None:
    numbers = np.frombuffer(prove(some_states(10), 5), "<f2").copy()
    numbers[17] = value
    comparison = compare(numbers.tobytes(), some_states(10), 5)
    assert comparison.distances.tolist() == [math.inf] * 10
    assert comparison.problem == "a number is not finite"


@settings(max_examples=up_to(300), deadline=None)
@given(proof=st.one_of(st.binary(max_size=100), st.binary(min_size=24, max_size=24)))
def test_no_bytes_break_a_comparison(proof: bytes) -> None:
    comparison = compare(proof, some_states(3), 5)
    assert len(comparison.distances) == 3
    assert (comparison.distances >= 0).all()
    assert (not comparison.problem) == np.isfinite(comparison.distances).all()


def test_huge_states_saturate_instead_of_overflowing() -> None:
    states = some_states(4) * 1e7
    proof = prove(states, 5)
    assert np.isfinite(np.frombuffer(proof, "<f2")).all()
    assert error(proof, states, 5) < 1e-3


def test_states_of_zero_compare_without_dividing_by_zero() -> None:
    states = torch.zeros(3, 96)
    assert error(prove(states, 5), states, 5) == 0
    assert error(prove(some_states(3), 5), states, 5) > 1e6


def test_a_worker_does_not_prove_states_that_are_not_finite() -> None:
    states = some_states(3)
    states[1, 5] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        prove(states, 5)


@needs_kernel
@settings(max_examples=up_to(60), deadline=None)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    hidden=st.integers(1, 70),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**63 - 1),
)
def test_kernel_and_twin_differ_by_rounding_only(
    lengths: list[int], hidden: int, dtype: torch.dtype, seed: int
) -> None:
    states = [some_states(length, hidden, seed=i).to(dtype) for i, length in enumerate(lengths)]
    seeds = [seed - i if seed >= i else seed for i in range(len(lengths))]
    assert np.allclose(sums_by_kernel(states, seeds), sums_by_torch(states, seeds), rtol=0, atol=2e-5)


@needs_kernel
def test_kernel_loads_when_a_compiler_exists() -> None:
    assert load("projection") is not None


def test_proofs_do_not_depend_on_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    states = some_states(70, 512)
    proof = prove(states, 5)
    monkeypatch.setattr("muster.proofs.projection.load", lambda name: None)
    assert compare(prove(states, 5), states, 5).distances.max() < 1e-12
    assert compare(proof, states, 5).distances.max() < 1e-9


@needs_kernel
def test_the_kernel_reads_rows_that_are_apart_in_memory() -> None:
    apart = some_states(6, 64)[:, ::2]
    assert np.array_equal(sums_by_kernel([apart], [5]), sums_by_kernel([apart.contiguous()], [5]))


def test_bfloat16_states_lose_nothing_but_the_rounding_of_the_proof() -> None:
    states = some_states(20, 4096).bfloat16()
    exact = (states.double() @ signs([5], 4096)[0].double().t() / 64).numpy()
    numbers = np.frombuffer(prove(states, 5), "<f2").reshape(20, 4)
    assert np.allclose(numbers, exact, rtol=6e-4, atol=1e-6)


def test_kernel_argument_lives_as_long_as_the_call() -> None:
    """An array that nothing else holds would be freed before the kernel reads it."""
    held = address(np.arange(1 << 20, dtype=np.uint64))
    churn = [np.full(1 << 20, 7, dtype=np.uint64) for _ in range(4)]
    found = np.ctypeslib.as_array(ctypes.cast(held, ctypes.POINTER(ctypes.c_uint64)), (1 << 20,))
    assert found[-1] == (1 << 20) - 1
    assert len(churn) == 4
