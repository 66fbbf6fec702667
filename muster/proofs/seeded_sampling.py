"""Sampling that can be replayed: Gumbel noise as a pure function of seed, token index and token id.

A completion token is `argmax(logits / temperature + gumbel)`, which is an exact draw from
softmax(logits / temperature) (Gumbel-max). The noise is counter-based, so a validator with the same logits gets the
same argmax, and a token that is not it stands out by its *gap*: how far the chosen token is below the maximum.

The integers, all arithmetic modulo 2^32, `>>` logical:

    mix(x)     x ^= x >> 16;  x *= 0x7FEB352D;  x ^= x >> 15;  x *= 0x846CA68B;  x ^= x >> 16
    k          mix(low word of seed + 0x9E3779B9),  then  k = mix(k ^ high word of seed)
    key a      mix(k + token index)
    key b      mix(a + 0x85EBCA6B)
    bits       mix(a + token id * 0x9E3779B9), where `b` is xored in between the first multiplication and `>> 15`

and the noise, in float32:

    u          ((bits >> 9) + 0.5) * 2^-23        exact, in [2^-24, 1 - 2^-24]: neither logarithm sees 0
    gumbel     -log(-log(u))                      in [-2.82, 16.64]

Integers are int32 in two's complement, so that the same lines run on tensors of any device;
bits and `u` are identical everywhere, the noise up to the last bit of the logarithm. Changing anything here breaks
replay: every honest worker of another version would be rejected. Mixer: https://github.com/skeeto/hash-prospector.

`choose` is the worker's side, `measure` the validator's. On a CPU both run in a compiled kernel where there is one
(`muster/proofs/native/sampler.c`): one pass over the logits, in which few tokens need a logarithm. `choose_portable`
and `measure_portable` are the definition, and what runs everywhere else; both sides choose the same tokens, always.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import torch

from muster.proofs.native import load


def _signed(word: int) -> int:
    """Return the int32 with the same bits as an unsigned 32-bit word."""
    return word - (1 << 32) if word >= 1 << 31 else word


_GOLDEN = _signed(0x9E3779B9)
_SECOND = _signed(0x85EBCA6B)
_MULTIPLY_1 = 0x7FEB352D
_MULTIPLY_2 = _signed(0x846CA68B)
_LOWEST = -1e30
"""A logit that no noise lifts above another one."""


def _mix(x: torch.Tensor, between: torch.Tensor | None = None) -> torch.Tensor:
    """Scramble int32 words in place and return them; see the module's docstring."""
    x ^= (x >> 16) & 0xFFFF
    x *= _MULTIPLY_1
    if between is not None:
        x ^= between
    x ^= (x >> 15) & 0x1FFFF
    x *= _MULTIPLY_2
    x ^= (x >> 16) & 0xFFFF
    return x


