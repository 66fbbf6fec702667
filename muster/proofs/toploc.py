"""The `toploc` codec: TOPLOC as published (arXiv 2501.16007), 258 bytes for every 32 tokens.

The `toploc` package 0.1.6 reads and writes the same bytes, where the 128th largest entry of a chunk is larger than the
next: of equal ones it keeps others than we do.

Per chunk of 32 tokens the 128 entries of largest magnitude (`muster.proofs.topk`) are the points of a polynomial
(`muster.proofs.field`): a modulus and 128 coefficients, two bytes each, the high one first. A reader evaluates it at
the largest entries of the states that it computed itself, and gets the worker's values wherever both kept the same
entry; anywhere else the value is as good as random. Nothing in the form depends on a seed.

How far off. The package counts, per chunk, the entries whose exponent differs and takes mean and median of the mantissa
differences of the others; signs it ignores. By these numbers *one constant polynomial passes*, whatever the states: the
largest entries are close to each other, so that their middle is a good guess of each. We measure the same differences
on one scale, relative to what such a guess gets:

    distance    of two entries, in units of bfloat16's last place: the difference of the mantissas where the exponents
                agree, through the change of an exponent and of the sign without a jump, and 128 (an octave) at most
    counted     the kept entries of the recomputed states that are larger than the smallest of them: which of several
                equal ones are the last to be kept is chance where two machines differ in the last bit
    off         sum of the distances between claimed and recomputed entries, of those counted
    spread      the same between the recomputed entries and their median, at least 1 per entry
    error       sum of `off` over the completion's chunks / sum of `spread`

All 128 entries count in a chunk whose larger ones are all but equal, on average less than a step off their median: in
one of which none is larger than the smallest, above all. There a constant could be right about those few alone.
Elsewhere the best constant is as far off as the median, so leaving entries out lets none pass.

The mean, not the median: an entry that only one side kept counts 128, and how many there are tells as much as how far
the others are off. By completion, not by chunk: honest chunks at the edge of a near-tie average out. 0 is the same
states, about 1 the best constant, more than 1 random numbers; all in integers, so it is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from muster.proofs.codec import Comparison
from muster.proofs.field import LEAST_MODULUS, PRIME, WORDS, evaluate, interpolate
from muster.proofs.topk import CHUNK_TOKENS, INFINITE, Largest, chunk_count, largest

CHUNK_BYTES: Final = 2 * WORDS
_OCTAVE: Final = 128
"""A distance is at most this: the steps of bfloat16 from a number to its double."""


@dataclass(frozen=True)
class ToplocCodec:
    name: str = "toploc"

    def encode_batch(self, states: Sequence[torch.Tensor], seeds: Sequence[int]) -> list[bytes]:
        kept = largest(states)
        if not _finite(kept).all():
            raise ValueError("states are not finite")
        words = interpolate(kept.indices, kept.bits).astype(">u2")
        ends = np.cumsum([chunk_count(len(rows)) for rows in states])
        return [words[end - chunk_count(len(rows)) : end].tobytes() for rows, end in zip(states, ends, strict=True)]

    def compare_batch(
        self, proofs: Sequence[bytes], states: Sequence[torch.Tensor], seeds: Sequence[int]
    ) -> list[Comparison]:
        problems = [_problem(proof, rows) for proof, rows in zip(proofs, states, strict=True)]
        sound = [i for i, problem in enumerate(problems) if problem is None]
        measured = dict(zip(sound, _distances([proofs[i] for i in sound], [states[i] for i in sound]), strict=True))
        return [measured[i] if problem is None else Comparison.malformed(problem) for i, problem in enumerate(problems)]


TOPLOC = ToplocCodec()


def _problem(proof: bytes, states: torch.Tensor) -> str | None:
    """Return what is wrong with a proof's form, if anything: each proof has exactly one valid form."""
    tokens, hidden = states.shape
    expected = chunk_count(tokens) * CHUNK_BYTES
    if len(proof) != expected:
        return f"{len(proof)} bytes for {tokens} tokens, {expected} expected"
    words = np.frombuffer(proof, dtype=">u2").reshape(-1, WORDS)
    # Indices below 65497 differ under it as they are. A modulus above it would put two of them on one point.
    least = PRIME if CHUNK_TOKENS * hidden <= PRIME else LEAST_MODULUS
    wrong = (words[:, 0] < least) | (words[:, 0] > PRIME)
    if wrong.any():
        return f"a modulus of {words[wrong.argmax(), 0]}, {least} to {PRIME} expected"
    if (words[:, 1:] >= PRIME).any():
        return f"a coefficient is not below {PRIME}"
    return None


def _distances(proofs: Sequence[bytes], states: Sequence[torch.Tensor]) -> list[Comparison]:
    """Compare proofs of the right form with states."""
    kept = largest(states)
    words = np.frombuffer(b"".join(proofs), dtype=">u2").reshape(-1, WORDS).astype(np.uint16)
    expected = _steps(kept.bits)
    counted = _counted(kept.bits, expected)
    off = _distance(_steps(evaluate(words, kept.indices)), expected, counted)
    spread = np.maximum(_spread(expected, counted), counted.sum(axis=1))

    completions = len(states)
    owners = np.repeat(np.arange(completions), [chunk_count(len(rows)) for rows in states])
    errors = _sums(owners, off, completions) / np.maximum(_sums(owners, spread, completions), 1)
    worst, finite = np.zeros(completions), np.ones(completions, dtype=bool)
    np.maximum.at(worst, owners, off / spread)
    np.logical_and.at(finite, owners, _finite(kept))
    return [
        Comparison(error=float(errors[i]), worst=float(worst[i]))
        if finite[i]
        else Comparison.malformed("the states are not finite")
        for i in range(completions)
    ]


def _finite(kept: Largest) -> np.ndarray:
    """Return whether each chunk is: bool [C]. An infinity or a NaN is among the largest."""
    return (kept.bits & 0x7FFF).max(axis=1) < INFINITE


def _steps(bits: np.ndarray) -> np.ndarray:
    """Return where bfloat16 values are among all of them, zero being 0: int32, in the order of the values."""
    magnitudes = (bits & 0x7FFF).astype(np.int32)
    return np.where(bits >> 15, -magnitudes, magnitudes)


def _counted(bits: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return which of the kept entries [C, 128] are compared: bool [C, 128], at least one in each chunk."""
    magnitudes = bits & 0x7FFF
    above = magnitudes > magnitudes.min(axis=1, keepdims=True)
    alike = _spread(expected, above) < np.maximum(above.sum(axis=1), 1)
    return above | alike[:, None]


def _spread(expected: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Return the sum of the distances of each chunk's counted entries [C, 128] to their lower median: int64 [C]."""
    ranked = np.sort(np.where(counted, expected, np.iinfo(np.int32).max), axis=1)
    middle = np.maximum(counted.sum(axis=1) - 1, 0) // 2
    return _distance(np.take_along_axis(ranked, middle[:, None], axis=1), expected, counted)


def _distance(claimed: np.ndarray, expected: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Return the sum of the distances of each chunk's counted entries [C, 128]: int64 [C]."""
    distances = np.minimum(np.abs(claimed.astype(np.int64) - expected), _OCTAVE)
    return distances.sum(axis=1, where=counted)


def _sums(owners: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return chunks' values added up by completion: float64 [count], exact."""
    return np.bincount(owners, weights=values, minlength=count)
