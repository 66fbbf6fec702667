"""The `toploc` codec: the package's own bytes, the package's own statistics, and far stricter about lies.

vectors/toploc.json was made by the `toploc` package 0.1.6; toploc_cases.py says how.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.proofs.field import (
    LEAST_MODULUS,
    PRIME,
    WORDS,
    evaluate,
    evaluate_by_numpy,
    interpolate,
    interpolate_by_numpy,
    inverses,
)
from muster.proofs.native import compiler, load
from muster.proofs.topk import CHUNK_TOKENS, POINTS, Largest, largest, largest_by_torch
from muster.proofs.toploc import TOPLOC
from testbed import paths
from testbed.samples.proofs import compare, encode
from testbed.suite.examples import up_to
from testbed.waiting import BOUND
from tests.unit.proofs.toploc_cases import CASES, Case, other_states, states

VECTORS = json.loads((paths.VECTORS / "toploc.json").read_text())
CHUNK = 2 * WORDS
needs_kernel = pytest.mark.skipif(
    compiler() is None or os.environ.get("MUSTER_NATIVE") == "0", reason="no kernels here"
)
paired = list(zip(CASES, VECTORS, strict=True))
cases = pytest.mark.parametrize(("case", "vector"), paired, ids=[case.name for case in CASES])


def tensor(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def gaussian(tokens: int, hidden: int = 512, seed: int = 0) -> torch.Tensor:
    return torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(seed))


def words_of(proof: bytes) -> np.ndarray:
    return np.frombuffer(proof, ">u2").reshape(-1, WORDS).astype(np.uint16)


def constant(value: float, chunks: int) -> bytes:
    """One constant polynomial for every chunk: no model was run."""
    words = np.zeros((chunks, WORDS), ">u2")
    words[:, 0] = PRIME
    words[:, 1] = int(torch.tensor(value).bfloat16().view(torch.int16)) & 0xFFFF
    return words.tobytes()


def by_rank(kept: Largest) -> list[list[tuple[int, int]]]:
    """Return the kept entries of every chunk in a fixed order."""
    pairs = zip(kept.indices.tolist(), kept.bits.tolist(), strict=True)
    return [sorted(zip(indices, bits, strict=True)) for indices, bits in pairs]


# --- The package's form


@cases
def test_proofs_are_the_package_s(case: Case, vector: dict) -> None:
    assert vector["case"] == case.name
    assert encode(TOPLOC, tensor(states(case)), 0).hex() == "".join(vector["proofs"])


@cases
@pytest.mark.parametrize("against", ["same", "other"])
def test_the_package_s_proofs_are_read_as_it_reads_them(case: Case, vector: dict, against: str) -> None:
    kept = largest([tensor(states(case) if against == "same" else other_states(case))])
    claimed = evaluate(words_of(bytes.fromhex("".join(vector["proofs"]))), kept.indices)
    for ours, expected, (mismatches, mean, median) in zip(claimed, kept.bits, vector[against], strict=True):
        same = (ours >> 7 & 0xFF) == (expected >> 7 & 0xFF)
        differences = np.sort(np.abs((ours & 0x7F).astype(int) - (expected & 0x7F))[same])
        assert (~same).sum() == mismatches
        assert differences.mean() == pytest.approx(mean, rel=1e-12)
        assert differences[len(differences) // 2] == median


@cases
def test_the_package_s_proofs_are_found_honest(case: Case, vector: dict) -> None:
    proof = bytes.fromhex("".join(vector["proofs"]))
    assert compare(TOPLOC, proof, tensor(states(case)), 0).error == 0
    assert 0.05 < compare(TOPLOC, proof, tensor(other_states(case)), 0).error < 0.25


def test_the_vectors_hold_every_kind_of_modulus() -> None:
    moduli = {vector["case"]: int(vector["proofs"][0][:4], 16) for vector in VECTORS}
    assert moduli.pop("another modulus") == PRIME - 1
    assert set(moduli.values()) == {PRIME}


# --- What is kept


def test_ties_go_to_the_lowest_index() -> None:
    rows = torch.ones(1, 300)
    rows[0, 200] = -2.0
    rows[0, 100] = -1.0
    (kept,) = by_rank(largest([rows]))
    assert [index for index, _ in kept] == [*range(127), 200]
    assert dict(kept)[100] == 0xBF80
    assert dict(kept)[200] == 0xC000


def test_float32_states_are_rounded_first() -> None:
    rows = gaussian(40)
    assert encode(TOPLOC, rows, 0) == encode(TOPLOC, rows.bfloat16(), 0)


@settings(max_examples=up_to(150), deadline=None)
@given(
    tokens=st.lists(st.integers(0, 70), min_size=1, max_size=4),
    hidden=st.sampled_from([1, 2, 3, 5, 64, 65, 127, 256]),
    distinct=st.sampled_from([1, 2, 5, 60, 2**15]),
    seed=st.integers(0, 2**32 - 1),
)
def test_kernel_and_twin_keep_the_same(tokens: list[int], hidden: int, distinct: int, seed: int) -> None:
    """Few distinct magnitudes are many ties."""
    random = np.random.default_rng(seed)
    rows = [
        tensor(random.integers(0, min(distinct, 0x7F80), (count, hidden), np.uint16) | random.integers(0, 2) << 15)
        for count in tokens
    ]
    rows = [part for part in rows if len(part)]
    if rows:
        assert by_rank(largest(rows)) == by_rank(largest_by_torch(rows))


@pytest.mark.parametrize("kind", ["gaussian", "one large token", "one large block", "zeros", "equal", "ramp"])
def test_kernel_and_twin_keep_the_same_of_large_chunks(kind: str) -> None:
    rows = gaussian(33, 4096).bfloat16()
    if kind == "one large token":
        rows[7] *= 100
    elif kind == "one large block":
        rows[30, 4000:4060] *= 100
    elif kind == "zeros":
        rows.zero_()
    elif kind == "equal":
        rows.fill_(-3.0)
    elif kind == "ramp":
        rows = torch.arange(33 * 4096, dtype=torch.float32).view(33, 4096).bfloat16()
    assert by_rank(largest([rows])) == by_rank(largest_by_torch([rows]))


# --- Polynomials


def test_inverses_are_inverses() -> None:
    numbers = np.arange(1, PRIME, dtype=np.int64)
    assert (inverses()[1:] * numbers % PRIME == 1).all()


points = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@settings(max_examples=up_to(60), deadline=None)
@given(random=points, size=st.sampled_from([POINTS, 1000, 65497, 131072, 2**19]))
def test_a_polynomial_goes_through_its_points(random: np.random.Generator, size: int) -> None:
    indices = np.stack([random.choice(size, POINTS, replace=False) for _ in range(3)]).astype(np.int32)
    values = random.integers(0, PRIME, (3, POINTS), np.uint16)
    words = interpolate(indices, values)
    assert np.array_equal(evaluate(words, indices), values)
    assert np.array_equal(words, interpolate_by_numpy(indices, values))
    elsewhere = random.integers(0, 2**19, (3, POINTS)).astype(np.int32)
    assert np.array_equal(evaluate(words, elsewhere), evaluate_by_numpy(words, elsewhere))
    order = random.permutation(POINTS)
    shuffled = interpolate(np.ascontiguousarray(indices[:, order]), np.ascontiguousarray(values[:, order]))
    assert np.array_equal(words, shuffled)


def test_the_extremes_of_the_field_do_not_overflow() -> None:
    indices = np.arange(PRIME - POINTS, PRIME, dtype=np.int32)[None]
    words = np.full((1, WORDS), PRIME - 1, np.uint16)
    words[0, 0] = PRIME
    x = indices[0, 5].item()
    expected = sum((PRIME - 1) * x**power for power in range(POINTS)) % PRIME
    assert evaluate(words, indices)[0, 5] == evaluate_by_numpy(words, indices)[0, 5] == expected


@settings(max_examples=20, deadline=None)
@given(random=points)
def test_the_modulus_is_the_largest_that_keeps_indices_apart(random: np.random.Generator) -> None:
    indices = np.arange(0, 2 * POINTS, 2, dtype=np.int32)[None].copy()
    taken = random.choice(60, 40, replace=False)
    indices[0, 1:41] = PRIME - taken  # each collides with index 0 under one modulus
    (words,) = interpolate(indices, np.zeros((1, POINTS), np.uint16))
    expected = next(m for m in range(PRIME, 0, -1) if len({index % m for index in indices[0].tolist()}) == POINTS)
    assert words[0] == expected
    assert np.array_equal(words, interpolate_by_numpy(indices, np.zeros((1, POINTS), np.uint16))[0])


@pytest.mark.parametrize("kernels", [True, False])
def test_indices_that_no_modulus_keeps_apart_are_refused(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernels:
        monkeypatch.setattr("muster.proofs.field.load", lambda name: None)
    with pytest.raises(ValueError, match="no modulus"):
        interpolate(np.zeros((1, POINTS), np.int32), np.zeros((1, POINTS), np.uint16))


# --- Proofs


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(0, 100), hidden=st.integers(1, 300), seed=st.integers(0, 1000))
def test_honest_states_compare_as_equal(tokens: int, hidden: int, seed: int) -> None:
    rows = gaussian(tokens, hidden, seed)
    proof = encode(TOPLOC, rows, 0)
    assert len(proof) == -(-tokens // CHUNK_TOKENS) * CHUNK
    comparison = compare(TOPLOC, proof, rows, 0)
    assert (comparison.error, comparison.worst, comparison.problem) == (0, 0, None)


def test_batches_equal_single_proofs() -> None:
    rows = [gaussian(length, seed=length) for length in (1, 0, 64, 33, 31)]
    seeds = [3, 2**63 - 1, 0, 1, 2]
    proofs = TOPLOC.encode_batch(rows, seeds)
    assert proofs == [encode(TOPLOC, part, 0) for part in rows]
    claims = [proofs[0], b"", proofs[3], proofs[3], constant(3.3, 1)]
    together = TOPLOC.compare_batch(claims, rows, seeds)
    assert together == [compare(TOPLOC, claim, part, 0) for claim, part in zip(claims, rows, strict=True)]
    assert [comparison.error == 0 for comparison in together] == [True, True, False, True, False]
    assert TOPLOC.encode_batch([], []) == []
    assert TOPLOC.compare_batch([], [], []) == []


def test_bytes_per_token_is_what_long_completions_take() -> None:
    assert len(encode(TOPLOC, gaussian(320, 16), 0)) == 320 // 32 * 258


@needs_kernel
def test_there_is_a_kernel_and_nothing_depends_on_it() -> None:
    assert load("toploc") is not None
    script = (
        "import torch; from muster.proofs.native import load; from muster.proofs.toploc import TOPLOC;"
        "assert load('toploc') is None;"
        "rows = torch.randn(70, 512, generator=torch.Generator().manual_seed(0));"
        "(proof,) = TOPLOC.encode_batch([rows], [0]);"
        "print(proof.hex(), TOPLOC.compare_batch([proof], [rows], [0])[0].error)"
    )
    environment = {**os.environ, "MUSTER_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=BOUND
    )
    assert done.stdout.split() == [encode(TOPLOC, gaussian(70), 0).hex(), "0.0"]


# --- How far off


@pytest.mark.parametrize(("level", "least", "most"), [(1e-6, 0, 0.001), (0.01, 0.01, 0.03), (0.1, 0.2, 0.5)])
def test_error_grows_with_the_distance_of_the_states(level: float, least: float, most: float) -> None:
    rows = gaussian(200, 1024)
    moved = rows + level * gaussian(200, 1024, seed=1)
    assert least <= compare(TOPLOC, encode(TOPLOC, moved, 0), rows, 0).error <= most


def test_worst_finds_the_one_chunk_that_is_off() -> None:
    rows = gaussian(320)
    moved = rows.clone()
    moved[96:128] = gaussian(32, seed=3)
    comparison = compare(TOPLOC, encode(TOPLOC, moved, 0), rows, 0)
    assert comparison.error < 0.25
    assert comparison.worst > 1.5


def test_no_guess_without_the_model_comes_near() -> None:
    """On Gaussian states, where the published thresholds accept a constant in nearly every chunk."""
    rows = gaussian(256, 4096)
    proof, chunks = encode(TOPLOC, rows, 0), 8
    random = np.random.default_rng(0).integers(0, PRIME, (chunks, WORDS)).astype(">u2")
    random[:, 0] = PRIME
    parts = [proof[i : i + CHUNK] for i in range(0, len(proof), CHUNK)]
    guesses = [constant(sign * value, chunks) for sign in (1, -1) for value in np.arange(3.0, 4.6, 0.1)]
    guesses += [constant(0.0, chunks), random.tobytes(), b"".join(parts[::-1]), parts[0] * chunks]
    guesses += [encode(TOPLOC, gaussian(256, 4096, seed=1), 0), encode(TOPLOC, -rows, 0)]
    assert min(compare(TOPLOC, guess, rows, 0).error for guess in guesses) > 0.95


def test_a_constant_does_not_pass_where_large_states_have_one_sign() -> None:
    rows = gaussian(64, 4096).abs()
    errors = [compare(TOPLOC, constant(value, 2), rows, 0).error for value in np.arange(3.0, 4.6, 0.05)]
    assert min(errors) > 0.95


def test_states_without_a_spread_compare_without_dividing_by_zero() -> None:
    rows = torch.zeros(40, 96)
    assert compare(TOPLOC, encode(TOPLOC, rows, 0), rows, 0).error == 0
    assert compare(TOPLOC, encode(TOPLOC, gaussian(40, 96), 0), rows, 0).error > 50


# --- Ties at the boundary

STEP = 0x4000
"""2.0 as bfloat16; the next bits are the next values."""


def chunk(entries: dict[int, int]) -> torch.Tensor:
    """Return one chunk of 32 tokens of 16 entries, zero but for these: place -> steps above 2.0."""
    bits = np.zeros(CHUNK_TOKENS * 16, np.uint16)
    bits[list(entries)] = STEP + np.array(list(entries.values()))
    return tensor(bits.reshape(CHUNK_TOKENS, 16))


ABOVE = {place: 10 + 2 * place for place in range(100)}
"""A hundred entries of different sizes: 10, 12 … 208 steps above 2.0, the lower median 108."""
TIED = dict.fromkeys(range(200, 240), 5)
"""Forty of one size, of which 28 are kept: the first ones."""
SPREAD = sum(min(abs(steps - 108), 128) for steps in ABOVE.values())


def error_of(claimed: dict[int, int], recomputed: dict[int, int]) -> float:
    return compare(TOPLOC, encode(TOPLOC, chunk(claimed), 0), chunk(recomputed), 0).error


def test_which_of_equal_entries_a_worker_kept_does_not_matter() -> None:
    assert error_of(ABOVE | TIED, ABOVE | TIED) == 0
    others = ABOVE | dict.fromkeys(range(220, 260), 5)
    assert not set(range(200, 220)) & set(others), "it kept none of twenty that the other side kept"
    assert error_of(others, ABOVE | TIED) == 0
    assert error_of(ABOVE | dict.fromkeys(range(200, 240), 4), ABOVE | TIED) == 0


def test_the_boundary_is_left_out_though_nothing_ties_with_it() -> None:
    alone = ABOVE | {200 + i: 6 + i % 4 for i in range(27)} | {300: 5}
    without = alone | {300: 0, 301: 5}
    assert len(alone) == POINTS
    assert error_of(without, alone) == 0
    assert error_of(alone | {300: 0, 301: 5, 200: 9}, alone) > 0


@pytest.mark.parametrize("steps", [1, 3, 100])
def test_entries_above_the_boundary_count_by_their_distance(steps: int) -> None:
    assert SPREAD == 5000
    assert error_of(ABOVE | TIED | {40: ABOVE[40] + steps}, ABOVE | TIED) == steps / SPREAD
    moved = ABOVE | TIED | {40: ABOVE[40] + steps, 99: ABOVE[99] - 2}
    assert error_of(moved, ABOVE | TIED) == (steps + 2) / SPREAD


def test_tied_entries_all_count() -> None:
    flat = dict.fromkeys(range(400), 7)
    assert error_of(flat, flat) == 0
    assert error_of(dict.fromkeys(range(400), 8), flat) == 1
    assert error_of(dict.fromkeys(range(400), 9) | dict.fromkeys(range(64), 7), flat) == 128 * 2 / 128


def test_equal_larger_entries_all_count() -> None:
    """Otherwise a constant proof with their value would match every compared entry."""
    flat = dict.fromkeys(range(400), 7)
    few = flat | {10: 107}
    large = float(chunk(few).max())
    assert compare(TOPLOC, constant(large, 1), chunk(few), 0).error == 127 * 100 / 128
    assert compare(TOPLOC, constant(float(chunk(flat).max()), 1), chunk(few), 0).error == 100 / 128
    some = flat | dict.fromkeys(range(60), 107)
    assert compare(TOPLOC, constant(large, 1), chunk(some), 0).error == 68 * 100 / (60 * 100)
    assert error_of(few, few) == error_of(some, some) == 0


def test_no_constant_passes_where_entries_are_left_out() -> None:
    rows = chunk(ABOVE | TIED)
    errors = [compare(TOPLOC, constant(float(value), 1), rows, 0).error for value in rows.unique()]
    assert min(errors) == 1.0


# --- Malformed


@pytest.mark.parametrize("size", [0, 1, 2, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK + 1, 3 * CHUNK])
def test_the_wrong_length_is_a_finding(size: int) -> None:
    comparison = compare(TOPLOC, bytes(size), gaussian(40), 0)
    assert comparison.error == comparison.worst == math.inf
    assert comparison.problem == f"{size} bytes for 40 tokens, 516 expected"


@pytest.mark.parametrize("modulus", [0, 1, 2**15, PRIME - 1, PRIME + 1, 2**16 - 1])
def test_unneeded_modulus_is_a_finding(modulus: int) -> None:
    rows = gaussian(40)
    proof = encode(TOPLOC, rows, 0)
    comparison = compare(TOPLOC, proof[:CHUNK] + modulus.to_bytes(2) + proof[CHUNK + 2 :], rows, 0)
    assert comparison.error == math.inf
    assert comparison.problem == f"a modulus of {modulus}, 65497 to 65497 expected"


@pytest.mark.parametrize(("modulus", "formed"), [(LEAST_MODULUS - 1, False), (LEAST_MODULUS, True), (PRIME + 1, False)])
def test_modulus_may_shrink_when_indices_exceed_it(modulus: int, formed: bool) -> None:
    rows = gaussian(32, 4096)
    comparison = compare(TOPLOC, modulus.to_bytes(2) + encode(TOPLOC, rows, 0)[2:], rows, 0)
    assert (comparison.problem is None) == formed
    assert comparison.error > 0.9


def test_a_coefficient_outside_the_field_is_a_finding() -> None:
    rows = gaussian(40)
    proof = bytearray(encode(TOPLOC, rows, 0))
    proof[-2:] = PRIME.to_bytes(2)
    assert compare(TOPLOC, bytes(proof), rows, 0).problem == "a coefficient is not below 65497"


@settings(max_examples=up_to(200), deadline=None)
@given(
    proof=st.one_of(
        st.binary(max_size=3 * CHUNK),
        st.binary(min_size=2 * CHUNK, max_size=2 * CHUNK),
        st.lists(st.integers(0, PRIME - 1), min_size=2 * POINTS, max_size=2 * POINTS).map(
            lambda words: b"".join(
                np.array([PRIME, *words[part : part + POINTS]], ">u2").tobytes() for part in (0, POINTS)
            )
        ),
    )
)
def test_no_bytes_break_a_comparison(proof: bytes) -> None:
    comparison = compare(TOPLOC, proof, gaussian(40), 0)
    assert comparison.error > 0.5
    assert (comparison.problem is None) == math.isfinite(comparison.error)


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf, 3.4e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_that_are_not_finite_are_neither_proven_nor_compared(value: float, dtype: torch.dtype) -> None:
    honest = gaussian(40)
    broken = honest.clone().to(dtype)
    broken[33, 5] = value
    with pytest.raises(ValueError, match="not finite"):
        TOPLOC.encode_batch([honest.to(dtype), broken], [0, 0])
    proof = encode(TOPLOC, honest, 0)
    sound, unsound = TOPLOC.compare_batch([proof, proof], [honest.to(dtype), broken], [0, 0])
    assert sound.error == 0
    assert unsound.error == math.inf
    assert unsound.problem == "the states are not finite"
