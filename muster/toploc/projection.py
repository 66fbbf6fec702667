"""The `projection` codec: each state's products with four seeded sign vectors, as float16; 8 bytes a token.

For a state h of H entries, the k-th number is sum_i sign[i, k] * h[i] / sqrt(H), whose size is that of an entry of h.
The signs follow from the completion's seed, so a proof fits one position of one commitment only:

    word w = `sampling.noise_bits` of the seed at token index 2^31 - 1 and token w
    sign[i, k] = -1 where bit n mod 32 of word n div 32 is set, n = k * H + i; else 1

Four random signs per entry preserve relative distances on average (Johnson-Lindenstrauss); over a completion of 20
tokens the distance is measured by 80 numbers. Building reads each state once: one [4, H] x [H, T] product per
completion, in the states' own dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from muster.sampling import noise_bits
from muster.toploc.codec import Comparison

PROJECTIONS = 4
_SIGN_POSITION = 0x7FFFFFFF
"""Token index under which the signs' words are hashed: no completion is that long, so they never meet the noise."""
_FLOAT16_MAX = 65504.0
_SMALLEST_SIZE = 1e-30
"""Mean square below which states count as this large: no division by zero."""


def signs(seeds: Sequence[int], hidden: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
    """The sign matrices of B completions: float32 [B, 4, hidden], each entry 1 or -1."""
    keys = torch.tensor(list(seeds), dtype=torch.int64, device=device)
    count = -(-hidden * PROJECTIONS // 32)
    words = noise_bits(keys, torch.full_like(keys, _SIGN_POSITION), count)
    bits = (words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=device)) & 1
    flat = bits.view(len(seeds), -1)[:, : hidden * PROJECTIONS]
    return (1 - 2 * flat).to(torch.float32).view(len(seeds), PROJECTIONS, hidden)


@dataclass(frozen=True)
class Projection:
    name: str = "projection"
    bytes_per_token: float = 2.0 * PROJECTIONS

    def encode(self, states: torch.Tensor, seed: int) -> bytes:
        return self.encode_batch([states], [seed])[0]

    def encode_batch(self, states: Sequence[torch.Tensor], seeds: Sequence[int]) -> list[bytes]:
        numbers = _project(states, seeds)
        if not all(np.isfinite(values).all() for values in numbers):
            raise ValueError("states are not finite")
        return [values.astype("<f2").tobytes() for values in numbers]

    def compare(self, proof: bytes, states: torch.Tensor, seed: int) -> Comparison:
        return self.compare_batch([proof], [states], [seed])[0]

    def compare_batch(
        self, proofs: Sequence[bytes], states: Sequence[torch.Tensor], seeds: Sequence[int]
    ) -> list[Comparison]:
        numbers = _project(states, seeds)
        return [_distance(proof, values) for proof, values in zip(proofs, numbers, strict=True)]


PROJECTION = Projection()


def _project(states: Sequence[torch.Tensor], seeds: Sequence[int]) -> list[np.ndarray]:
    """float32 [T, 4] per completion, clamped to what float16 holds."""
    if not states:
        return []
    hidden = states[0].shape[1]
    matrices = signs(seeds, hidden, device=states[0].device).to(states[0].dtype)
    products = [(matrix @ rows.t()).t() for rows, matrix in zip(states, matrices, strict=True)]
    lengths = [len(rows) for rows in products]
    flat = torch.cat(products).float().div_(math.sqrt(hidden)).clamp_(-_FLOAT16_MAX, _FLOAT16_MAX).cpu().numpy()
    return np.split(flat, np.cumsum(lengths)[:-1])


def _distance(proof: bytes, expected: np.ndarray) -> Comparison:
    """The relative distance between a proof's numbers and those expected, float32 [T, 4]."""
    if len(proof) != expected.size * 2:
        return Comparison.malformed(f"{len(proof)} bytes for {len(expected)} tokens, {expected.size * 2} expected")
    claimed = np.frombuffer(proof, dtype="<f2").astype(np.float32).reshape(expected.shape)
    if not np.isfinite(claimed).all():
        return Comparison.malformed("a number is not finite")
    if not len(expected):
        return Comparison(error=0.0, worst=0.0)
    off = np.square(claimed.astype(np.float64) - expected).sum(axis=1)
    size = np.square(expected.astype(np.float64)).sum(axis=1)
    floor = max(size.mean(), _SMALLEST_SIZE)
    return Comparison(error=math.sqrt(off.sum() / (floor * len(off))), worst=math.sqrt(off.max() / floor))
