"""What language a text is in, by langdetect with one seed and one order of its languages.

langdetect draws n-grams by chance, by default otherwise each time, and keeps 55 probabilities of each of 88,000
n-grams: more than a component has room for. Here the n-grams lie in one text and only probabilities above 0 are kept,
3 MiB; the first question of a call makes a mapping of them, so calls that ask for no language pay nothing.
"""

from __future__ import annotations

import json
from array import array
from itertools import count
from pathlib import Path

from langdetect.detector import Detector  # pyright: ignore[reportMissingImports]
from langdetect.detector_factory import (  # pyright: ignore[reportMissingImports]
    PROFILES_DIRECTORY,
    DetectorFactory,
)
from langdetect.lang_detect_exception import LangDetectException  # pyright: ignore[reportMissingImports]

SEED = 0
MAX_NGRAM = 3
"""Letters of the longest n-gram; longer ones in the profiles are never looked up."""
LANGUAGES = sorted(path.name for path in Path(PROFILES_DIRECTORY).iterdir())


def _pack() -> tuple[str, array, array, array]:
    """Return all n-grams, one a line, where the entries of each begin, and each entry's language and probability."""
    entries = []
    for number, language in enumerate(LANGUAGES):
        profile = json.loads((Path(PROFILES_DIRECTORY) / language).read_text(encoding="utf-8"))
        for ngram, times in profile["freq"].items():
            if len(ngram) <= MAX_NGRAM:
                entries.append((ngram, number, times / profile["n_words"][len(ngram) - 1]))
    entries.sort()
    ngrams, starts, last = [], array("I"), None
    for place, (ngram, _, _) in enumerate(entries):
        if ngram != last:
            ngrams.append(ngram)
            starts.append(place)
            last = ngram
    starts.append(len(entries))
    numbers, shares = array("B", [one[1] for one in entries]), array("d", [one[2] for one in entries])
    return "\n".join(ngrams), starts, numbers, shares


NGRAMS, STARTS, NUMBERS, SHARES = _pack()


class _Probabilities(dict):
    """Probabilities in each language by n-gram. A row is a number until somebody asks for it."""

    def __getitem__(self, ngram: str) -> list[float]:
        row = super().__getitem__(ngram)
        if isinstance(row, int):
            place, row = row, [0.0] * len(LANGUAGES)
            for entry in range(STARTS[place], STARTS[place + 1]):
                row[NUMBERS[entry]] = SHARES[entry]
            self[ngram] = row
        return row


_FACTORY = DetectorFactory()
_FACTORY.seed, _FACTORY.langlist = SEED, LANGUAGES


def is_in(text: str, language: str) -> bool:
    """Return whether a text is in a language, named as langdetect does. One without any letters is in every language.

    Looks at the first 10,000 characters, as langdetect does.
    """
    if not _FACTORY.word_lang_prob_map:
        _FACTORY.word_lang_prob_map = _Probabilities(zip(NGRAMS.split("\n"), count(), strict=False))
    detector = Detector(_FACTORY)
    try:
        detector.append(text)
        return detector.detect() == language
    except LangDetectException:
        return True
