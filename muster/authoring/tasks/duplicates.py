"""Find equal and nearly equal problems, split without any between the halves, and keep benchmarks out.

*Nearly equal* is a Jaccard index of at least `NEAR` between the sets of 5-word shingles, estimated by MinHash with 128
permutations; pairs are found by 21 bands of 6 (Broder 1997; Leskovec, Rajaraman, Ullman, chapter 3). Two problems as
alike as `NEAR` are found with a probability of 0.998.

*Contaminated* is a problem that shares 13 words in a row with a benchmark's (Brown et al. 2020, appendix C), or all
words of the shorter of the two.

All of it is deterministic: hashes are BLAKE2b, and numbers are 64-bit integers that wrap.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from muster.authoring.tasks.lookalikes import plain_letters
from muster.authoring.tasks.rows import BadRow, read_rows
from muster.errors import ConfigError

NEAR: Final = 0.8
SHINGLE: Final = 5
"""Words of a shingle."""
BANDS: Final = 21
BAND_ROWS: Final = 6
PERMUTATIONS: Final = 128
BENCHMARK_WORDS: Final = 13
FEWEST_WORDS: Final = 4
"""Of a problem that can be found."""
SEEDS_PER_BUCKET: Final = 8
"""Problems of a bucket that a new one is compared with, so that no bucket costs the square of its size."""

MAX_WORDS: Final = 4096
"""Words of a problem that are compared, from its beginning."""
KEPT_PIECES: Final = 1 << 18
KEPT_CHARS: Final = 32
"""How many pieces of texts are remembered, and how long they are: at most 64 MiB."""
_BATCH: Final = 256
_CJK: Final = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_STOPS: Final = re.escape(".,;:!?'\"()[]{}…·•|~¿¡«»、。")
"""Marks that change no problem: signs of arithmetic are not among them."""
_PRIME: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = np.uint64(0xBF58476D1CE4E5B9)

Hashes = np.ndarray
"""uint64 [n]."""


def normal_text(text: str) -> str:
    """Return what equal problems have in common: letters of one look and case, single spaces."""
    return " ".join(plain_letters(text).casefold().split())


def exact_key(text: str) -> bytes:
    """Return 16 bytes that two problems share when their normal texts are equal."""
    return hashlib.sha256(normal_text(text).encode(errors="surrogatepass")).digest()[:16]


# --- Nearly equal


class Signatures:
    """MinHash signatures of problems, added one after the other: 512 bytes each."""

    def __init__(self) -> None:
        self._done: list[np.ndarray] = []
        self._waiting: list[list[int]] = []
        """The hashes of each problem's words."""

    def add(self, text: str) -> None:
        self._waiting.append(_WORDS.hashes(normal_text(text)))
        if len(self._waiting) == _BATCH:
            self._flush()

    def matrix(self) -> np.ndarray:
        """Return all signatures: uint32 [problems, PERMUTATIONS]."""
        self._flush()
        return np.concatenate(self._done) if self._done else np.zeros((0, PERMUTATIONS), np.uint32)

    def _flush(self) -> None:
        if not self._waiting:
            return
        # Each shingle gets one number per permutation; a problem's signature is the smallest of each, its upper half.
        shingles, starts = _shingles_of_all(self._waiting)
        numbers = np.empty_like(shingles)
        smallest = np.empty((PERMUTATIONS, len(starts)), np.uint64)
        for i, (factor, shift) in enumerate(zip(*_permutations(), strict=True)):
            np.multiply(shingles, factor, out=numbers)
            np.add(numbers, shift, out=numbers)
            np.minimum.reduceat(numbers, starts, out=smallest[i])
        self._done.append((smallest >> np.uint64(32)).astype(np.uint32).T.copy())
        self._waiting = []