def _keys(low: torch.Tensor, high: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two keys of each row, from int32 words that this may overwrite."""
    low += _GOLDEN
    key = _mix(_mix(low) ^ high)
    key += positions
    first = _mix(key)
    return first, _mix(first + _SECOND)


def noise_bits(seeds: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
    """Return the hash behind the noise: int32 [B, vocab] for int64 seeds [B] and token indices [B]."""
    words = seeds.to(torch.int64).contiguous().view(torch.int32).view(-1, 2)  # little-endian: low word first
    first, second = _keys(words[:, 0].clone(), words[:, 1], positions.to(torch.int32))
    tokens = torch.arange(vocab, dtype=torch.int32, device=seeds.device) * _GOLDEN
    return _mix(tokens[None, :] + first[:, None], second[:, None])


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
    """Noise for B rows: float32 [B, vocab].

    `seeds` int64 [B], 0 ≤ seed < 2^63; `positions` integer [B]: index of the token in its completion, from 0.
    """
    return _noise(noise_bits(seeds, positions, vocab))


def noise_at(seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Noise of one token for each of B rows: float32 [B], as `gumbel` has it at that token."""
    words = seeds.to(torch.int64).contiguous().view(torch.int32).view(-1, 2)
    first, second = _keys(words[:, 0].clone(), words[:, 1], positions.to(torch.int32))
    return _noise(_mix(tokens.to(torch.int32) * _GOLDEN + first, second))


def _noise(bits: torch.Tensor) -> torch.Tensor:
    """Turn the hash into noise; overwrites it."""
    bits >>= 9
    bits &= 0x7FFFFF
    u = bits.to(torch.float32).add_(0.5).mul_(2.0**-23)
    return u.log_().neg_().log_().neg_()


# --- Choosing, and measuring what was chosen


@dataclass(frozen=True)
class Choice:
    """What was sampled for B rows."""

    tokens: torch.Tensor
    """int64 [B]"""
    logprobs: torch.Tensor
    """float32 [B]: log-probability of the token under softmax(logits / temperature)"""


@dataclass(frozen=True)
class Replay:
    """How tokens that others chose for B rows look from here. Not finite where the logits are not."""

    gaps: torch.Tensor
    """float32 [B], max(noised) - noised[token]: never negative, 0 for the sampled token. Another model, prompt, seed,
    temperature or an edited token makes it large; a near-tie that numerics decided otherwise as small as their
    difference."""
    logprobs: torch.Tensor
    """float32 [B]: log-probability of the token under softmax(logits / temperature)"""
    sampled: torch.Tensor
    """int64 [B]: the tokens that are sampled from here"""


def choose(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperature: float) -> Choice:
    """Sample one token per row of logits [B, V], with the noise of (seed, position); int64 [B] each, as in `gumbel`."""
    if not _kernel_takes(logits):
        return choose_portable(logits, seeds, positions, temperature)
    rows = _sample_rows(logits, seeds, positions, temperature, wanted=None)
    if (left := rows.undecided()) is not None:
        choice = choose_portable(logits[left], seeds[left], positions[left], temperature)
        rows.tokens[left], rows.logprobs[left] = choice.tokens, choice.logprobs
    return Choice(rows.tokens, rows.logprobs)


def measure(
    logits: torch.Tensor, tokens: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperature: float
) -> Replay:
    """Measure the tokens [B] against what (seed, position) samples from logits [B, V]."""
    if not _kernel_takes(logits):
        return measure_portable(logits, tokens, seeds, positions, temperature)
    rows = _sample_rows(logits, seeds, positions, temperature, wanted=tokens)
    if (left := rows.undecided()) is not None:
        replay = measure_portable(logits[left], tokens[left], seeds[left], positions[left], temperature)
        rows.gaps[left], rows.logprobs[left], rows.tokens[left] = replay.gaps, replay.logprobs, replay.sampled
    return Replay(rows.gaps, rows.logprobs, rows.tokens)


def leads(
    logits: torch.Tensor, chosen: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return how far the best other token is above the `chosen` one, which has no noise, in nats: float32 [B].

    The chosen tokens' logits are masked meanwhile, not in a copy.
    """
    own = logits.gather(1, chosen[:, None])
    rivals = choose(logits.scatter_(1, chosen[:, None], _LOWEST), seeds, positions, temperature).tokens
    best = logits.gather(1, rivals[:, None])
    logits.scatter_(1, chosen[:, None], own)
    return ((best.float() - own.float()) / temperature)[:, 0] + noise_at(seeds, positions, rivals)


# --- The definition


def choose_portable(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperature: float) -> Choice:
    """`choose` on any device."""
    scaled = scale(logits, temperature)
    tokens = gumbel(seeds, positions, scaled.shape[1]).add_(scaled).argmax(dim=1)
    return Choice(tokens, chosen_logprobs(scaled, tokens))


def measure_portable(
    logits: torch.Tensor, tokens: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperature: float
) -> Replay:
    """`measure` on any device."""
    scaled = scale(logits, temperature)
    noised = gumbel(seeds, positions, scaled.shape[1]).add_(scaled)
    highest, sampled = noised.max(dim=1)
    gaps = highest - noised.gather(1, tokens[:, None])[:, 0]
    return Replay(gaps, chosen_logprobs(scaled, tokens), sampled)


def scale(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return logits / temperature in float32: what noise is added to and probabilities are taken of."""
    logits = logits.to(torch.float32)
    return logits if temperature == 1.0 else logits / temperature


def chosen_logprobs(scaled: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return log_softmax of scaled [B, V] at tokens [B]: float32 [B]."""
    return scaled.gather(1, tokens[:, None])[:, 0] - scaled.logsumexp(dim=1)


# --- The kernel


@dataclass(frozen=True)
class _Rows:
    """What the kernel writes; see `sample_rows` in sampler.c."""

    tokens: torch.Tensor
    gaps: torch.Tensor
    logprobs: torch.Tensor
    states: torch.Tensor

    def undecided(self) -> torch.Tensor | None:
        """Find rows that the last bit of a logarithm decides, or whose logits are not finite; None if there are none.

        About one row in 100,000 of honest work: its two best tokens are that near to each other.
        """
        return self.states.nonzero()[:, 0] if bool(self.states.any()) else None


def _kernel_takes(logits: torch.Tensor) -> bool:
    return logits.device.type == "cpu" and logits.shape[1] > 0 and load("sampler") is not None


def _sample_rows(
    logits: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    temperature: float,
    wanted: torch.Tensor | None,
) -> _Rows:
    kernel = load("sampler")
    assert kernel is not None
    # 1. What the kernel reads and writes.
    logits = logits.to(torch.float32)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    count, vocabulary = logits.shape
    words = [values.to(torch.int64).contiguous() for values in (seeds, positions)]
    tokens = torch.empty(count, dtype=torch.int64)
    if wanted is not None:
        wanted = wanted.to(torch.int64).contiguous()
        if count and not 0 <= int(wanted.min()) <= int(wanted.max()) < vocabulary:
            raise IndexError(f"a token outside the vocabulary of {vocabulary}")
    rows = _Rows(tokens, torch.empty(count), torch.empty(count), torch.empty(count, dtype=torch.uint8))

    def take(part: slice) -> None:
        arrays = (*words, wanted, rows.tokens, rows.gaps, rows.logprobs, rows.states)
        kernel.sample_rows(
            _address(logits[part]),
            ctypes.c_int64(part.stop - part.start),
            ctypes.c_int64(logits.stride(0)),
            ctypes.c_int64(vocabulary),
            ctypes.c_float(temperature),
            *(None if array is None else _address(array[part]) for array in arrays),
        )

    # 2. Slices of rows, one to a thread.
    parts = list(_parts(count, torch.get_num_threads()))
    if len(parts) == 1:
        take(parts[0])
    else:
        list(_pool().map(take, parts))
    return rows


def _parts(count: int, threads: int) -> Iterator[slice]:
    """As many slices of about one length as there are threads, but none empty."""
    parts = max(1, min(threads, count))
    for part in range(parts):
        yield slice(count * part // parts, count * (part + 1) // parts)


def _address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads for the kernel, which lets others run meanwhile; as many at work as torch may use."""
    return ThreadPoolExecutor(thread_name_prefix="muster-sampler")
