"""Polynomials over GF(65497) through the kept entries of a chunk, in the published form's 129 words.

The points are (index modulo m, bits of the bfloat16 entry). m, the first word, is the largest modulus up to 65497 under
which the chunk's indices differ; the others are the coefficients, lowest power first, all below 65497. As 65497 is
prime and every finite bfloat16 is below it, there is exactly one such polynomial, whatever the order of the points.

The kernel is muster/proofs/native/toploc.c; the twin here gives the same integers.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

import numpy as np

from muster.proofs.kernel import address
from muster.proofs.native import load
from muster.proofs.topk import POINTS

PRIME: Final = 65497
LEAST_MODULUS: Final = 2**15 + 1
"""The search for a modulus ends here; one index in 2,000 collides under a modulus, so it never comes near."""
WORDS: Final = 1 + POINTS


def interpolate(indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the words of the polynomials through points [C, 128]: uint16 [C, 129]. Values are below 65497.

    Raises ValueError when no modulus keeps the indices of a chunk apart.
    """
    kernel = load("toploc")
    if kernel is None:
        words = interpolate_by_numpy(indices, values)
    else:
        words = np.empty((len(indices), WORDS), np.uint16)
        count = ctypes.c_int64(len(indices))
        kernel.interpolate(address(indices), address(values), count, address(inverses()), address(words))
    if not words[:, 0].all():
        raise ValueError("no modulus keeps the indices of a chunk apart")
    return words


def evaluate(words: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Evaluate polynomials at indices [C, 128]: uint16 [C, 128]. Moduli are 1 to 65497, coefficients below it."""
    kernel = load("toploc")
    if kernel is None:
        return evaluate_by_numpy(words, indices)
    values = np.empty(indices.shape, np.uint16)
    kernel.evaluate(address(words), address(indices), ctypes.c_int64(len(indices)), address(values))
    return values


def interpolate_by_numpy(indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`interpolate` without the kernel; the modulus is 0 where there is none.

    Newton's divided differences, then in place from Newton's basis to powers. The loops are over the degree.
    """
    moduli = _injective_moduli(indices)
    x = indices % np.maximum(moduli, 1)[:, None]
    table = inverses().astype(np.int64)
    differences = values.astype(np.int64)
    coefficients = np.empty_like(differences)
    coefficients[:, 0] = differences[:, 0]
    for order in range(1, POINTS):
        factors = table[(x[:, order:] - x[:, :-order]) % PRIME]
        differences = (differences[:, 1:] - differences[:, :-1]) * factors % PRIME
        coefficients[:, order] = differences[:, 0]
    for point in range(POINTS - 2, -1, -1):
        higher = coefficients[:, point + 1 :].copy()
        coefficients[:, point:-1] = (coefficients[:, point:-1] - x[:, point, None] * higher) % PRIME
    return np.concatenate([moduli[:, None], coefficients], axis=1).astype(np.uint16)


def evaluate_by_numpy(words: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """`evaluate` without the kernel, by Horner's rule."""
    wide = words.astype(np.int64)
    x = indices % wide[:, :1]
    values = np.zeros(indices.shape, np.int64)
    for power in range(POINTS, 0, -1):
        values = (values * x + wide[:, power, None]) % PRIME
    return values.astype(np.uint16)


def _injective_moduli(indices: np.ndarray) -> np.ndarray:
    """Find the largest modulus up to 65497 under which a chunk's indices differ, 0 without one: int64 [C]."""
    moduli = np.zeros(len(indices), np.int64)
    searching = np.arange(len(indices))
    for modulus in range(PRIME, LEAST_MODULUS - 1, -1):
        if not len(searching):
            break
        residues = np.sort(indices[searching] % modulus, axis=1)
        apart = (residues[:, 1:] != residues[:, :-1]).all(axis=1)
        moduli[searching[apart]] = modulus
        searching = searching[~apart]
    return moduli


@cache
def inverses() -> np.ndarray:
    """Return every number's inverse modulo 65497 (its power to 65495, by Fermat), and 0 for 0: uint16 [65497]."""
    base = np.arange(PRIME, dtype=np.int64)
    result, exponent = np.ones_like(base), PRIME - 2
    while exponent:
        if exponent & 1:
            result = result * base % PRIME
        base = base * base % PRIME
        exponent >>= 1
    return result.astype(np.uint16)
