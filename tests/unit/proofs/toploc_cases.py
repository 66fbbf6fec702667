"""States behind vectors/toploc.json, and how that file was made.

    make bench-peers
    .peers/toploc/bin/python -m tests.unit.proofs.toploc_cases > tests/unit/vectors/toploc.json

That is the `toploc` package 0.1.6, built from source, proving `states` and comparing its proofs with `other_states`.
The package leaves ties to torch, so every chunk has 128 entries larger than all others, no two of one magnitude.
Everything is integers from a hash, for the same states with any numpy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

CHUNK_TOKENS, POINTS = 32, 128


@dataclass(frozen=True)
class Case:
    name: str
    tokens: int
    hidden: int
    colliding: bool = False
    """Two of the largest entries are 65497 apart, so that the largest modulus does not keep them apart."""


CASES = (
    Case("small, ends within a chunk", tokens=40, hidden=96),
    Case("one token", tokens=1, hidden=2048),
    Case("whole chunks", tokens=64, hidden=1024),
    Case("more indices than the modulus", tokens=32, hidden=4096),
    Case("another modulus", tokens=35, hidden=4096, colliding=True),
)


def states(case: Case) -> np.ndarray:
    """Return the bits of bfloat16 states: uint16 [tokens, hidden]."""
    return _made(case, moved=False)


def other_states(case: Case) -> np.ndarray:
    """Return the same a little off: mantissas by up to 3, each chunk's ninth largest entry elsewhere."""
    return _made(case, moved=True)


def _made(case: Case, *, moved: bool) -> np.ndarray:
    size = case.tokens * case.hidden
    noise = _hashed(np.arange(size, dtype=np.uint32) + np.uint32(31 * case.hidden))
    bits = (noise & 0x81FF | 0x3E00).astype(np.uint16)  # magnitudes from 1/8 to 1/2, either sign
    for start in range(0, size, CHUNK_TOKENS * case.hidden):
        chunk = bits[start : start + CHUNK_TOKENS * case.hidden]
        order = np.argsort(_hashed(noise[start : start + len(chunk)]), kind="stable")
        places = order[:POINTS].copy()
        if case.colliding and len(chunk) > 65497 + 1000:
            places[:3] = 1000, 1000 + 65497, 1001 + 65497
            places[3:] = order[~np.isin(order, places[:3])][: POINTS - 3]
        rank = np.arange(POINTS, dtype=np.uint16)
        if moved:
            spare = order[~np.isin(order, places)][: POINTS // 9]
            places = np.concatenate([places[: POINTS - len(spare)], spare])
        # Magnitudes from 2 to 32, a last place in four taken.
        chunk[places] = (chunk[places] & 0x8000) | (
            0x4000 + 4 * rank + (noise[start : start + POINTS] % 4 if moved else 0)
        )
    return bits.reshape(case.tokens, case.hidden)


def _hashed(words: np.ndarray) -> np.ndarray:
    """Mix each to a uint32: the mixer of https://github.com/skeeto/hash-prospector."""
    words = (words ^ words >> 16) * np.uint32(0x7FEB352D)
    words = (words ^ words >> 15) * np.uint32(0x846CA68B)
    return words ^ words >> 16


def main() -> None:
    import torch
    from toploc import build_proofs_bytes, verify_proofs_bytes

    made = []
    for case in CASES:
        rows, others = (
            torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16) for bits in (states(case), other_states(case))
        )
        proofs = build_proofs_bytes(rows, CHUNK_TOKENS, POINTS, skip_prefill=True)
        statistics = [
            [[result.exp_mismatches, result.mant_err_mean, result.mant_err_median] for result in results]
            for results in (
                verify_proofs_bytes(against, proofs, CHUNK_TOKENS, POINTS, skip_prefill=True)
                for against in (rows, others)
            )
        ]
        made.append(
            {
                "case": case.name,
                "proofs": [proof.hex() for proof in proofs],
                "same": statistics[0],
                "other": statistics[1],
            }
        )
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
