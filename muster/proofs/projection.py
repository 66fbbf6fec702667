"""The `projection` codec: each state's products with four seeded sign vectors, as float16; 8 bytes a token.

For a state h of H entries, the k-th number is sum_i sign[i, k] * h[i] / sqrt(H), whose size is that of an entry of h.
The signs follow from the completion's seed, so a proof fits one position of one commitment only:

    word w = `sampling.noise_bits` of the seed at token index 2^31 - 1 and token w
    sign[i, k] = -1 where bit n mod 32 of word n div 32 is set, n = k * H + i; else 1

Four random signs per entry preserve relative distances on average (Johnson-Lindenstrauss); over a completion of 20
tokens the distance is measured by 80 numbers. It is relative to their size, or to the size that the states let expect
where that is larger. Sums are float32 whatever the states are. Building reads each state once, in the kernel
muster/proofs/native/projection.c or, where there is none and on a GPU, in one [4, H] x [H, T] product per completion;
the two differ by no more than the order of float32 additions does.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from muster.proofs.codec import Comparison
from muster.proofs.kernel import address, addresses
from muster.proofs.native import load
from muster.proofs.seeded_sampling import noise_bits

PROJECTIONS = 4
_SIGN_POSITION = 0x7FFFFFFF
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


def signs(seeds: Sequence[int], hidden: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return the sign matrices of B completions: float32 [B, 4, hidden], each entry 1 or -1."""
    words = _sign_words(seeds, hidden, device)
    bits = (words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=device)) & 1
    flat = bits.view(len(seeds), -1)[:, : hidden * PROJECTIONS]
    return (1 - 2 * flat).to(torch.float32).view(len(seeds), PROJECTIONS, hidden)


def _sign_words(seeds: Sequence[int], hidden: int, device: torch.device | str) -> torch.Tensor:
    """Return the signs, 32 to a word, set bits being -1: int32 [B, ceil(4 * hidden / 32)]."""
    keys = torch.tensor(list(seeds), dtype=torch.int64, device=device)
    return noise_bits(keys, torch.full_like(keys, _SIGN_POSITION), -(-hidden * PROJECTIONS // 32))


@dataclass(frozen=True)
class Projection:
    name: str = "projection"

    def encode_batch(self, states: Sequence[torch.Tensor], seeds: Sequence[int]) -> list[bytes]:
        numbers = _project(states, seeds)
        if not all(np.isfinite(values).all() for values in numbers):
            raise ValueError("states are not finite")
        return [values.astype("<f2").tobytes() for values in numbers]

    def compare_batch(
        self, proofs: Sequence[bytes], states: Sequence[torch.Tensor], seeds: Sequence[int]
    ) -> list[Comparison]:
        numbers = _project(states, seeds)
        sizes = [PROJECTIONS * rows.float().square().mean(dim=1).cpu().numpy() for rows in states]
        return [_distance(*one) for one in zip(proofs, numbers, sizes, strict=True)]


PROJECTION = Projection()


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
    words = _sign_words(seeds, hidden, "cpu").numpy()
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


def _distance(proof: bytes, expected: np.ndarray, sizes: np.ndarray) -> Comparison:
    """Compare a proof's numbers with those expected, float32 [T, 4], by their relative distance.

    `sizes` [T] is how large each token's four squares are together, on average over all signs. One or two tokens'
    numbers may all be small by chance: relative to these alone, honest work would have a large distance.
    """
    if len(proof) != expected.size * 2:
        return Comparison.malformed(f"{len(proof)} bytes for {len(expected)} tokens, {expected.size * 2} expected")
    claimed = np.frombuffer(proof, dtype="<f2").astype(np.float32).reshape(expected.shape)
    if not np.isfinite(claimed).all():
        return Comparison.malformed("a number is not finite")
    if not len(expected):
        return Comparison(error=0.0, worst=0.0, tokens=np.zeros(0, dtype=np.float32))
    # 1. Over the completion, and the worst token.
    apart = np.abs(claimed.astype(np.float64) - expected)
    off = np.square(apart).sum(axis=1)
    size = np.square(expected.astype(np.float64)).sum(axis=1)
    floor = max(size.mean(), float(sizes.mean()), _SMALLEST_SIZE)

    # 2. Token by token, without what rounding to float16 explains.
    beyond = np.maximum(apart - _ROUNDING * np.abs(expected) - _SMALLEST_STEP, 0.0)
    tokens = np.square(beyond).sum(axis=1) / np.maximum(sizes, _SMALLEST_SIZE)
    return Comparison(
        error=math.sqrt(off.sum() / (floor * len(off))),
        worst=math.sqrt(off.max() / floor),
        tokens=tokens.astype(np.float32),
    )
