"""Activation proofs: each state's products with four seeded sign vectors, as float16; 8 bytes a token.

For a state h of H entries, the k-th number is sum_i sign[i, k] * h[i] / sqrt(H), whose size is that of an entry of h.
The signs follow from the completion's seed, so a proof fits one position of one commitment only:

    word w = `sampling.noise_bits` of the seed at token index 2^31 - 1 and token w
    sign[i, k] = -1 where bit n mod 32 of word n div 32 is set, n = k * H + i; else 1

Four random signs per entry preserve relative distances on average (Johnson-Lindenstrauss); over a completion of 20
tokens the distance is measured by 80 numbers. It is relative to the size that the states let expect: a token's own
numbers may all be small by chance. Sums are float32 whatever the states are. Building reads each state once, in the
kernel muster/proofs/native/projection.c or, where there is none and on a GPU, in one [4, H] x [H, T] product per
completion; the two differ by no more than the order of float32 additions does.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from muster.proofs.kernel import address, addresses
from muster.proofs.native import load
from muster.proofs.seeded_sampling import noise_bits

PROJECTIONS = 4
SIGN_POSITION = 0x7FFFFFFF
"""Token index under which the signs' words are hashed: no completion is that long, so they never meet the noise."""
_FLOAT16_MAX = 65504.0
_ROUNDING = 2.0**-11
"""Relative error of rounding to float16."""
_SMALLEST_STEP = 2.0**-25
"""Its absolute error near zero."""
_BLOCK = 16
"""Of the kernel: a row of its signs is a multiple of this."""
_SMALLEST_SIZE = 1e-30
"""Mean square below which states count as this large: no division by zero."""


def signs(
    seeds: Sequence[int], hidden: int, *, rows: int = PROJECTIONS, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Return the sign matrices of B completions: float32 [B, rows, hidden], each entry 1 or -1."""
    words = _sign_words(seeds, hidden * rows, device)
    bits = (words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=device)) & 1
    flat = bits.view(len(seeds), -1)[:, : hidden * rows]
    return (1 - 2 * flat).to(torch.float32).view(len(seeds), rows, hidden)


def _sign_words(seeds: Sequence[int], count: int, device: torch.device | str) -> torch.Tensor:
    """Return so many signs, 32 to a word, set bits being -1: int32 [B, ceil(count / 32)]."""
    keys = torch.tensor(list(seeds), dtype=torch.int64, device=device)
    return noise_bits(keys, torch.full_like(keys, SIGN_POSITION), -(-count // 32))


@dataclass(frozen=True)
class Comparison:
    """How far a proof is from the states it claims to be of."""

    distances: np.ndarray = field(compare=False)
    """Squared relative distance of each token's state, beyond what rounding to float16 makes: float32 [T]. 0 for the
    same states, about 1 or more for unrelated ones, infinite where there is a `problem`."""
    problem: str = ""
    """Why the proof cannot be compared at all, if so."""


def make_proofs(states: Sequence[torch.Tensor], seeds: Sequence[int]) -> list[bytes]:
    """Make the proofs of completions of different lengths, in order. Raises ValueError on states not finite.

    `states` are float32 or bfloat16 [T, H], on any device; a seed is 0 ≤ seed < 2^63.
    """
    numbers = _project(states, seeds)
    if not all(np.isfinite(values).all() for values in numbers):
        raise ValueError("states are not finite")
    return [values.astype("<f2").tobytes() for values in numbers]


def compare_proofs(proofs: Sequence[bytes], states: Sequence[torch.Tensor], seeds: Sequence[int]) -> list[Comparison]:
    """Compare strangers' proofs with recomputed states, one by one. Never raises on any proof."""
    numbers = _project(states, seeds)
    sizes = [PROJECTIONS * rows.float().square().mean(dim=1).cpu().numpy() for rows in states]
    return [_compare(*one) for one in zip(proofs, numbers, sizes, strict=True)]


def _project(states: Sequence[torch.Tensor], seeds: Sequence[int]) -> list[np.ndarray]:
    """Return float32 [T, 4] per completion, clamped to what float16 holds."""
    if not states:
        return []
    on_cpu = all(rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.bfloat16) for rows in states)
    sums = sums_by_kernel(states, seeds) if on_cpu and load("projection") else sums_by_torch(states, seeds)
    flat = np.clip(sums / np.float32(math.sqrt(states[0].shape[1])), -_FLOAT16_MAX, _FLOAT16_MAX)
    return np.split(flat, np.cumsum([len(rows) for rows in states])[:-1])


def sums_by_kernel(states: Sequence[torch.Tensor], seeds: Sequence[int]) -> np.ndarray:
    """Return the states' products with their signs: float32 [sum of T, 4]. All on the CPU, and of one dtype."""
    kernel = load("projection")
    assert kernel is not None
    rows = [part.contiguous() for part in states]
    tokens = np.array([len(part) for part in rows], dtype=np.int64)
    hidden = rows[0].shape[1]
    words = _sign_words(seeds, hidden * PROJECTIONS, "cpu").numpy()
    signs = np.zeros((PROJECTIONS, -(-hidden // _BLOCK) * _BLOCK), dtype=np.uint32)
    sums = np.empty((int(tokens.sum()), PROJECTIONS), dtype=np.float32)
    kernel.project(
        address(addresses(rows)),
        address(tokens),
        ctypes.c_int64(len(rows)),
        ctypes.c_int64(hidden),
        ctypes.c_int32(rows[0].dtype == torch.float32),
        address(words),
        ctypes.c_int64(words.shape[1]),
        address(signs),
        ctypes.c_int64(signs.shape[1]),
        address(sums),
    )
    return sums


def sums_by_torch(states: Sequence[torch.Tensor], seeds: Sequence[int]) -> np.ndarray:
    """Compute `sums_by_kernel` for states on any device."""
    matrices = signs(seeds, states[0].shape[1], device=states[0].device)
    products = [rows.float() @ matrix.t() for rows, matrix in zip(states, matrices, strict=True)]
    return torch.cat(products).cpu().numpy()


def _compare(proof: bytes, expected: np.ndarray, sizes: np.ndarray) -> Comparison:
    """Compare a proof's numbers with those expected, float32 [T, 4].

    `sizes` [T] is how large each token's four squares are together, on average over all signs.
    """
    none = np.full(len(expected), np.inf, dtype=np.float32)
    if len(proof) != expected.size * 2:
        return Comparison(none, f"{len(proof)} bytes for {len(expected)} tokens, {expected.size * 2} expected")
    claimed = np.frombuffer(proof, dtype="<f2").astype(np.float32).reshape(expected.shape)
    if not np.isfinite(claimed).all():
        return Comparison(none, "a number is not finite")
    apart = np.abs(claimed.astype(np.float64) - expected)
    beyond = np.maximum(apart - _ROUNDING * np.abs(expected) - _SMALLEST_STEP, 0.0)
    distances = np.square(beyond).sum(axis=1) / np.maximum(sizes, _SMALLEST_SIZE)
    return Comparison(distances.astype(np.float32))
