"""The tool `search`: BM25 over the corpus of the manifest, in whole numbers, so that every machine ranks alike.

Okapi BM25 with k1 = 1.2 and b = 0.75 (Robertson and Zaragoza, 2009); the weight of a word in n of N documents is
log2((N + 1) / (n + 1/2)), in 2^-16. Equal scores go by the documents' names.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field

from muster.environments.tools.base import EarlierCall, Parameter, ToolResult
from muster.runtime.documents import canonical_json

MAX_DOCUMENTS: Final = 1 << 14
SHOWN: Final = 3
"""Documents of one result. Changing this, or what a word is, changes given tokens."""
_BITS: Final = 16
_UNICODE: Final = unicodedata.ucd_3_2_0
"""The one version of Unicode's tables that every Python has."""
_UNSPACED: Final = "\u3041-\u3096\u30a1-\u30fc\u3400-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff"
"""Kana, Han and Hangul, between whose words may be no blank."""
_PART: Final = re.compile(f"([{_UNSPACED}]+)|[^ {_UNSPACED}]+")


@dataclass(frozen=True)
class Document:
    """One entry of a corpus."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    text: Annotated[str, Field(max_length=1 << 16)]


@lru_cache(1 << 17)
def _folded(letter: str) -> str:
    """Return what a letter is folded to, a blank where it parts words. What Unicode 3.2 lacks stays."""
    kind = _UNICODE.category(letter)
    if kind in ("Cn", "Cs", "Co"):
        return letter
    return " " if kind[0] in "CPZ" or kind in ("Sm", "Sc", "Sk") else letter.casefold()


def words(text: str, *, singles: bool = False) -> list[str]:
    """Return the words of a text, folded by Unicode 3.2: by NFKC and without cases.

    Of kana, Han and Hangul they are each two characters that follow each other, or the only one. singles: each single
    one too, as an index has them.
    """
    found = []
    for match in _PART.finditer("".join(map(_folded, _UNICODE.normalize("NFKC", text)))):
        if not (run := match[1]):
            found.append(match[0])
            continue
        found += [run[i : i + 2] for i in range(len(run) - 1)]
        found += run if singles or len(run) == 1 else ()
    return found


def log2(numerator: int, denominator: int) -> int:
    """Return log2 of a fraction that is at least 1, in 2^-16, rounded down."""
    found = (numerator // denominator).bit_length() - 1
    rest = (numerator << 32) // (denominator << found)
    for _ in range(_BITS):
        rest = rest * rest >> 32
        found, carry = 2 * found, rest >> 33
        found, rest = found + carry, rest >> carry
    return found


class Search:
    """The tool `search`. A call costs one unit of fuel, and one for each document that a word of the query is in."""

    name = "search"
    description = "Searches the documents and returns the best three."
    parameters: Mapping[str, Parameter] = MappingProxyType({"query": Parameter("string", "Words to search for")})

    def __init__(self, corpus: Sequence[Document]) -> None:
        self._corpus = sorted(corpus, key=lambda one: one.name)
        self.code = "2 " + sha256(canonical_json([[one.name, one.text] for one in self._corpus])).hexdigest()
        self._postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._lengths = []
        for place, document in enumerate(self._corpus):
            found = Counter(words(f"{document.name} {document.text}", singles=True))
            self._lengths.append(found.total())
            for word, count in found.items():
                self._postings[word].append((place, count))

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[EarlierCall] = ()) -> ToolResult:
        """Return the best documents for `query`."""
        wanted = [self._postings[word] for word in sorted(set(words(arguments["query"]))) if word in self._postings]
        cost = 1 + sum(map(len, wanted))
        if cost > fuel:
            return ToolResult("error: out of fuel", fuel)
        scores: Counter[int] = Counter()
        number, total = len(self._corpus), sum(self._lengths)
        for postings in wanted:
            weight = log2(2 * number + 2, 2 * len(postings) + 1)
            for place, count in postings:
                # count (k1 + 1) / (count + k1 (1 - b + b length / mean length)), its fractions made whole
                below = 10 * count * total + 3 * total + 9 * self._lengths[place] * number
                scores[place] += weight * 22 * count * total // below
        best = sorted(scores, key=lambda place: (-scores[place], place))[:SHOWN]
        found = [f"{self._corpus[place].name}: {self._corpus[place].text}" for place in best]
        return ToolResult("\n\n".join(found) or "nothing was found", cost)