def clusters(signatures: np.ndarray, near: float = NEAR) -> np.ndarray:
    """Return for each problem the first one of its cluster: int64 [problems].

    Problems that are nearly equal are in one cluster, and so are those that a chain of such pairs connects.
    """
    # 1. The buckets of each band: problems whose numbers in it are equal. A hash identifies a bucket; if two buckets
    #    collide, step 2 still compares all numbers.
    leader = np.arange(len(signatures))
    wanted = int(np.ceil(near * PERMUTATIONS))
    for band in range(BANDS):
        keys = np.zeros(len(signatures), np.uint64)
        for column in range(band * BAND_ROWS, (band + 1) * BAND_ROWS):
            keys = (keys ^ (keys >> np.uint64(29))) * _PRIME + signatures[:, column]
        order = np.argsort(keys, kind="stable")
        edges = np.flatnonzero(keys[order][1:] != keys[order][:-1]) + 1
        starts, ends = np.append(0, edges), np.append(edges, len(order))

        # 2. Join those of a bucket that are alike by all their numbers.
        for i in np.flatnonzero(ends - starts > 1):
            _join_bucket(order[starts[i] : ends[i]], signatures, leader, wanted)
    return np.fromiter((_leader(leader, i) for i in range(len(leader))), np.int64, len(leader))


def _join_bucket(bucket: np.ndarray, signatures: np.ndarray, leader: np.ndarray, wanted: int) -> None:
    seeds: list[int] = []
    for one in map(int, bucket):  # ascending
        known = {_leader(leader, seed) for seed in seeds}
        if _leader(leader, one) in known:
            continue
        alike = (signatures[seeds] == signatures[one]).sum(axis=1) >= wanted if seeds else np.zeros(0, bool)
        for seed, same in zip(seeds, alike, strict=True):
            if same:
                first, second = sorted((_leader(leader, seed), _leader(leader, one)))
                leader[second] = first
        if not alike.any() and len(seeds) < SEEDS_PER_BUCKET:
            seeds.append(one)


def _leader(leader: np.ndarray, i: int) -> int:
    while leader[i] != i:
        leader[i] = leader[leader[i]]
        i = int(leader[i])
    return i


def split_clusters(leaders: Sequence[int] | np.ndarray, held_out: int, seed: int = 0) -> np.ndarray:
    """Return which problems are held out: bool [problems], `held_out` of them, in whole clusters.

    Clusters are taken in an order that the seed decides; one that would be too much is passed over. Raises ConfigError
    when that leaves too few, or nothing to train on.
    """
    members: dict[int, list[int]] = {}
    for i, leader in enumerate(leaders):
        members.setdefault(int(leader), []).append(i)
    chosen = np.zeros(len(leaders), bool)
    left = held_out
    for leader in sorted(members, key=lambda one: hashlib.sha256(f"muster.held-out.{seed}.{one}".encode()).digest()):
        if 0 < len(members[leader]) <= left:
            chosen[members[leader]] = True
            left -= len(members[leader])
        if not left:
            break
    if left or (held_out and chosen.all()):
        raise ConfigError(
            f"{held_out} problems cannot be held out of {len(leaders)} in {len(members)} clusters of near-duplicates",
            hint="hold fewer out",
        )
    return chosen


# --- Benchmarks


class Benchmarks:
    """Problems that training tasks must not have in common with benchmarks.

    Two problems are one where they share 13 words in a row, or where all words of the shorter one, four to twelve,
    stand in a row in the other. Texts of one to three words, such as answers, count for nothing. Memory holds the
    problems alone, however many tasks go by.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        hashed = ((i, _signed_words(text)) for i, text in enumerate(problems))
        self._problems = [(i, words) for i, words in hashed if len(words) >= FEWEST_WORDS]
        self._grams = lru_cache(maxsize=None)(self._make_grams)

    def __len__(self) -> int:
        """Return the number of hashes that the problems are known by."""
        return sum(max(1, len(words) - BENCHMARK_WORDS + 1) for _, words in self._problems)

    def found_in(self, text: str) -> set[int]:
        """Return the problems, by number, that are one with that of a training task's text."""
        words = _signed_words(text)
        found: set[int] = set()
        most = min(len(words), BENCHMARK_WORDS)
        for length in range(FEWEST_WORDS, most + 1):
            known, owners = self._grams(length, length < most)
            seen = _shingles(words, length) if len(known) else known
            starts, ends = (np.searchsorted(known, seen, side) for side in ("left", "right"))
            found.update(int(one) for i in np.flatnonzero(ends > starts) for one in owners[starts[i] : ends[i]])
        return found

    def _make_grams(self, length: int, is_whole: bool) -> tuple[Hashes, np.ndarray]:
        """Return so many words in a row as hashes, ascending, and the problem that each is of: int64 [n].

        is_whole: only those of problems that have no more words.
        """
        chosen = [(i, words) for i, words in self._problems if len(words) >= length]
        chosen = [(i, words) for i, words in chosen if not is_whole or len(words) == length]
        hashes = np.concatenate([np.zeros(0, np.uint64), *(_shingles(words, length) for _, words in chosen)])
        owners = np.repeat([i for i, _ in chosen], [len(words) - length + 1 for _, words in chosen])
        order = np.argsort(hashes, kind="stable")
        return hashes[order], owners[order]


def read_benchmarks(paths: Iterable[Path]) -> Benchmarks:
    """Read benchmarks: JSON Lines or Parquet, of which every text counts. Raises as `read_rows`."""
    rows = (row for path in paths for _, row in read_rows(path, (), ("*",)) if not isinstance(row, BadRow))
    return Benchmarks(_texts(rows))


def _texts(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from _texts(value)
        elif isinstance(value, Mapping):
            yield from _texts(value.values())


# --- Hashes


class WordHashes(dict[str, tuple[int, ...]]):
    """The words of texts as hashes; remembered for what stands between two spaces, since texts repeat it."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self._pattern = re.compile(pattern)

    def hashes(self, text: str) -> list[int]:
        """Return the hashes of a normal text's first words. No word has a space in it."""
        return list(chain.from_iterable(map(self.__getitem__, text.split(" "))))[:MAX_WORDS]

    def __missing__(self, piece: str) -> tuple[int, ...]:
        found = tuple(map(_word_hash, self._pattern.findall(piece)))
        if len(piece) <= KEPT_CHARS:
            if len(self) >= KEPT_PIECES:
                self.clear()
            self[piece] = found
        return found


_WORDS: Final = WordHashes(rf"[{_CJK}]|[^\W_{_CJK}]+|[^\w\s{_STOPS}]")
_SIGNED_WORDS: Final = WordHashes(rf"[{_CJK}]|(?:[-+*/^=<>]+(?=\d|[^\W\d_](?![^\W_])))?[^\W_{_CJK}]+")
_ONE_SIGN: Final = str.maketrans("×⋅·÷", "***/")
_SIGN_ENDS: Final = re.compile(r"(?<=[-+*/^=<>])[ ({\[$]+")


def _signed_words(text: str) -> Hashes:
    """Return the hashes of a text's words, numbers and single letters with the signs of arithmetic before them."""
    plain = normal_text(text).replace("**", " ").translate(_ONE_SIGN)  # stars of bold letters
    return np.array(_SIGNED_WORDS.hashes(_SIGN_ENDS.sub("", plain)), np.uint64)


def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def _shingles(words: Sequence[int] | np.ndarray, length: int) -> Hashes:
    """Return the hashes of all `length` words in a row, at least one of them, from the hashes of at least as many."""
    hashes = np.array(words, np.uint64)
    total = np.zeros(len(hashes) - length + 1, np.uint64)
    for i in range(length):
        total = total * _PRIME + hashes[i : i + len(total)]
    total ^= total >> np.uint64(31)
    total *= _MIX
    return total ^ (total >> np.uint64(29))


def _shingles_of_all(problems: Sequence[list[int]]) -> tuple[Hashes, np.ndarray]:
    """Return the shingles of all problems one after the other, and where each problem's begin: int64 [problems].

    A problem of fewer words has one shingle, of all of them together; zeros before it change no sum.
    """
    padded = [words if len(words) >= SHINGLE else [0] * (SHINGLE - len(words)) + words for words in problems]
    counts = np.fromiter(map(len, padded), np.int64, len(padded))
    shingles = _shingles(list(chain.from_iterable(padded)), SHINGLE)

    # Those that begin within the last four words of a problem reach into the next one.
    inside = np.ones(len(shingles), bool)
    for i in range(1, SHINGLE):
        inside[np.cumsum(counts)[:-1] - i] = False
    starts = np.cumsum(counts - (SHINGLE - 1)) - (counts - (SHINGLE - 1))
    return shingles[inside], starts


@lru_cache(maxsize=1)
def _permutations() -> tuple[np.ndarray, np.ndarray]:
    """Return an odd factor and a shift per permutation: uint64 [PERMUTATIONS] each."""
    data = hashlib.shake_256(b"muster.minhash.v1").digest(16 * PERMUTATIONS)
    numbers = np.frombuffer(data, "<u8").astype(np.uint64)
    return numbers[:PERMUTATIONS] | np.uint64(1), numbers[PERMUTATIONS:]
